"""The suite's own parts: a tolerance that rejects, expectations that are strict, a file that names real rules."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from spyre_backend import capabilities
from spyre_backend.errors import SpyreUnsupported
from tests.opinfo import expected
from tests.opinfo.expected import NUMERIC, Expected
from tests.opinfo.judge import Outcome, judge
from tests.opinfo.modules import MODULES, NAMES
from tests.opinfo.samples import CORE

VALUES = torch.tensor([1.0, -2.5, 3.75, 0.125], dtype=torch.float16)


def _off_by(units: float, function):
    """The function on the device, its result off by so many units in the last place of DL16."""

    def wrong(*args):
        return (function(*(a.cpu().float() for a in args)) * (1 + units * 2**-9)).half().to("spyre")

    return wrong


@pytest.mark.parametrize("function", [torch.exp, lambda x: torch.softmax(x, -1), lambda x: x * 3, lambda x: x.sum()])
def test_a_few_units_in_the_last_place_are_wrong(function) -> None:
    assert judge(_off_by(0, function), ((VALUES,), {}), "spyre", function).kind == "ok"
    assert judge(_off_by(12, function), ((VALUES,), {}), "spyre", function).kind == "wrong"


def test_moved_elements_must_be_exact() -> None:
    assert judge(_off_by(1, torch.clone), ((VALUES,), {}), "spyre", torch.clone).kind == "wrong"
    assert judge(lambda x: x.flip(0), ((VALUES,), {}), "spyre", torch.clone).kind == "wrong"


def test_shape_dtype_device_and_number_of_results_are_judged() -> None:
    for wrong in (lambda x: x[:2], lambda x: x.float(), lambda x: x.cpu(), lambda x: (x, x)):
        assert judge(wrong, ((VALUES,), {}), "spyre", torch.clone).kind == "wrong"


def test_refusals_and_crashes_are_told_apart() -> None:
    def refuses(x):
        raise SpyreUnsupported(op="x", rule="conv")

    def crashes(x):
        raise ValueError("no")

    assert judge(refuses, ((VALUES,), {}), "spyre", torch.clone).kind == "refused:conv"
    assert judge(crashes, ((VALUES,), {}), "spyre", torch.clone).kind == "error"


def test_expectations_are_strict() -> None:
    refusal, numeric = Expected("conv", "why"), Expected("gelu_ignores_approximate", "why")
    ok, refused, wrong = Outcome("ok"), Outcome("refused:conv"), Outcome("wrong")
    assert expected.deviations({1: refusal, 2: numeric}, {0: ok, 1: refused, 2: wrong}) == []
    for entries, found in (
        ({}, {0: refused}),
        ({}, {0: wrong}),
        ({0: refusal}, {0: ok}),
        ({0: refusal}, {0: wrong}),
        ({0: refusal}, {0: Outcome("error")}),
        ({0: refusal}, {0: Outcome("refused:dropout")}),
        ({0: numeric}, {0: refused}),
    ):
        assert len(expected.deviations(entries, found)) == 1, (entries, found)


def test_the_file_names_rules_and_known_entries(tmp_path: Path) -> None:
    entries = expected.read()
    known = {*CORE, *(info.name for info in MODULES)}
    for (name, _, _), samples in entries.items():
        assert name in known
        for entry in samples.values():
            assert entry.reason
            assert entry.rule in NUMERIC or capabilities.load("2026.07").rule(entry.rule)
    expected.write(entries, tmp_path / "again.yaml")
    assert expected.read(tmp_path / "again.yaml") == entries
    assert (tmp_path / "again.yaml").read_text() == expected.FILE.read_text()


def test_a_sample_is_listed_once(tmp_path: Path) -> None:
    item = "- {rule: conv, reason: why, at: {eager float16: 0-2}}\n"
    (tmp_path / "twice.yaml").write_text("mm:\n" + item + item)
    with pytest.raises(ValueError, match="twice"):
        expected.read(tmp_path / "twice.yaml")
    assert expected.numbers(expected.ranges([5, 0, 1, 3, 2])) == [0, 1, 2, 3, 5]


def test_every_operator_and_module_exists() -> None:
    from torch.testing._internal.common_methods_invocations import op_db

    assert set(CORE) <= {op.full_name for op in op_db}
    assert {info.module_cls.__name__ for info in MODULES} == NAMES
