"""The same judgement on the emulated device, compiled; slow ones walk more structures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hf_adapters.diagnose import diagnose
from hf_adapters.validate import validate
from hf_adapters.validation.streaming import replaced_forward
from hf_adapters.validation.types import Validation
from hf_adapters.validation.work import host_work
from tests.validation import structures
from tests.validation.mutations import NUMERIC
from tests.validation.surgery import feed_forward_linears

pytestmark = pytest.mark.filterwarnings("ignore")


def _validated(name: str, **options: object) -> Validation:
    return validate(structures.build(name), reference="inline", **options)  # type: ignore[arg-type]


def test_a_bert_is_accepted_as_it_is() -> None:
    found = _validated("bert")
    assert found.verdict == "native", found.reason
    assert found.runner == "device"
    assert found.launches is not None
    assert found.launches >= 3 * 4, "three layers, four batches"
    assert found.simulated_us is not None
    assert found.simulated_us > 25 * found.launches, "launches alone take that"
    assert found.multiple is not None
    assert found.multiple < 2.5
    assert {key.rpartition(" ")[2] for key in found.fallbacks} <= {"(lookup)", "(integer)"}


def test_heads_of_half_a_stick_need_an_adapter() -> None:
    found = _validated("minilm")
    assert found.verdict == "adapted", found.reason
    assert found.native_reason is not None
    assert "view-stick-split" in found.native_reason
    assert "head_padding" in found.adapters
    assert found.equivalence_error is not None
    assert 0 < found.equivalence_error <= 1e-9, "the patched model was compared, not the stock one"


def test_a_refusal_names_the_module_from_the_root() -> None:
    found = diagnose(structures.build("bert-gelu-new"), stock=True)
    assert (found.kind, found.rule) == ("refused", "pow-scalar-exponent")
    assert found.module_path is not None
    assert found.module_path.startswith("encoder.layer.0.intermediate")
    assert found.source_line is not None
    assert "pow" in found.source_line


def test_work_that_is_compiled_for_the_cpu_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch._inductor.async_compile.AsyncCompile.cpp_pybinding", lambda *_: lambda *_: None)

    def moved(x: Tensor) -> Tensor:
        home, x = x.device, x.cpu()
        return (x * torch.sigmoid(x)).to(home)

    def prepared(x: Tensor, table: Tensor, ids: Tensor) -> tuple[Tensor, ...]:
        mask = torch.where(ids[:, None] > 1, 0.0, -1e4) * 2.0
        return x * x, mask.to(x.device), table.cpu()[ids + 1].to(x.device)

    x, table = (torch.ones(rows, 64, dtype=torch.float16, device="spyre") for rows in (2, 10))
    with host_work() as found, torch.no_grad():
        torch.compile(prepared)(x, table, torch.tensor([1, 2]))
        assert not found.operations
        torch.compile(moved)(x)
    assert found.operations == {"sigmoid": 1, "mul": 1}


@contextmanager
def _finished_on_the_host(model: nn.Module) -> Iterator[nn.Module]:
    stock = model.encoder.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        output = stock(*args, **kwargs)
        hidden = output.last_hidden_state
        output.last_hidden_state = (hidden.cpu() * 2.0 * 0.5).to(hidden.device)
        return output

    with replaced_forward(model.encoder, forward):
        yield model


def test_values_fetched_from_the_device_between_regions_are_noted() -> None:
    found = _validated("bert", patch=_finished_on_the_host)
    assert found.verdict == "mismatch", found.reason
    assert "fetched from the device" in found.reason
    assert found.multiple is not None
    assert found.multiple < 2.5, "the numbers themselves are right"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen3", "distilbert", "xlm-roberta", "modernbert", "gpt2", "encoder"])
def test_structures_are_accepted(name: str) -> None:
    found = _validated(name)
    assert found.accepted, (found.reason, found.failed_checks)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["gelu replaced by relu", "norm eps 1e-2", "attention scale off by sqrt(2)"])
def test_wrong_numbers_are_rejected(fault: str) -> None:
    found = _validated("bert", patch=next(m for m in NUMERIC if m.name == fault))
    assert found.verdict == "mismatch", found.reason


@pytest.mark.slow
@pytest.mark.weights
def test_real_weights_are_accepted_in_process_isolation() -> None:
    found = validate(structures.real_minilm(), weights="real")
    assert (found.verdict, found.reference, found.ladder) == ("adapted", "process", "real-weights"), found.reason
    assert found.cosine_min is not None
    assert found.cosine_min > 0.999
    assert found.neighbours_kept == 1.0


def _on_the_host(module: nn.Linear, x: Tensor) -> Tensor:
    y = F.linear(x.cpu().float(), module.weight.cpu().float(), module.bias.cpu().float())
    return y.to(x.dtype).to(x.device)


@contextmanager
def _feed_forward_on_the_host(model: nn.Module) -> Iterator[nn.Module]:
    with ExitStack() as stack:
        for linear in feed_forward_linears(model):
            stack.enter_context(replaced_forward(linear, partial(_on_the_host, linear)))
        yield model


def test_right_numbers_computed_on_the_host_are_rejected() -> None:
    found = _validated("bert", patch=_feed_forward_on_the_host)
    assert found.verdict == "mismatch", found.reason
    assert "linear on the CPU" in found.reason
    assert any("multiplications" in check for check in found.failed_checks)
    assert found.multiple is not None
    assert found.multiple < 4, "the numbers themselves are right"
