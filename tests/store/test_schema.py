"""The schema's history: it leads to the tables of the code, and old databases can be read."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import create_engine, inspect
from sqlmodel import SQLModel

from hf_adapters.store import Store, models, schema
from hf_adapters.store.address import full_address
from tests.store.conftest import RELEASE

HISTORIC = Path(__file__).parent / "historic"
COLUMNS = {
    "models": (
        "id source source_date key model_id revision config_hash rank downloads model_type family profile_id stand_in "
        "match buildable pooling gated moe multimodal no_profile_reason updated_at"
    ),
    "structures": (
        "signature shape_id model_type architecture_class representative_profile_id representative_checkpoint "
        "expected_parameter_count profile created_at"
    ),
    "memberships": "profile_id release signature",
    "adapters": "name hash summary equivalence rules releases drafter trust first_seen",
    "runs": "id started_at finished_at state command release fingerprint source source_date top options versions",
    "verdicts": (
        "id run_id signature model_row_id created_at verdict reason ladder rule op error_code module_path source_line "
        "hint noise_floor floor_multiple multiple cosine_min cosine_pooled spearman neighbours_kept fallback_count "
        "fallbacks simulated_us seconds weights weights_revision config_hash seed depth cut inputs adapters versions "
        "release release_fingerprint fingerprint trust details"
    ),
    "agent_cases": (
        "id created_at updated_at state reason release subject_key label drafter options rule op module_path failure "
        "branch"
    ),
    "agent_attempts": (
        "id case_id number created_at updated_at outcome stage reason adapter_name adapter_hash source diff notes "
        "transcript metrics tokens_in tokens_out usd seconds sandboxed"
    ),
    "agent_reviews": "id case_id attempt created_at reviewer decision text",
}


def test_the_columns_are_those_that_were_agreed_on() -> None:
    tables = {name: " ".join(table.columns.keys()) for name, table in SQLModel.metadata.tables.items()}
    assert {name: tables[name] for name in COLUMNS} == COLUMNS


def test_migrating_gives_the_tables_of_the_code(address: str) -> None:
    with create_engine(full_address(address)).begin() as connection:
        schema.upgrade(connection, "x")
        assert compare_metadata(MigrationContext.configure(connection), SQLModel.metadata) == []


def test_migrating_back_leaves_nothing(address: str) -> None:
    with create_engine(full_address(address)).begin() as connection:
        schema.upgrade(connection, "x")
        schema.downgrade(connection, "base")
        assert inspect(connection).get_table_names() == ["alembic_version"]
        assert schema.state_of(connection, "x") == "empty"
        schema.upgrade(connection, "x")
        assert schema.state_of(connection, "x") == "current"


@pytest.mark.parametrize("dump", sorted(HISTORIC.glob("*.sql")), ids=lambda path: path.stem)
def test_databases_of_every_revision_can_still_be_read(dump: Path, tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    with sqlite3.connect(path) as connection:
        connection.executescript(dump.read_text(encoding="utf-8"))
    connection.close()
    with Store(path) as store:
        assert store.upgrade() == (dump.stem, schema.newest_revision())
        verdicts = {item.model.model_id: item.verdict for item in store.current(release=RELEASE)}
        assert verdicts == {
            "acme/one": "adapted",
            "acme/two": "adapted",
            "acme/three": "uncovered",
            "acme/five": "unbuildable",
        }


def test_every_revision_has_a_historic_database() -> None:
    assert {path.stem for path in HISTORIC.glob("*.sql")} == {
        script.revision for script in schema._script().walk_revisions()
    }


@pytest.mark.parametrize("column", ["verdict", "ladder"])
def test_the_database_itself_knows_the_words(address: str, column: str) -> None:
    with Store(address) as store:
        store.upgrade()
    engine = create_engine(full_address(address))
    checks = " ".join(str(check["sqltext"]) for check in inspect(engine).get_check_constraints("verdicts"))
    words = models.VERDICTS if column == "verdict" else models.LADDER
    assert all(f"'{word}'" in checks for word in words)
