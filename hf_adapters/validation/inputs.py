"""Inputs that a model is validated on: seeded, fresh for each seed, covering both paddings, odd lengths, one row and
several.

Everything is drawn from a generator seeded by the caller (a hash of the structure, or a secret number where the code
under test is not trusted).
"""

from __future__ import annotations

import hashlib
import inspect
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

Padding = Literal["right", "left", "none"]

WINDOW_MARGIN = 9
MOST_ROWS = 8
LARGE = 100_000_000
LONGEST_EXACT, SHORTER_EXACT = 640, 160
"""Longest row for the float64 comparison alone, and that of large structures; windows of 4096 are not reached."""


@dataclass(frozen=True, kw_only=True, slots=True)
class InputSpec:
    """What can be drawn for one model."""

    vocabulary: int
    max_length: int
    pad_token: int
    token_types: int
    accepts: tuple[str, ...]
    """Keyword arguments of the model's forward."""
    elements: int = 0
    """Parameter elements outside of embedding tables: what a token costs."""
    mask_token: int | None = None
    """Hides a token in training: a row of nothing else is no text, and ESM divides by the share of the others."""
    window: int | None = None
    """Tokens that a sliding-window layer attends to; None without such a layer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class InputSet:
    """One batch."""

    name: str
    kwargs: dict[str, Tensor]
    """`input_ids` and `attention_mask` int64 `[batch, length]`, and `token_type_ids` where the model has more than
    one."""
    padding: Padding
    use: Literal["both", "device", "float64"] = "both"
    """Whether the batch is executed, compared in float64, or both."""

    @property
    def valid(self) -> Tensor:
        """bool `[batch, length]`: real tokens; results at the others mean nothing and are not compared."""
        mask = self.kwargs.get("attention_mask")
        return torch.ones_like(self.kwargs["input_ids"], dtype=torch.bool) if mask is None else mask.bool()

    @property
    def tokens(self) -> int:
        """Number of positions, padding included."""
        return self.kwargs["input_ids"].numel()


def spec_of(model: nn.Module) -> InputSpec:
    """Read what the model accepts from its embedding table, config and forward signature.

    Raises:
        ValueError: the model has no token embeddings to draw ids for.
    """
    config: Any = getattr(model, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    table = _token_table(model)
    vocabulary = min(table.num_embeddings, getattr(text, "vocab_size", None) or table.num_embeddings)
    pad = getattr(text, "pad_token_id", None)
    mask = getattr(text, "mask_token_id", None)
    positions = getattr(text, "max_position_embeddings", None) or 512
    offset = (pad or 0) + 1 if _offsets_positions(model) else 0
    accepts = tuple(inspect.signature(model.forward).parameters)
    return InputSpec(
        vocabulary=vocabulary,
        max_length=max(1, positions - offset),
        pad_token=pad if isinstance(pad, int) and 0 <= pad < vocabulary else 0,
        token_types=getattr(text, "type_vocab_size", 0) or 0,
        accepts=accepts,
        elements=_elements(model),
        mask_token=mask if isinstance(mask, int) and 0 <= mask < vocabulary else None,
        window=_window(text),
    )


def draw(
    spec: InputSpec,
    *,
    name: str,
    lengths: Sequence[int],
    padding: Padding,
    seed: int,
    width: int | None = None,
    fill: Literal["random", "pad"] = "random",
) -> InputSet:
    """Draw one batch of random token ids.

    Args:
        spec: the model's limits; longer lengths are cut to `spec.max_length`.
        name: name of the set in the evidence.
        lengths: real tokens of each row.
        padding: side on which shorter rows are filled.
        seed: seed of the generator.
        width: padded length; the longest row when None.
        fill: what stands in the padding: random ids, so that a model that reads it is found out, or the padding id.
    """
    lengths = [max(1, min(length, spec.max_length)) for length in lengths]
    width = min(max([width or 0, *lengths]), spec.max_length)
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, spec.vocabulary, (len(lengths), width), generator=generator)
    ids[ids == spec.pad_token] = (spec.pad_token + 1) % spec.vocabulary
    if spec.mask_token is not None:
        words = (token for token in range(spec.vocabulary) if token not in (spec.pad_token, spec.mask_token))
        ids[ids == spec.mask_token] = next(words, spec.pad_token)
    mask = torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        mask[row, slice(width - length, None) if padding == "left" else slice(0, length)] = 1
    if fill == "pad" or _reads_pad_ids(spec):
        ids[mask == 0] = spec.pad_token
    kwargs: dict[str, Tensor] = {"input_ids": ids}
    if "attention_mask" in spec.accepts or "kwargs" in spec.accepts:
        kwargs["attention_mask"] = mask
    if spec.token_types > 1 and "token_type_ids" in spec.accepts:
        kwargs["token_type_ids"] = torch.randint(0, spec.token_types, ids.shape, generator=generator)
    return InputSet(name=name, kwargs=kwargs, padding=padding)


def standard_sets(spec: InputSpec, seed: int) -> tuple[InputSet, ...]:
    """The batches of a validation: right padding, left padding, one row of more than one stick, and a fresh batch.

    The fresh one has the shape of the first and holds the padding id where it is padded; it finds results cached by
    shape or by earlier inputs, and is executed only. Lengths are odd on purpose, and one row is a single token; 64 is
    the device's stick (D2.2). Where layers attend to a window, a row longer than the window is added for the comparison
    in float64 alone: shorter rows look the same with and without it. Structures of more than `LARGE` elements outside
    their embeddings get shorter rows, which cost less and cover the same cases. Four rows in a batch make 78 pairs of
    sentences: among those of half as many rows, one swap of two near-equal similarities already breaks the least rank
    correlation.
    """
    long, short = (17, 11) if spec.elements > LARGE else (33, 19)
    sets = [
        draw(spec, name="right", lengths=(long, 7, 1, 12), padding="right", seed=seed),
        draw(spec, name="left", lengths=(short, 5, 9, 6), padding="left", seed=seed + 1),
        draw(spec, name="single", lengths=(69,), padding="none", seed=seed + 2),
    ]
    fresh = draw(spec, name="fresh", lengths=(12, 9, 15, 3), padding="right", seed=seed + 3, width=long, fill="pad")
    sets.append(replace(fresh, use="device"))
    longest = SHORTER_EXACT if spec.elements > LARGE else LONGEST_EXACT
    if spec.window is not None and spec.window + WINDOW_MARGIN <= min(longest, spec.max_length):
        beyond = draw(spec, name="beyond window", lengths=(spec.window + WINDOW_MARGIN,), padding="none", seed=seed + 4)
        sets.append(replace(beyond, use="float64"))
    return tuple(sets)


def varied_sizes(spec: InputSpec, seed: int) -> tuple[InputSet, ...]:
    """Batches of one to eight rows and of random lengths, for the comparison in float64 alone.

    They find code that is right for the sizes of `standard_sets` only. Lengths are drawn evenly in their logarithm, up
    to `LONGEST_EXACT` tokens for a single row and less the more rows there are.
    """
    generator = random.Random(seed)
    sets = []
    for rows in range(1, MOST_ROWS + 1):
        longest = min(spec.max_length, (SHORTER_EXACT if spec.elements > LARGE else LONGEST_EXACT) // rows)
        lengths = [max(1, round(longest ** generator.random())) for _ in range(rows)]
        lengths[0] = longest if rows == 1 else lengths[0]
        drawn = draw(spec, name=f"{rows} rows", lengths=lengths, padding="right", seed=generator.getrandbits(62))
        sets.append(replace(drawn, use="float64"))
    return tuple(sets)


def seed_of(*parts: Any) -> int:
    """A stable 62-bit seed from the text of `parts` (a structural signature, a config)."""
    digest = hashlib.sha256("\x1f".join(str(part) for part in parts).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 2


def structure_seed(model: nn.Module) -> int:
    """Seed from what the model is: class, config, and shapes of its parameters; two builds of one structure draw the
    same inputs."""
    config: Any = getattr(model, "config", None)
    described = (
        sorted((k, str(v)) for k, v in config.to_dict().items() if not k.startswith("_"))
        if hasattr(config, "to_dict")
        else ""
    )
    return seed_of(type(model).__qualname__, described, [(n, tuple(p.shape)) for n, p in model.named_parameters()])


def _token_table(model: nn.Module) -> nn.Embedding:
    getter = getattr(model, "get_input_embeddings", None)
    if getter is not None:
        try:
            table = getter()
        except (NotImplementedError, AttributeError):
            table = None
        if isinstance(table, nn.Embedding):
            return table
    tables = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    if not tables:
        raise ValueError(
            f"{type(model).__name__} has no token embeddings (nn.Embedding), so no inputs can be drawn for it; "
            "pass inputs=[{'input_ids': ...}, ...]"
        )
    return max(tables, key=lambda table: table.num_embeddings)


def _elements(model: nn.Module) -> int:
    tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    return sum(parameter.numel() for parameter in model.parameters() if id(parameter) not in tables)


def _window(config: Any) -> int | None:
    """The sliding window of those layers that have one."""
    types = getattr(config, "layer_types", None)
    if types is not None and not any("sliding" in kind or "local" in kind for kind in types):
        return None
    if types is None and not getattr(config, "use_sliding_window", True):
        return None
    sizes = [
        getattr(config, name, None) for name in ("sliding_window", "local_attention", "window_size", "attention_window")
    ]
    return max((size for size in sizes if isinstance(size, int) and size > 0), default=None)


def _offsets_positions(model: nn.Module) -> bool:
    """Whether positions start behind the padding id, as in RoBERTa: the table's own padding row says so."""
    return any(
        isinstance(module, nn.Embedding) and module.padding_idx is not None and name.endswith("position_embeddings")
        for name, module in model.named_modules()
    )


def _reads_pad_ids(spec: InputSpec) -> bool:
    """Without a mask argument, only the padding id can mark padding."""
    return "attention_mask" not in spec.accepts and "kwargs" not in spec.accepts
