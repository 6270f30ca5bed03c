"""Failing structures: twenty that are kept, and as many as wanted drawn from families by a seed."""

from __future__ import annotations

import random
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import torch
import transformers
from torch import nn

from hf_adapters.agents.subject import Subject

_SPREAD = 0.1
_BUILDER = f"{__name__}:build"
_ACTIVATIONS = {
    "gelu_new": "small_powers",
    "relu2": "small_powers",
    "mish": "activation_forms",
    "gelu_python": "activation_forms",
}


def build(architecture: str, config: Mapping[str, Any], seed: int = 0) -> nn.Module:
    """A model of transformers with seeded weights of standard deviation 0.1, in evaluation mode."""
    torch.manual_seed(seed)
    made = getattr(transformers, f"{architecture}Config")(**config)
    model: nn.Module = getattr(transformers, f"{architecture}Model")(made).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            drawn = torch.randn(parameter.shape, generator=generator) * _SPREAD
            parameter.copy_(drawn if parameter.dim() >= 2 else parameter + drawn)
    return model


def kept(release: str) -> list[Subject]:
    """The structures of `structures.toml`."""
    data = tomllib.loads(files(__package__).joinpath("structures.toml").read_text(encoding="utf-8"))
    found = []
    for name, entry in data["structures"].items():
        config = {**({} if entry.get("alone") else data["sizes"]), **entry.get("config", {})}
        found.append(_subject(name, release, entry["architecture"], config, tuple(entry["without"])))
    return found


def drawn(release: str, seed: int, count: int) -> list[Subject]:
    """`count` further structures; the same ones for the same seed."""
    generator = random.Random(seed)
    sizes = tomllib.loads(files(__package__).joinpath("structures.toml").read_text(encoding="utf-8"))["sizes"]
    families = (_activation, _decoder, _heads, _width)
    found = []
    for number in range(count):
        architecture, changes, without = families[number % len(families)](generator)
        config = {**sizes, "vocab_size": generator.randrange(50, 90), **changes}
        found.append(_subject(f"seed{seed}_{number}", release, architecture, config, without))
    return found


Drawn = tuple[str, dict[str, Any], tuple[str, ...]]


def _activation(generator: random.Random) -> Drawn:
    name = generator.choice(sorted(_ACTIVATIONS))
    width = 64 * generator.randrange(1, 4)
    changes = {"hidden_act": name, "hidden_size": width, "num_attention_heads": width // 64, "intermediate_size": 192}
    return generator.choice(("Bert", "Electra", "Roberta")), changes, (_ACTIVATIONS[name],)


def _decoder(generator: random.Random) -> Drawn:
    heads = generator.choice((2, 4))
    changes = {"num_attention_heads": heads, "num_key_value_heads": generator.choice((1, 2)), "head_dim": 64}
    changes["hidden_size"] = 64 * generator.randrange(2, 4)
    return generator.choice(("Llama", "Mistral", "Qwen3")), changes, (generator.choice(("small_powers", "rotary")),)


def _heads(generator: random.Random) -> Drawn:
    size = generator.choice((16, 32, 48))
    heads = 192 // size
    changes = {"hidden_size": 192, "num_attention_heads": heads}
    return generator.choice(("Bert", "Roberta")), changes, ("head_padding",)


def _width(generator: random.Random) -> Drawn:
    heads = generator.choice((2, 3))
    width = heads * generator.randrange(20, 40)
    changes = {"hidden_size": width, "num_attention_heads": heads, "intermediate_size": generator.randrange(90, 140)}
    return "Bert", changes, ("width_padding",)


def _subject(
    name: str, release: str, architecture: str, config: Mapping[str, Any], without: tuple[str, ...]
) -> Subject:
    return Subject(
        key=name,
        label=name,
        release=release,
        kind="builder",
        builder=_BUILDER,
        arguments={"architecture": architecture, "config": dict(config)},
        without=without,
    )
