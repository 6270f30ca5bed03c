"""The store's front door."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sqlalchemy import func, insert, or_, select, update

from hf_adapters.corpus.profiles import Profile
from hf_adapters.corpus.ranking import Ranking
from hf_adapters.store import catalogue, current, schema, unbuildable
from hf_adapters.store._types import utc_now
from hf_adapters.store.claims import bury_runs, claims_of
from hf_adapters.store.engine import BUSY_TIMEOUT, Database
from hf_adapters.store.errors import NoSuchRow, SchemaMissing, SourceAmbiguous
from hf_adapters.store.models import AdapterRow, ModelRow, RunRow
from hf_adapters.store.records import (
    AdapterRecord,
    CurrentVerdict,
    StoredRun,
    StoredVerdict,
    StructureWork,
    VerdictRecord,
)
from hf_adapters.store.tables import ADAPTERS, MODELS, RUNS, STRUCTURES, VERDICTS, verdict_values

_RUN_FIELDS = tuple(item.name for item in fields(StoredRun))
LOCAL = "local"
"""Source of models that were checked by hand."""


class Store:
    """Models, structures, runs and verdicts in one database.

    Every method is one transaction: when it returns, its effect is on disk. All methods but `upgrade` and
    `state` need the newest schema.

    Raises:
        StoreError: one of its subclasses, whenever the database cannot be used.
    """

    def __init__(self, url_or_path: str | Path, *, busy_timeout: float = BUSY_TIMEOUT) -> None:
        """Name the database; it is opened at the first use.

        Args:
            url_or_path: file of an SQLite database, or an SQLAlchemy URL.
            busy_timeout: seconds to wait for another process that holds the database locked.
        """
        self._database = Database(url_or_path, busy_timeout=busy_timeout)
        self._checked = False
        self._claims = claims_of(self._database)
        self._own_run: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def where(self) -> str:
        """The database as messages name it (without a password)."""
        return self._database.where

    def close(self) -> None:
        """Close all connections and give up all claims; the next use opens new ones."""
        self._claims.close()
        self._database.close()

    # -- schema

    def upgrade(self) -> tuple[str | None, str]:
        """Create or migrate the tables; schema revision before (None: there was none) and after."""
        if self.state() == "current":
            return schema.newest_revision(), schema.newest_revision()
        with self._database.writing() as connection:
            return schema.upgrade(connection, self.where)

    def state(self) -> schema.State:
        """Whether the schema is "empty", "old" or "current"."""
        if self._database.path is not None and not self._database.path.exists():
            return "empty"
        with self._database.reading() as connection:
            return schema.state_of(connection, self.where)

    def _reading(self) -> Any:
        self._check()
        return self._database.reading()

    def _writing(self) -> Any:
        self._check()
        return self._database.writing()

    def _check(self) -> None:
        if not self._checked:
            if self._database.path is not None and not self._database.path.exists():
                raise SchemaMissing(
                    f"the database {self.where} does not exist yet", hint="run `hf-adapters db upgrade` for it first"
                )
            with self._database.reading() as connection:
                schema.require_current(connection, self.where)
            self._checked = True

    # -- models

    def put_ranking(self, ranking: Ranking, profiles: Mapping[str, Profile], *, release: str) -> catalogue.PutSummary:
        """Insert or update a ranking's models with their structures; see `catalogue.put_ranking`."""
        with self._writing() as connection:
            return catalogue.put_ranking(connection, ranking, profiles, release=release)

    def put_profiles(self, profiles: Iterable[Profile], *, release: str) -> dict[str, str]:
        """Make sure that every profile has its structure; profile id -> signature."""
        with self._writing() as connection:
            return catalogue.put_structures(connection, profiles, release=release)

    def put_local_model(self, ref: str, *, profile: Profile | None, release: str, revision: str | None = None) -> int:
        """Row id of a model that was checked by hand: the ranked model of that id, else a row of source "local"."""
        with self._writing() as connection:
            if profile is not None:
                catalogue.put_structures(connection, [profile], release=release)
            found = connection.execute(
                select(MODELS.c.id)
                .where(or_(MODELS.c.model_id == ref, (MODELS.c.source == LOCAL) & (MODELS.c.key == ref)))
                .order_by(MODELS.c.source == LOCAL, MODELS.c.updated_at.desc())
            ).scalar()
            if found is not None:
                return int(found)
            row = ModelRow(
                source=LOCAL,
                key=ref,
                revision=revision,
                model_type=profile.model_type if profile else "",
                family=profile.model_type if profile else "unknown",
                profile_id=profile.profile_id if profile else None,
                match="exact" if profile else "none",
            )
            values = row.model_dump(exclude={"id"})
            return int(connection.execute(insert(MODELS).values(values).returning(MODELS.c.id)).scalar_one())

    def sources(self) -> dict[str, int]:
        """Rankings in the store, oldest first, with their number of ranked models."""
        with self._reading() as connection:
            ranked = select(MODELS.c.source, func.count()).where(MODELS.c.rank.is_not(None))
            found = connection.execute(ranked.group_by(MODELS.c.source).order_by(func.min(MODELS.c.id)))
            return {str(source): int(count) for source, count in found}

    def default_source(self) -> str:
        """The ranking of the newest run that has one, else the only ranking.

        Raises:
            NoSuchRow: there is no ranking.
            SourceAmbiguous: there are several and no run tells which is meant.
        """
        counts = self.sources()
        with self._reading() as connection:
            for source in connection.execute(select(RUNS.c.source).order_by(RUNS.c.id.desc())).scalars():
                if source in counts:
                    return str(source)
        if not counts:
            raise NoSuchRow(f"the database {self.where} holds no ranking", hint="run a sweep or a corpus command first")
        if len(counts) > 1:
            raise SourceAmbiguous(f"the database {self.where} holds several rankings: {', '.join(sorted(counts))}")
        return next(iter(counts))

    # -- runs and verdicts

    def begin_run(
        self,
        *,
        release: str,
        fingerprint: str,
        source: str,
        source_date: str | None = None,
        command: str = "",
        top: int | None = None,
        options: Mapping[str, Any] | None = None,
        versions: Mapping[str, str] | None = None,
    ) -> int:
        """Record that a command starts to make verdicts; its run id.

        Runs of the ranking that are left running count as interrupted, unless another process is at work on them.
        """
        row = RunRow(
            release=release,
            fingerprint=fingerprint,
            source=source,
            source_date=source_date,
            command=command,
            top=top,
            options=dict(options or {}),
            versions=dict(versions or {}),
        )
        with self._writing() as connection:
            self._claims.drop(f"run/{self._own_run}")
            bury_runs(connection, self._claims, source)
            values = row.model_dump(exclude={"id"})
            run_id = int(connection.execute(insert(RUNS).values(values).returning(RUNS.c.id)).scalar_one())
            self._claims.take(f"run/{run_id}")
            self._own_run = run_id
            return run_id

    def claim(self, signature: str, *, release: str, fingerprint: str, since: int) -> bool:
        """Claim a structure for this process, until `unclaim`, `close` or its end.

        Args:
            signature: the structure.
            release: emulated release.
            fingerprint: what its verdict will be made under.
            since: newest verdict that was known when the work was planned (`newest_verdict`).

        Returns:
            False when another process is at work on it, or has given it a verdict since then.
        """
        if not self._claims.take(f"{release}/{signature}"):
            return False
        with self._reading() as connection:
            found = current.history(connection, [VERDICTS.c.signature == signature], since=since)
        if any((item.release, item.fingerprint) == (release, fingerprint) for item in found):
            self.unclaim(signature, release=release)
            return False
        return True

    def unclaim(self, signature: str, *, release: str) -> None:
        """Let go of a structure."""
        self._claims.drop(f"{release}/{signature}")

    def newest_verdict(self) -> int:
        """Id of the newest verdict, 0 when there is none."""
        with self._reading() as connection:
            return int(connection.execute(select(func.max(VERDICTS.c.id))).scalar() or 0)

    def end_run(self, run_id: int, state: str = "finished") -> None:
        """Record how a run ended ("finished" or "interrupted")."""
        with self._writing() as connection:
            connection.execute(update(RUNS).where(RUNS.c.id == run_id).values(state=state, finished_at=utc_now()))

    def runs(self, limit: int = 20) -> list[StoredRun]:
        """The newest runs, newest first."""
        columns = [RUNS.c[name] for name in _RUN_FIELDS]
        with self._reading() as connection:
            found = connection.execute(select(*columns).order_by(RUNS.c.id.desc()).limit(limit)).all()
        return [StoredRun(**dict(zip(_RUN_FIELDS, row, strict=True))) for row in found]

    def record_verdict(self, run_id: int, record: VerdictRecord) -> int:
        """Append one verdict; its id.

        Raises:
            ValueError: not exactly one of `signature` and `model_row_id` is set, or verdict or ladder are unknown.
        """
        return self.record_verdicts(run_id, [record])[0]

    def record_verdicts(self, run_id: int, records: Sequence[VerdictRecord]) -> list[int]:
        """Append verdicts in one transaction; their ids."""
        values = [verdict_values(run_id, record) for record in records]
        if not values:
            return []
        with self._writing() as connection:
            statement = insert(VERDICTS).returning(VERDICTS.c.id, sort_by_parameter_order=True)
            return [int(found) for found in connection.execute(statement, values).scalars()]

    def record_unbuildable(
        self,
        run_id: int,
        *,
        source: str,
        release: str,
        release_fingerprint: str,
        fingerprint: str,
        top: int | None = None,
    ) -> int:
        """Give every ranked model without a structure its "unbuildable" verdict; how many were new."""
        with self._writing() as connection:
            records = unbuildable.missing_verdicts(
                connection,
                source=source,
                release=release,
                release_fingerprint=release_fingerprint,
                fingerprint=fingerprint,
                top=top,
            )
            if records:
                connection.execute(insert(VERDICTS), [verdict_values(run_id, record) for record in records])
            return len(records)

    def put_adapters(self, adapters: Iterable[AdapterRecord]) -> int:
        """Register adapter versions that are not known yet; how many were new."""
        with self._writing() as connection:
            known = {tuple(pair) for pair in connection.execute(select(ADAPTERS.c.name, ADAPTERS.c.hash))}
            fresh = [
                AdapterRow(**record.values()).model_dump()
                for record in adapters
                if (record.name, record.hash) not in known
            ]
            if fresh:
                connection.execute(insert(ADAPTERS), fresh)
            return len(fresh)

    def adapters(self) -> list[AdapterRecord]:
        """Every adapter version that was ever registered, by name and time."""
        names = [item.name for item in fields(AdapterRecord)]
        with self._reading() as connection:
            found = connection.execute(
                select(*(ADAPTERS.c[name] for name in names)).order_by(ADAPTERS.c.name, ADAPTERS.c.first_seen)
            )
            return [AdapterRecord(**dict(zip(names, row, strict=True))) for row in found]

    # -- questions

    def pending(
        self,
        *,
        release: str,
        source: str,
        fingerprint: str | Mapping[str, str],
        top: int | None = None,
        families: Collection[str] | None = None,
        retry: Collection[str] = (),
    ) -> list[StructureWork]:
        """Structures without a verdict under this fingerprint, by impact; see `current.pending_structures`."""
        with self._reading() as connection:
            return current.pending_structures(
                connection,
                release=release,
                source=source,
                fingerprint=fingerprint,
                top=top,
                families=families,
                retry=retry,
            )

    def structures(
        self, *, release: str, source: str, top: int | None = None, families: Collection[str] | None = None
    ) -> list[StructureWork]:
        """All structures of a ranking, highest impact first."""
        with self._reading() as connection:
            return current.structures_of(connection, release=release, source=source, top=top, families=families)

    def current(self, *, release: str, source: str | None = None, top: int | None = None) -> list[CurrentVerdict]:
        """The current verdict of every model of a ranking (the default one), in rank order."""
        source = source or self.default_source()
        with self._reading() as connection:
            return current.current_verdicts(connection, release=release, source=source, top=top)

    def find(self, ref: str, *, release: str) -> list[CurrentVerdict]:
        """Current verdicts of the models that a reference names.

        A reference is a model id, a local path, `rank/<n>`, a profile id, a representative checkpoint, or a
        structural signature. For the last three, models that share the structure answer for it, best rank first.
        """
        with self._reading() as connection:
            by_name = or_(MODELS.c.model_id == ref, MODELS.c.key == ref)
            ids = set(connection.execute(select(MODELS.c.id).where(by_name)).scalars())
            if not ids:
                profiles = catalogue.profiles_named(connection, ref, release)
                ids = set(connection.execute(select(MODELS.c.id).where(MODELS.c.profile_id.in_(profiles))).scalars())
            return current.current_verdicts(connection, release=release, model_row_ids=ids)

    def history(self, *, signature: str | None = None, model_row_id: int | None = None) -> list[StoredVerdict]:
        """All verdicts about a structure or a model, newest first."""
        conditions = []
        if signature is not None:
            conditions.append(VERDICTS.c.signature == signature)
        if model_row_id is not None:
            conditions.append(VERDICTS.c.model_row_id == model_row_id)
        if not conditions:
            raise ValueError("name a structure (signature) or a model (model_row_id)")
        with self._reading() as connection:
            return current.history(connection, conditions)

    def profile_of(self, signature: str) -> Profile:
        """The profile that is built for a structure.

        Raises:
            NoSuchRow: there is no such structure.
        """
        with self._reading() as connection:
            found = connection.execute(select(STRUCTURES.c.profile).where(STRUCTURES.c.signature == signature)).scalar()
        if found is None:
            raise NoSuchRow(f"the database {self.where} holds no structure {signature}")
        return Profile.from_json(found)
