"""`corpus pull` from a local server that speaks the Hub's API, then a sweep of what it brought."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hf_adapters.corpus import load_profiles
from tests.cli.conftest import FAKE_JUDGE, SEARCH_PATH, Run
from tests.corpus.hub_server import FakeModel, serving


def models() -> list[FakeModel]:
    config = json.dumps({**load_profiles()["bert.tiny/v30522"].config, "architectures": ["BertModel"]}).encode()
    return [
        FakeModel("acme/first", 900, {"config.json": config}),
        FakeModel("acme/gated", 700, {"config.json": config}, gated=True),
        FakeModel("acme/truncated", 600, {"config.json": config[:30]}),
        FakeModel("acme/last", 100, {"config.json": config}, pipeline_tag="sentence-similarity"),
    ]


@pytest.mark.slow
def test_a_pulled_ranking_is_swept_and_bad_entries_keep_their_reason(hf_adapters: Run, tmp_path: Path) -> None:
    with serving(models()) as server:
        environment = {"HF_ENDPOINT": server.url, "HF_HOME": str(tmp_path), "HOME": str(tmp_path), "PATH": ""}
        pulled = subprocess.run(
            [sys.executable, "-m", "hf_adapters.cli", "corpus", "pull", "--top", "10", "--db", "s.db"],
            cwd=tmp_path,
            env={**environment, "PYTHONPATH": SEARCH_PATH},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
    assert pulled.returncode == 0, pulled.stderr
    assert "hf-adapters sweep --source hub --top 10 --db s.db" in pulled.stdout
    assert "acme/truncated: " in pulled.stderr
    assert "Traceback" not in pulled.stderr
    done = hf_adapters("sweep", "--db", "s.db", "--top", "10", "--jobs", "1", "--work", FAKE_JUDGE)
    assert done.returncode == 0, done.stderr
    figures = json.loads(hf_adapters("report", "--db", "s.db", "--format", "json").stdout)
    assert figures["ranking_source"] == "hub"
    assert figures["coverage"]["10"]["accepted"] == 2
    assert figures["verdicts"]["unbuildable"] == 2
    assert figures["verdicts"]["pending"] == 0
    assert "not valid JSON" in hf_adapters("show", "acme/truncated", "--db", "s.db").stdout
