"""The SQLAlchemy tables behind the SQLModel classes, for statements that work on whole columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Table
from sqlmodel import SQLModel

from hf_adapters.store import agent_models, models
from hf_adapters.store.records import VerdictRecord


def _table(row_class: type[SQLModel]) -> Table:
    return SQLModel.metadata.tables[str(row_class.__tablename__)]


MODELS = _table(models.ModelRow)
STRUCTURES = _table(models.StructureRow)
MEMBERSHIPS = _table(models.MembershipRow)
ADAPTERS = _table(models.AdapterRow)
RUNS = _table(models.RunRow)
VERDICTS = _table(models.VerdictRow)
AGENT_CASES = _table(agent_models.AgentCaseRow)
AGENT_ATTEMPTS = _table(agent_models.AgentAttemptRow)
AGENT_REVIEWS = _table(agent_models.AgentReviewRow)


def verdict_values(run_id: int, record: VerdictRecord) -> dict[str, Any]:
    """Column values of a new verdict.

    Raises:
        ValueError: not exactly one of `signature` and `model_row_id` is set, or verdict or ladder are unknown.
    """
    if (record.signature is None) == (record.model_row_id is None):
        raise ValueError("a verdict is about a structure (signature) or about a model (model_row_id), not both")
    values = record.values()
    _known("verdict", record.verdict, models.VERDICTS)
    _known("ladder", record.ladder, models.LADDER)
    return models.VerdictRow(run_id=run_id, **values).model_dump(exclude={"id"})


def _known(what: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ValueError(f"{what} {value!r} is not one of {', '.join(allowed)}")
