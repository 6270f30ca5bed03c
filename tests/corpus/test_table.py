"""Tables of models: what is read, and which line is wrong when something is."""

from __future__ import annotations

from pathlib import Path

import pytest

from hf_adapters.corpus import TableInvalid, import_table, read_table
from hf_adapters.store import Store

HEADER = "rank,model_id,downloads,profile_id,match,gated,no_profile_reason\n"
ROWS = (
    "1,acme/one,50,bert.tiny/v30522,exact,False,\n"
    "2,acme/two,40,,none,True,remote_only: class X\n"
    '3,"acme/three",30,bert.base/v30522,inferred,0,\n'
)


def _file(path: Path, text: str) -> Path:
    table = path / "models.csv"
    table.write_text(text, encoding="utf-8")
    return table


def test_a_table_is_read_in_rank_order(tmp_path: Path) -> None:
    lines = ROWS.splitlines(keepends=True)
    ranking = read_table(_file(tmp_path, HEADER + "".join(reversed(lines))), date="2026-01-02")
    assert (ranking.source, ranking.date) == ("table:models.csv", "2026-01-02")
    assert [(row.rank, row.model_id, row.profile_id) for row in ranking.rows] == [
        (1, "acme/one", "bert.tiny/v30522"),
        (2, "acme/two", None),
        (3, "acme/three", "bert.base/v30522"),
    ]
    assert [row.gated for row in ranking.rows] == [False, True, False]
    assert ranking.rows[1].no_profile_reason == "remote_only: class X"


def test_ids_rank_and_downloads_are_enough(tmp_path: Path) -> None:
    text = "downloads,rank,model_id,notes\n9,1,BAAI/bge-m3,x\n8,2,acme/unheard-of,y\n"
    rows = read_table(_file(tmp_path, text)).rows
    assert (rows[0].profile_id, rows[0].model_type) == ("xlmr.bge-m3/v250002", "xlm-roberta")
    assert rows[1].profile_id is None
    assert rows[1].no_profile_reason


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "lacks the column(s) rank, model_id, downloads; it has: none"),
        ("rank,downloads\n1,2\n", "lacks the column(s) model_id"),
        (HEADER, "holds no models"),
        (HEADER + "x,acme/one,5,,none,False,\n", "line 2: rank is 'x'"),
        (HEADER + "0,acme/one,5,,none,False,\n", "line 2: rank is 0"),
        (HEADER + "1,acme/one,-5,,none,False,\n", "line 2: downloads is -5"),
        (HEADER + "1,acme/one,many,,none,False,\n", "line 2: downloads is 'many'"),
        (HEADER + "1,,5,,none,False,\n", "line 2: model_id is empty"),
        (HEADER + "1,acme/one,5,bert.none/v1,exact,False,\n", "'bert.none/v1' is not a bundled profile"),
        (HEADER + "1,acme/one,5,,maybe,False,\n", "match is 'maybe'"),
        (HEADER + "1,acme/one,5,,none,perhaps,\n", "gated is 'perhaps'"),
        (HEADER + ROWS + "1,acme/four,5,,none,False,\n", "the rank 1 twice"),
        (HEADER + ROWS + "4,acme/one,5,,none,False,\n", "the model_id 'acme/one' twice"),
        (HEADER + "1,acme/one,5\n", "another number of cells"),
        (HEADER + "1,acme/one,5,,none,False,,,,\n", "another number of cells"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path: Path, text: str, what: str) -> None:
    with pytest.raises(TableInvalid) as caught:
        read_table(_file(tmp_path, text))
    assert what in str(caught.value)
    assert "models.csv" in str(caught.value)


def test_files_that_are_no_tables_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TableInvalid, match="cannot be read"):
        read_table(tmp_path / "absent.csv")
    with pytest.raises(TableInvalid, match="cannot be read"):
        read_table(tmp_path)
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"rank,model_id,downloads\n\xff\xfe\x00\n")
    with pytest.raises(TableInvalid, match="not a CSV file in UTF-8"):
        read_table(binary)


def test_an_import_fills_the_store_and_a_bad_table_leaves_it_alone(tmp_path: Path) -> None:
    with Store(tmp_path / "x.db") as store:
        store.upgrade()
        with pytest.raises(TableInvalid):
            import_table(_file(tmp_path, HEADER + ROWS + "5,acme/five,1,nonsense,exact,0,\n"), store, release="2026.07")
        assert store.sources() == {}
        summary = import_table(_file(tmp_path, HEADER + ROWS), store, release="2026.07")
        assert (summary.inserted, summary.structures) == (3, 2)
        assert store.sources() == {"table:models.csv": 3}
        assert import_table(tmp_path / "models.csv", store, release="2026.07").unchanged == 3
        assert store.find("acme/three", release="2026.07")[0].model.match == "inferred"
