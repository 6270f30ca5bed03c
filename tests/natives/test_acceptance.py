"""The known-wrong mutations on our own structures, and the mistakes that only they invite: each is rejected."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
from torch import nn

from hf_adapters import validate
from hf_adapters.corpus import load_profiles
from hf_adapters.corpus.build import build_model
from hf_adapters.natives.jina_bert import JinaBertSelfAttention
from hf_adapters.natives.nomic_bert_moe import NomicBertMoeExperts, NomicBertMoeRouter
from hf_adapters.validation.runners import Simulated
from tests.validation.mutations import NUMERIC, Mutation
from tests.validation.surgery import replaced_attribute, replaced_child, with_hook, with_pre_hook

SMALL: dict[str, Any] = {
    "vocab_size": 503, "hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 256,
}  # fmt: skip
PROFILES = {
    "gate first": "jina_bert.small/v30528",
    "gate last": "jina_bert.code/v61056",
    "experts": "nomic_moe.v2/v250048",
}


def build(kind: str) -> nn.Module:
    profile = load_profiles()[PROFILES[kind]]
    return build_model(replace(profile, config={**profile.config, **SMALL})).model


def _no_slopes(model: nn.Module, stack: ExitStack) -> int:
    """Distances between tokens are left out, which are the only positions that there are."""
    found = [module for module in model.modules() if isinstance(module, JinaBertSelfAttention)]
    for module in found:
        stack.enter_context(with_pre_hook(module, lambda _m, args: (*args[:2], args[2] * 0)))
    return len(found)


def _other_half(model: nn.Module, stack: ExitStack) -> int:
    """The gate is the other half of the fused projection."""
    found = [module for name, module in model.named_modules() if name.endswith(("gated_layers", "up_gated_layer"))]
    for module in found:
        stack.enter_context(with_hook(module, lambda _m, _a, out: out.roll(out.shape[-1] // 2, -1)))
    return len(found)


def _no_qk_norm(model: nn.Module, stack: ExitStack) -> int:
    found = [module for module in model.modules() if hasattr(module, "layer_norm_q")]
    for module in found:
        stack.enter_context(replaced_child(module, "layer_norm_q", nn.Identity()))
    return len(found)


def _one_expert(model: nn.Module, stack: ExitStack) -> int:
    found = [module for module in model.modules() if isinstance(module, NomicBertMoeRouter)]
    for module in found:
        stack.enter_context(replaced_attribute(module, "top_k", 1))
    return len(found)


def _normalised_gates(model: nn.Module, stack: ExitStack) -> int:
    found = [module for module in model.modules() if isinstance(module, NomicBertMoeRouter)]
    for module in found:
        stack.enter_context(with_hook(module, lambda _m, _a, out: out / out.sum(-1, keepdim=True)))
    return len(found)


def _no_shared_bias(model: nn.Module, stack: ExitStack) -> int:
    found = [module for module in model.modules() if isinstance(module, NomicBertMoeExperts)]
    for module in found:
        stack.enter_context(with_hook(module, lambda m, _a, out: out - m.bias.to(out.dtype)))
    return len(found)


def _gates_outside(model: nn.Module, stack: ExitStack) -> int:
    """Experts are exchanged: the first one's gate goes to the second one."""
    found = [module for module in model.modules() if isinstance(module, NomicBertMoeRouter)]
    for module in found:
        stack.enter_context(with_hook(module, lambda _m, _a, out: out.roll(1, -1)))
    return len(found)


OWN = (
    Mutation(8, "no distances between tokens", _no_slopes),
    Mutation(1, "gate and value exchanged", _other_half),
    Mutation(9, "queries not normalised", _no_qk_norm),
    Mutation(5, "one expert instead of two", _one_expert),
    Mutation(6, "gates normalised again", _normalised_gates),
    Mutation(11, "shared bias left out", _no_shared_bias),
    Mutation(4, "experts exchanged", _gates_outside),
)


def _cases() -> list[Any]:
    built = {kind: build(kind) for kind in PROFILES}
    return [
        pytest.param(kind, mutation, id=f"{kind}-{mutation.number}-{mutation.name}")
        for kind, model in built.items()
        for mutation in (*NUMERIC, *OWN)
        if mutation.concerns(model)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "mutation"), _cases())
def test_wrong_numbers_are_rejected(kind: str, mutation: Mutation) -> None:
    found = validate(build(kind), reference="inline", runner=Simulated(), patch=mutation)
    assert found.verdict == "mismatch", found.reason
    assert not found.accepted


@pytest.mark.parametrize("kind", PROFILES)
def test_every_mistake_of_a_family_is_tried(kind: str) -> None:
    model = build(kind)
    tried = {mutation.name for mutation in OWN if mutation.concerns(model)}
    expected = {
        "gate first": {"no distances between tokens", "gate and value exchanged"},
        "gate last": {"no distances between tokens", "gate and value exchanged", "queries not normalised"},
        "experts": {
            "one expert instead of two", "gates normalised again", "shared bias left out", "experts exchanged",
        },
    }  # fmt: skip
    assert tried == expected[kind]
