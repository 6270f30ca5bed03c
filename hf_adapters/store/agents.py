"""Reading and writing the tables of the coding agents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from sqlalchemy import Connection, func, insert, select, update

from hf_adapters.store._types import utc_now
from hf_adapters.store.agent_models import AgentAttemptRow, AgentCaseRow, AgentReviewRow
from hf_adapters.store.agent_records import StoredAttempt, StoredCase, StoredReview
from hf_adapters.store.errors import NoSuchRow
from hf_adapters.store.store import Store
from hf_adapters.store.tables import AGENT_ATTEMPTS, AGENT_CASES, AGENT_REVIEWS

_CASE = [AGENT_CASES.c[item.name] for item in fields(StoredCase)]
_ATTEMPT = [AGENT_ATTEMPTS.c[item.name] for item in fields(StoredAttempt)]
_REVIEW = [AGENT_REVIEWS.c[item.name] for item in fields(StoredReview)]


class AgentStore:
    """Cases, attempts and reviews in a store's database; every method is one transaction."""

    def __init__(self, store: Store) -> None:
        """Args: store: an upgraded store, kept open by the caller."""
        self.store = store

    # -- cases

    def open_case(self, *, release: str, drafter: str, options: Mapping[str, Any]) -> int:
        """A new case without a subject; its id."""
        row = AgentCaseRow(release=release, drafter=drafter, options=dict(options))
        with self.store._writing() as connection:
            statement = insert(AGENT_CASES).values(row.model_dump(exclude={"id"})).returning(AGENT_CASES.c.id)
            return int(connection.execute(statement).scalar_one())

    def update_case(self, case_id: int, **values: Any) -> None:
        """Change columns of a case.

        Raises:
            NoSuchRow: there is no such case.
        """
        with self.store._writing() as connection:
            changed = connection.execute(
                update(AGENT_CASES).where(AGENT_CASES.c.id == case_id).values(**values, updated_at=utc_now())
            )
            if changed.rowcount == 0:
                raise NoSuchRow(f"the database {self.store.where} holds no case {case_id}")

    def case(self, case_id: int) -> StoredCase:
        """One case.

        Raises:
            NoSuchRow: there is no such case.
        """
        with self.store._reading() as connection:
            row = connection.execute(select(*_CASE).where(AGENT_CASES.c.id == case_id)).one_or_none()
        if row is None:
            raise NoSuchRow(
                f"the database {self.store.where} holds no case {case_id}", hint="see: hf-adapters agent show"
            )
        found: StoredCase = _record(StoredCase, row)
        return found

    def cases(self, *, state: str | None = None) -> list[StoredCase]:
        """Cases, newest first; those in one state when it is given."""
        query = select(*_CASE).order_by(AGENT_CASES.c.id.desc())
        if state is not None:
            query = query.where(AGENT_CASES.c.state == state)
        with self.store._reading() as connection:
            return [_record(StoredCase, row) for row in connection.execute(query)]

    # -- attempts

    def begin_attempt(self, case_id: int, number: int) -> None:
        """Make sure that the attempt's row exists; what an interrupted one has cost already stays with it."""
        with self.store._writing() as connection:
            if _attempt_id(connection, case_id, number) is None:
                row = AgentAttemptRow(case_id=case_id, number=number)
                connection.execute(insert(AGENT_ATTEMPTS).values(row.model_dump(exclude={"id"})))

    def update_attempt(self, case_id: int, number: int, **values: Any) -> None:
        """Change columns of an attempt.

        Raises:
            NoSuchRow: there is no such attempt.
        """
        with self.store._writing() as connection:
            found = _attempt_id(connection, case_id, number)
            if found is None:
                raise NoSuchRow(f"the database {self.store.where} holds no attempt {number} of case {case_id}")
            connection.execute(
                update(AGENT_ATTEMPTS).where(AGENT_ATTEMPTS.c.id == found).values(**values, updated_at=utc_now())
            )

    def spend(
        self,
        case_id: int,
        number: int,
        *,
        tokens_in: int = 0,
        tokens_out: int = 0,
        usd: float = 0.0,
        seconds: float = 0.0,
    ) -> None:
        """Add to the cost of an attempt, at once, so that a killed one has still been paid for."""
        added = {"tokens_in": tokens_in, "tokens_out": tokens_out, "usd": usd, "seconds": seconds}
        self.update_attempt(case_id, number, **{name: AGENT_ATTEMPTS.c[name] + value for name, value in added.items()})

    def attempts(self, case_id: int) -> list[StoredAttempt]:
        """Attempts of a case, oldest first."""
        query = select(*_ATTEMPT).where(AGENT_ATTEMPTS.c.case_id == case_id).order_by(AGENT_ATTEMPTS.c.number)
        with self.store._reading() as connection:
            return [_record(StoredAttempt, row) for row in connection.execute(query)]

    def spent(self, case_id: int) -> dict[str, float]:
        """Sums over the attempts of a case: tokens, usd, seconds."""
        columns = AGENT_ATTEMPTS.c
        query = select(
            func.coalesce(func.sum(columns.tokens_in + columns.tokens_out), 0),
            func.coalesce(func.sum(columns.usd), 0.0),
            func.coalesce(func.sum(columns.seconds), 0.0),
        ).where(columns.case_id == case_id)
        with self.store._reading() as connection:
            tokens, usd, seconds = connection.execute(query).one()
        return {"tokens": float(tokens), "usd": float(usd), "seconds": float(seconds)}

    # -- reviews

    def add_review(self, case_id: int, attempt: int, *, reviewer: str, decision: str, text: str = "") -> int:
        """Record a decision or a remark; its id."""
        row = AgentReviewRow(case_id=case_id, attempt=attempt, reviewer=reviewer, decision=decision, text=text)
        with self.store._writing() as connection:
            statement = insert(AGENT_REVIEWS).values(row.model_dump(exclude={"id"})).returning(AGENT_REVIEWS.c.id)
            return int(connection.execute(statement).scalar_one())

    def reviews(self, case_id: int) -> list[StoredReview]:
        """Decisions and remarks about a case, oldest first."""
        query = select(*_REVIEW).where(AGENT_REVIEWS.c.case_id == case_id).order_by(AGENT_REVIEWS.c.id)
        with self.store._reading() as connection:
            return [_record(StoredReview, row) for row in connection.execute(query)]


def _attempt_id(connection: Connection, case_id: int, number: int) -> int | None:
    query = select(AGENT_ATTEMPTS.c.id).where(AGENT_ATTEMPTS.c.case_id == case_id, AGENT_ATTEMPTS.c.number == number)
    found = connection.execute(query).scalar()
    return None if found is None else int(found)


def _record(kind: Any, row: Any) -> Any:
    names = [item.name for item in fields(kind)]
    return kind(**dict(zip(names, row, strict=True)))
