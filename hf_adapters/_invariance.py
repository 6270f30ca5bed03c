"""Whether a text model gives the same values when its input is padded."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from hf_adapters._classes import split_class
from hf_adapters._outputs import Extent, to_caller
from hf_adapters._positions import find_position_table
from hf_adapters.errors import UnsupportedOptionError

TOKENS, PADDED = 5, 64
TOLERANCE = 1e-3
"""Largest relative change by padding that is rounding: float32 stays below 1e-5, models that mix tokens far above."""
KNOWN = ("transformers.", "hf_adapters.")


def padding_changes_values(model: nn.Module, pad_token: int) -> bool:
    """True when padding reaches the results although it is masked.

    FNet's transform, convolutions over tokens, a forward that takes the mean of all positions or the last one (SigLIP).
    Encoders and decoders of the library whose tokens meet only in attention under a mask are known to be safe. Others
    are asked: the model runs twice on the host, on a few tokens, without and with masked padding after them.

    Args:
        model: a text model on the host. Its mode and hooks are left as they are.
        pad_token: id that padding has.
    """
    if not _may_change(model):
        return False
    try:
        with _evaluating(model), torch.no_grad():
            table = find_position_table(model)
            padded = PADDED if table is None else min(PADDED, table.limit)
            short, long = _results(model, pad_token, TOKENS), _results(model, pad_token, padded)
    except Exception:  # what the model says to these tokens it will say to the caller's
        return _is_foreign(model)
    if len(short) != len(long):
        return True
    return any(not _same(a, b) for a, b in zip(short, long, strict=True))


def attend_to_all(model: nn.Module, length: int, bucket: int) -> None:
    """Let a model with block-sparse attention attend to all tokens where it would by itself: at a few blocks of them.

    Which blocks see which depends on their number, so a padded input must not be what it decides by.

    Args:
        model: a text model.
        length: of the caller's input, in tokens.
        bucket: the input will be padded to a multiple of so many tokens.

    Raises:
        UnsupportedOptionError: the input is longer, and blocks of keys would be looked up one by one, or padding to
            the bucket would add a block of its own, which all tokens see.
    """
    parts: Iterator[Any] = model.modules()
    for module in parts:
        if getattr(module, "attention_type", None) != "block_sparse" or not hasattr(module, "set_attention_type"):
            continue
        config = getattr(module, "config", None)
        blocks, size = getattr(config, "num_random_blocks", None), getattr(config, "block_size", None)
        if not isinstance(blocks, int) or not isinstance(size, int) or not hasattr(module, "save_pretrained"):
            continue
        limit = (5 + 2 * blocks) * size
        if length <= limit:
            module.set_attention_type("original_full")
        elif not getattr(module, "masks_by_blocks", False) or _blocks(length, bucket, size) != -(-length // size):
            raise UnsupportedOptionError(
                f"{type(model).__name__} attends by blocks of {size} tokens beyond {limit}, and the input has "
                f"{length}. On the device that needs heads of whole sticks and blocks of {bucket} tokens or multiples; "
                'truncate the input, or let all tokens attend to all with model.set_attention_type("original_full")'
            )


def _blocks(length: int, bucket: int, size: int) -> int:
    padded = -(-length // bucket) * bucket
    return -(-padded // size)


def _is_foreign(model: nn.Module) -> bool:
    return not split_class(type(model))[0].__module__.startswith(KNOWN)


def _may_change(model: nn.Module) -> bool:
    if getattr(model, "attention_type", None) == "block_sparse":
        # BigBird turns to full attention for good when it sees few tokens, so asking it would change it.
        return False
    if _is_foreign(model) or not split_class(type(model))[0].__name__.endswith("Model"):
        return True
    if not getattr(model, "_supports_sdpa", False) or _takes_last_token(model):
        return True
    convolutions = [m for m in model.modules() if isinstance(m, nn.modules.conv._ConvNd)]
    return any(m.kernel_size != m.stride for m in convolutions)


def _takes_last_token(model: nn.Module) -> bool:
    """A forward of the library that selects the last position, ``states[:, -1]``, whatever it holds (SigLIP)."""
    kinds = {split_class(type(module))[0] for module in model.modules() if hasattr(module, "save_pretrained")}
    return any(_selects_last(inspect.unwrap(kind.forward)) for kind in kinds if hasattr(kind, "forward"))


def _selects_last(forward: Any) -> bool:
    code = getattr(forward, "__code__", None)
    steps = [] if code is None else [(step.opname, step.argval) for step in dis.get_instructions(code)]
    for at, step in enumerate(steps):
        if step == ("LOAD_CONST", -1) and at and steps[at - 1][0] == "BUILD_SLICE":
            following = [name for name, _ in steps[at + 1 : at + 6]]
            if "BUILD_TUPLE" in following and "BINARY_SUBSCR" in following:
                return True
    return False


def _results(model: Any, pad_token: int, length: int) -> list[Tensor]:
    names = inspect.signature(model.forward).parameters
    vocabulary = getattr(model.config, "vocab_size", None)
    usable = [i for i in range(TOKENS + 1) if i != pad_token][:TOKENS]
    ids = torch.full((1, length), pad_token, dtype=torch.int64)
    ids[:, :TOKENS] = torch.tensor(usable) % (vocabulary if isinstance(vocabulary, int) else TOKENS + 1)
    arguments: dict[str, Any] = {"input_ids": ids}
    if "attention_mask" in names:
        arguments["attention_mask"] = (torch.arange(length) < TOKENS)[None].long()
    if "use_cache" in names:
        arguments["use_cache"] = False
    extent = Extent(1, TOKENS, 1, length)
    return _tensors(to_caller(model(**arguments), dtype=torch.float32, device=torch.device("cpu"), extent=extent))


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return [tensor for item in items for tensor in _tensors(item)]


def _same(short: Tensor, long: Tensor) -> bool:
    if short.shape != long.shape:
        return False
    if not short.is_floating_point() or short.numel() == 0:
        return True
    scale = short.abs().amax().clamp(min=torch.finfo(short.dtype).tiny)
    return bool((short - long).abs().amax() <= TOLERANCE * scale)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    modes = {module: module.training for module in model.modules()}
    for module in modes:
        module.training = False
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode
