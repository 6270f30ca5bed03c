"""What other people rely on: public names and command-line options. A change here is a decision, not an accident."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer

import hf_adapters
from hf_adapters.cli import app, main
from hf_adapters.report import FORMATS
from hf_adapters.report.rows import VERDICTS as REPORTED
from hf_adapters.store import ACCEPTED, LADDER, VERDICTS

PUBLIC_NAMES = {
    "Adapter",
    "AdapterError",
    "DeviceUnavailableError",
    "HfAdaptersError",
    "InputError",
    "ModelTypeError",
    "NotPatchedError",
    "PatchConflictError",
    "PatchReport",
    "SequenceTooLongError",
    "TrainingModeError",
    "UnknownAdapterError",
    "UnknownTargetError",
    "UnsupportedOptionError",
    "WeightRangeError",
    "catalogue",
    "compile",
    "decompile",
    "diagnose",
    "patch",
    "patch_report",
    "patched",
    "unpatch",
    "validate",
}

COMMANDS: dict[str, set[str]] = {
    "adapters controls": {"--adapter", "--backend-release", "--db", "--structures"},
    "adapters list": {"--backend-release", "--db"},
    "adapters show": {"NAME"},
    "agent graph": set(),
    "agent resume": {"CASE_ID", "--db", "--model", "--quiet", "--repo"},
    "agent run": {
        "--backend-release",
        "--budget-hours",
        "--budget-tokens",
        "--budget-usd",
        "--db",
        "--drafter",
        "--max-attempts",
        "--model",
        "--quiet",
        "--repo",
        "--structure",
        "--top-blocking",
        "--unsafe-no-sandbox",
    },
    "agent show": {"CASE_ID", "--db", "--json"},
    "check": {"MODEL", "--backend-release", "--db", "--dtype", "--full-depth", "--json", "--task"},
    "corpus import": {"FILE", "--backend-release", "--db"},
    "corpus info": {"--db"},
    "corpus profiles": {"--family"},
    "corpus pull": {"--backend-release", "--db", "--top"},
    "db upgrade": {"--db"},
    "diagnose": {"MODEL", "--backend-release", "--json", "--save", "--stock"},
    "explain": {"MODEL", "--backend-release", "--stage", "--stock"},
    "profile": {"MODEL", "--backend-release", "--batch", "--length", "--stock", "--trace"},
    "releases": set(),
    "report": {"--backend-release", "--db", "--format", "--output", "-o", "--source", "--top"},
    "review approve": {"CASE_ID", "--comment", "--db", "--repo", "--reviewer"},
    "review comment": {"CASE_ID", "--db", "--reviewer", "--text"},
    "review list": {"--db"},
    "review reject": {"CASE_ID", "--db", "--reason", "--repo", "--reviewer"},
    "review show": {"CASE_ID", "--db", "--json"},
    "show": {"MODEL", "--backend-release", "--db", "--json"},
    "sweep": {
        "--backend-release",
        "--db",
        "--dtype",
        "--html",
        "--jobs",
        "--limit",
        "--memory",
        "--only",
        "--retry",
        "--source",
        "--timeout",
        "--top",
    },
}  # fmt: skip


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every command below a group, with its full name."""
    children = getattr(command, "commands", None)
    if not children:
        yield " ".join(path), command
        return
    for name, child in children.items():
        yield from commands(child, (*path, name))


def options(command: Any) -> set[str]:
    """Visible options and arguments of a command."""
    visible = (parameter for parameter in command.params if not getattr(parameter, "hidden", False))
    return {
        name
        for parameter in visible
        for name in (parameter.opts if parameter.param_type_name == "option" else [parameter.name.upper()])
    }


def test_public_names() -> None:
    assert set(hf_adapters.__all__) == PUBLIC_NAMES
    for name in PUBLIC_NAMES:
        assert callable(getattr(hf_adapters, name)), name


def test_command_line_options() -> None:
    assert {name: options(command) for name, command in commands(typer.main.get_command(app))} == COMMANDS


def test_report_formats() -> None:
    assert tuple(FORMATS) == ("terminal", "json", "html", "md", "csv")


def test_verdicts_and_ladder() -> None:
    assert VERDICTS == (
        "native", "adapted", "fallback", "mismatch", "uncovered", "unbuildable", "crashed", "timed-out",
    )  # fmt: skip
    assert (*VERDICTS, "pending") == REPORTED
    assert ACCEPTED == ("native", "adapted")
    assert LADDER == (
        "catalogued", "built", "traced", "lowered", "executed", "accurate", "real-weights", "reviewed",
    )  # fmt: skip


@pytest.mark.parametrize("name", ["", *COMMANDS, "corpus", "db", "adapters", "agent", "review"])
def test_every_help_has_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*name.split(), "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert f"hf-adapters {name}".strip() in text.partition("Usage:")[2].partition("hf-adapters")[2], text


def test_help_imports_nothing_heavy() -> None:
    heavy = {"torch", "transformers", "sqlalchemy", "plotly", "huggingface_hub", "numpy"}
    code = f"import sys; from hf_adapters.cli import main; main(['--help']); print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_finished_sweep_is_recognised_without_torch(tmp_path: Any) -> None:
    code = (
        "import sys; from tests.cli.pinned import pin; from hf_adapters.cli import main; pin()\n"
        "code = main(['sweep', '--top', '5', '--db', 's.db', '--jobs', '1', '--work', 'tests.sweep.fakes:judge'])\n"
        "print(code, [m for m in ('torch', 'transformers') if m in sys.modules])"
    )
    from tests.cli.conftest import SEARCH_PATH

    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            env={"PYTHONPATH": SEARCH_PATH, "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
    assert "0 to try" in done.stdout
    assert done.stdout.splitlines()[-1] == "0 []"
