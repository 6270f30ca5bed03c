"""The facade: arguments, records, verdicts for failures, the model left as it was."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import hf_adapters
from hf_adapters.validate import ValidationInputError, validate
from hf_adapters.validation import functions, reference
from hf_adapters.validation.conduct import stock_work
from hf_adapters.validation.inputs import InputSet, InputSpec, draw, spec_of, standard_sets, structure_seed
from hf_adapters.validation.recording import Pooling, Recording
from hf_adapters.validation.reference import ReferenceProcessError, ReferenceServer
from hf_adapters.validation.runners import Execution, Simulated, weights_digest
from hf_adapters.validation.source import ModelSource
from hf_adapters.validation.streaming import replaced_forward
from hf_adapters.validation.types import Thresholds, Validation
from spyre_backend.errors import SpyreUnsupported
from tests.validation import structures
from tests.validation.surgery import replaced_child, with_hook


class Failing:
    """A runner that raises."""

    name = "failing"

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __call__(self, model: nn.Module, input_sets: Sequence[InputSet], pooling: Pooling) -> Execution:
        raise self.error


class FallingBack(Simulated):
    """Right numbers, with a computation reported as done on the CPU."""

    name = "falling back"

    def __call__(self, model: nn.Module, input_sets: Sequence[InputSet], pooling: Pooling) -> Execution:
        done = super().__call__(model, input_sets, pooling)
        counts = {("aten.embedding.default", "lookup"): 4, ("aten.sin.default", "compute"): 2}
        return Execution(recording=done.recording, fallbacks=counts, launches=None, layers=done.layers)


class Idle(Simulated):
    """Right numbers that no launched program has computed."""

    name = "idle"

    def __call__(self, model: nn.Module, input_sets: Sequence[InputSet], pooling: Pooling) -> Execution:
        done = super().__call__(model, input_sets, pooling)
        return Execution(recording=done.recording, launches=1, layers=done.layers)


def test_a_refusal_is_uncovered_with_its_fields() -> None:
    refusal = SpyreUnsupported(
        op="aten.sin.default",
        rule="op-unsupported",
        module_path="encoder.layer.0",
        source_line="x.py:3",
        hint="precompute",
    )
    wrapped = RuntimeError("backend failed")
    wrapped.__cause__ = refusal
    found = validate(structures.build("bert"), reference="inline", runner=Failing(wrapped))
    assert (found.verdict, found.op, found.rule, found.module_path) == (
        "uncovered",
        "aten.sin.default",
        "op-unsupported",
        "encoder.layer.0",
    )
    assert (found.source_line, found.hint, found.ladder) == ("x.py:3", "precompute", "traced")


def test_any_other_error_is_a_crash() -> None:
    found = validate(structures.build("bert"), reference="inline", runner=Failing(KeyError("lost")))
    assert found.verdict == "crashed"
    assert "KeyError" in found.reason


def test_right_numbers_with_a_fallback() -> None:
    found = validate(structures.build("bert"), reference="inline", runner=FallingBack())
    assert found.verdict == "fallback"
    assert found.fallbacks == {"aten.embedding.default (lookup)": 4, "aten.sin.default (compute)": 2}
    assert "aten.sin" in found.reason
    assert not found.accepted


def test_right_numbers_that_the_device_did_not_compute() -> None:
    found = validate(structures.build("bert"), reference="inline", runner=Idle())
    assert found.verdict == "mismatch"
    assert "computed on the device" in found.reason


class Lazy(Simulated):
    """Right numbers for half of the work."""

    name = "lazy"

    def __call__(self, model: nn.Module, input_sets: Sequence[InputSet], pooling: Pooling) -> Execution:
        done = super().__call__(model, input_sets, pooling)
        assert done.multiplications
        return Execution(recording=done.recording, multiplications=done.multiplications // 2, layers=done.layers)


def test_right_numbers_for_too_little_work() -> None:
    found = validate(structures.build("bert"), reference="process", runner=Lazy())
    assert found.verdict == "mismatch"
    assert "multiplications" in found.reason


def test_a_stock_model_that_yields_nan_is_no_reference() -> None:
    model = structures.build("bert")
    with torch.no_grad():
        model.encoder.layer[1].output.dense.weight[0, 0] = float("nan")
    found = validate(model, reference="inline", runner=Simulated())
    assert found.verdict == "unbuildable"
    assert "NaN" in found.reason
    assert validate(model, reference="process", runner=Simulated()).reason == found.reason


def test_the_model_is_left_as_it_was() -> None:
    model = structures.build("minilm").train()
    digest, kind, attributes = weights_digest(model), type(model), set(model.__dict__)
    hf_adapters.validate(model, reference="inline", runner=Simulated())
    assert model.training
    assert (weights_digest(model), type(model), set(model.__dict__)) == (digest, kind, attributes)


def test_both_judges_agree_and_verdicts_are_deterministic() -> None:
    model = structures.build("qwen3")
    source = ModelSource(builder=structures.build, arguments={"name": "qwen3"})
    inline = validate(model, reference="inline", runner=Simulated())
    ours = validate(model, reference="process", runner=Simulated())
    theirs = validate(model, reference="process", runner=Simulated(), source=source)
    for found in (ours, theirs):
        assert found.reference == "process"
        assert (found.multiple, found.noise_floor, found.places) == (inline.multiple, inline.noise_floor, inline.places)


def test_a_source_with_other_weights_is_noticed() -> None:
    source = ModelSource(builder=structures.build, arguments={"name": "bert", "seed": 1})
    found = validate(structures.build("bert"), reference="process", runner=Simulated(), source=source)
    assert found.verdict == "mismatch"
    assert any("weights" in line for line in found.failed_checks)


def test_the_record_survives_json() -> None:
    found = validate(
        structures.build("bert"), reference="inline", runner=Simulated(), weights="real", depth="distinct layers"
    )
    again = Validation.from_dict(json.loads(found.to_json()))
    assert again == found
    assert (found.ladder, found.depth, found.runner) == ("real-weights", "distinct layers", "simulated")
    assert set(found.versions) >= {"torch", "transformers", "capabilities"}
    newer = {**found.to_dict(), "a_field_of_a_later_version": 1}
    assert Validation.from_dict(newer) == found


def test_arguments_that_cannot_be_validated() -> None:
    model = structures.build("bert")
    with pytest.raises(ValidationInputError, match="not its name"):
        validate("bert")  # type: ignore[arg-type]
    with pytest.raises(ValidationInputError, match=r"float\(\)"):
        validate(structures.build("bert").half())
    with pytest.raises(ValidationInputError, match="pooling"):
        validate(model, pooling="max")  # type: ignore[arg-type]
    with pytest.raises(ValidationInputError, match="below 1"):
        validate(model, floor_multiple=0.5)
    with pytest.raises(ValidationInputError, match="input_ids"):
        validate(model, inputs=[])
    with hf_adapters.patched(model), pytest.raises(ValidationInputError, match="unpatch"):
        validate(model)
    with pytest.raises(ValueError, match="no token embeddings"):
        validate(nn.Linear(2, 2), reference="inline")


def test_inputs_cover_what_they_promise() -> None:
    model = structures.build("xlm-roberta")
    spec = spec_of(model)
    sets = standard_sets(spec, structure_seed(model))
    assert {s.padding for s in sets} == {"right", "left", "none"}
    assert sets[0].kwargs["input_ids"].shape == sets[3].kwargs["input_ids"].shape
    assert not torch.equal(sets[0].kwargs["input_ids"], sets[3].kwargs["input_ids"])
    assert all(s.kwargs["input_ids"].shape[1] <= spec.max_length for s in sets)
    assert spec.max_length == 94, "positions start behind the padding id"
    assert any(s.valid.sum() % 2 for s in sets)
    assert 1 in sets[0].valid.sum(1)
    assert spec.pad_token not in sets[0].kwargs["input_ids"]
    window = standard_sets(spec_of(structures.build("modernbert")), 0)[-1]
    assert window.use == "float64"
    assert window.kwargs["input_ids"].shape[1] > 8


def test_rows_hold_tokens_and_not_their_stand_ins() -> None:
    spec = InputSpec(vocabulary=4, max_length=64, pad_token=1, token_types=0, accepts=("attention_mask",), mask_token=2)
    drawn = draw(spec, name="few tokens", lengths=(64, 1, 1, 1), padding="right", seed=5)
    assert set(drawn.kwargs["input_ids"].unique().tolist()) == {0, 3}


def test_a_fault_outside_the_recorded_range_is_found_by_the_tails() -> None:
    model = structures.build("bert")
    batch = draw(spec_of(model), name="a", lengths=(9, 5), padding="right", seed=0)
    site = "encoder.layer.0.intermediate.intermediate_act_fn"
    parent = model.encoder.layer[0].intermediate
    stock = parent.intermediate_act_fn

    def with_range(limit: float) -> Callable[[nn.Module], AbstractContextManager[nn.Module]]:
        clamped = type("Clamped", (nn.Module,), {"forward": lambda self, x: stock(x.clamp(-limit, limit))})()

        @contextmanager
        def patch(patched: nn.Module) -> Iterator[nn.Module]:
            with replaced_child(parent, "intermediate_act_fn", clamped):
                yield patched

        return patch

    right = functions.compare_sites(model, [site], with_range(1e9), batch, Thresholds())
    assert [check.passed for check in right] == [True]
    wrong = functions.compare_sites(model, [site], with_range(20.0), batch, Thresholds())
    assert [(check.where, check.passed) for check in wrong] == [(site, False)]
    assert wrong[0].detail.endswith(("large", "ramp", "one outlier", "positive"))


def test_a_module_whose_contract_changed_is_compared_where_it_is_called() -> None:
    model = structures.build("bert")
    batch = draw(spec_of(model), name="a", lengths=(9, 5), padding="right", seed=0)
    block = model.encoder.layer[0]

    @contextmanager
    def swapped(patched: nn.Module) -> Iterator[nn.Module]:
        """The halves of the feed-forward block change places, and its second map knows."""
        first, second = block.intermediate, block.output.dense
        turned = second.weight.roll(128, 1)
        with (
            with_hook(first, lambda _m, _a, out: out.roll(128, -1)),
            replaced_forward(second, lambda x: F.linear(x, turned, second.bias)),
        ):
            yield patched

    found = functions.compare_sites(model, ["encoder.layer.0.intermediate"], swapped, batch, Thresholds())
    assert [(check.where, check.passed) for check in found] == [("encoder.layer.0", True)]


@contextmanager
def _server() -> Iterator[ReferenceServer]:
    server = ReferenceServer()
    try:
        yield server
    finally:
        server.close()


def test_a_dead_reference_process_is_an_error_and_the_next_one_works(monkeypatch: pytest.MonkeyPatch) -> None:
    with _server() as dead:
        monkeypatch.setattr(reference, "_shared", dead)
        dead._process.kill()
        dead._process.join()
        with pytest.raises(ReferenceProcessError, match="ended"):
            dead.call("close", None)
        assert reference.shared_server() is not dead
    reference.shared_server().close()


def test_padding_multiplies_only_what_runs_over_the_tokens() -> None:
    stock = Recording({"a/layer.0": torch.zeros(2, 12, 64), "a/pooled": torch.zeros(2, 64)})
    padded = Recording({"a/layer.0": torch.zeros(2, 64, 64)})
    table, tokens, rows = frozenset({512, 64}), frozenset({2, 12, 64}), frozenset({24, 64})
    products = {table: 1000, tokens: 30, rows: 60}
    assert stock_work(products, stock, padded) == pytest.approx(1000 + (30 + 60) * 64 / 12)
    assert stock_work(products, stock, stock) == 1090
    assert stock_work(products, padded, stock) == 1090, "fewer positions than stock are no licence to do less"


_KILLED = """
import time
from hf_adapters.validation.reference import ProcessJudge, shared_server
from hf_adapters.validation.source import ModelSource
from hf_adapters.validation.types import Thresholds

def slow():
    time.sleep(600)

if __name__ == "__main__":
    judge = ProcessJudge(ModelSource(builder=slow, arguments={}), (), "mean", Thresholds())
    print(shared_server()._process.pid, flush=True)
    time.sleep(600)
"""


def test_the_reference_process_ends_with_the_one_that_asked(tmp_path: Path) -> None:
    script = tmp_path / "asks.py"
    script.write_text(_KILLED)
    asking = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert asking.stdout is not None
    pid = int(asking.stdout.readline())
    asking.kill()
    asking.wait()
    deadline = time.monotonic() + 60
    while _runs(pid):
        assert time.monotonic() < deadline, "it goes on computing for nobody"
        time.sleep(0.1)


def _runs(pid: int) -> bool:
    """A process that has ended and is not waited for is a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
