"""The SQLAlchemy tables behind the SQLModel classes, for statements that work on whole columns."""

from __future__ import annotations

from sqlalchemy import Table
from sqlmodel import SQLModel

from hf_adapters.store import models


def _table(row_class: type[SQLModel]) -> Table:
    return SQLModel.metadata.tables[str(row_class.__tablename__)]


MODELS = _table(models.ModelRow)
STRUCTURES = _table(models.StructureRow)
MEMBERSHIPS = _table(models.MembershipRow)
ADAPTERS = _table(models.AdapterRow)
RUNS = _table(models.RunRow)
VERDICTS = _table(models.VerdictRow)
