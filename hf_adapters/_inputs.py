"""From the caller's arguments of a text model to arguments of fixed, padded shapes."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from hf_adapters._invariance import attend_to_all
from hf_adapters._masks import dense_mask, token_mask
from hf_adapters._outputs import Extent
from hf_adapters._positions import (
    PositionTable,
    check_ids,
    find_position_table,
    holds_token_type_buffer,
    scales_with_length,
)
from hf_adapters.errors import InputError, UnsupportedOptionError

LENGTH_BUCKET = 64
"""Sequence lengths are multiples of one fp16 stick (D2, D6.2 i and j)."""

Padding = Literal["free", "in table", "never"]
"""Lengths that a model takes as padding: any; only those its position table has room for; none, because padding reaches
its tokens."""

CAPTURES = ("hidden_states", "attentions")
REFUSED = ("labels", "cache", "past_key_values", "encoder_hidden_states", "encoder_attention_mask")
DECODER = ("decoder_input_ids", "decoder_inputs_embeds", "decoder_attention_mask")


@dataclass(frozen=True)
class Call:
    """One call in padded form.

    Attributes:
        arguments: keyword arguments of the stock forward, host tensors.
        extent: the caller's and the padded sizes.
        as_tuple: the caller asked for ``return_dict=False``.
        attentions: the caller asked for attention weights.
        captures: names of what the caller wants recorded, ``"hidden_states"`` or ``"attentions"``.
        kept_logits: the caller's ``logits_to_keep``: the last n positions, or indices; None keeps all.
    """

    arguments: dict[str, Any]
    extent: Extent
    as_tuple: bool
    attentions: bool
    captures: tuple[str, ...]
    kept_logits: int | Tensor | None = None


def is_text_model(model: nn.Module) -> bool:
    """True for a transformers model whose forward takes ``input_ids``; only those are padded."""
    return hasattr(model, "save_pretrained") and "input_ids" in stock_parameters(model)


def prepare(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], *, padding: Padding = "free") -> Call:
    """Bind, check and pad the arguments of one call.

    Args:
        model: the compiled text model.
        args: positional arguments of the stock forward.
        kwargs: keyword arguments of the stock forward.
        padding: how far the length may be padded.

    Returns:
        Arguments whose batch is a power of two and whose length is a multiple of 64, as far as ``padding`` allows.

    Raises:
        InputError: shapes, dtypes or values that the stock model would not accept either, or an empty sequence.
        SequenceTooLongError: more tokens than positions, judged on the unpadded input.
        UnsupportedOptionError: an option of the stock forward that has no place here (caches, labels, ...), or an
            attention by blocks that is not computed.
    """
    arguments = _bind(model, args, kwargs)
    config = getattr(model, "config", None)
    wanted = arguments.pop("return_dict", None)
    as_tuple = (getattr(config, "return_dict", True) if wanted is None else wanted) is False
    captures = tuple(
        name for name in CAPTURES if arguments.get(f"output_{name}", getattr(config, f"output_{name}", False))
    )
    _refuse_options(model, arguments)
    # Counted from the end of the caller's rows, not of the padded ones, so it is applied to the result.
    kept_logits = arguments.pop("logits_to_keep", None)
    batch, length = _sizes(arguments)
    table = find_position_table(model)
    if table is None and "attention_mask" not in arguments:
        _refuse_packing(arguments.get("position_ids"))
    check_ids(model, arguments, table, length)
    attend_to_all(model, length, LENGTH_BUCKET)
    extent = Extent(batch, length, _power_of_two(batch), _padded_length(model, length, table, padding))
    _pad(model, arguments, extent, table)
    if "use_cache" in stock_parameters(model):
        arguments["use_cache"] = False
    if wanted is not None or as_tuple:
        arguments["return_dict"] = True
    return Call(arguments, extent, as_tuple, "attentions" in captures, captures, kept_logits)


def no_decoder_inputs(model: nn.Module) -> InputError:
    """The error for an encoder-decoder whose stock forward does not run on encoder inputs alone."""
    return InputError(
        f"{type(model).__name__} is an encoder-decoder and needs decoder inputs, which a compiled model does not take. "
        "The embedding of a text is what its encoder gives. Compile model.get_encoder(), or load the encoder alone"
    )


def stock_parameters(model: nn.Module) -> dict[str, inspect.Parameter]:
    """The parameters of the stock forward, by name."""
    return dict(inspect.signature(model.forward).parameters)


def _bind(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    bound = inspect.signature(model.forward).bind(*args, **kwargs)
    arguments: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        kind = bound.signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            arguments.update(value)
        elif kind is inspect.Parameter.VAR_POSITIONAL:
            raise InputError(f"{type(model).__name__}: give {name} by keyword")
        else:
            arguments[name] = value
    return {name: value for name, value in arguments.items() if value is not None}


def _refuse_options(model: nn.Module, arguments: dict[str, Any]) -> None:
    for name in REFUSED:
        if name in arguments:
            raise UnsupportedOptionError(
                f"{type(model).__name__}: {name} is not supported by a compiled model, which computes embeddings of "
                "whole sequences; leave it out, or call hf_adapters.decompile(model)"
            )
    if any(name in arguments for name in DECODER):
        raise UnsupportedOptionError(
            f"{type(model).__name__} is an encoder-decoder, and a compiled model runs no decoder: the embedding of a "
            "text is what its encoder gives. Compile model.get_encoder(), or load the encoder alone (T5EncoderModel)"
        )
    if arguments.pop("use_cache", False):
        raise UnsupportedOptionError(
            f"{type(model).__name__}: use_cache=True would return a key-value cache, and a compiled model keeps none; "
            "leave it out, or call hf_adapters.decompile(model)"
        )


def _refuse_packing(position_ids: Any) -> None:
    # Without a mask, transformers takes a jump in the positions for the start of another sequence in the same row.
    if isinstance(position_ids, Tensor) and position_ids.dim() == 2 and bool((position_ids.diff(dim=1) != 1).any()):
        raise UnsupportedOptionError(
            "position_ids that do not count up, without an attention_mask, mean several sequences packed into one row, "
            "which a compiled model does not separate; give one sequence per row, or an attention_mask"
        )


def _sizes(arguments: dict[str, Any]) -> tuple[int, int]:
    ids, embeds = arguments.get("input_ids"), arguments.get("inputs_embeds")
    if (ids is None) == (embeds is None):
        raise InputError("give exactly one of input_ids and inputs_embeds")
    if ids is not None:
        if not isinstance(ids, Tensor) or ids.dim() != 2 or ids.is_floating_point() or ids.is_complex():
            given = f"{ids.dtype} {tuple(ids.shape)}" if isinstance(ids, Tensor) else type(ids).__name__
            raise InputError(f"input_ids must be an integer tensor [batch, tokens], got {given}")
        batch, length = ids.shape
    else:
        if not isinstance(embeds, Tensor) or embeds.dim() != 3:
            given = str(tuple(embeds.shape)) if isinstance(embeds, Tensor) else type(embeds).__name__
            raise InputError(f"inputs_embeds must be a tensor [batch, tokens, hidden], got {given}")
        batch, length = embeds.shape[:2]
    if length == 0:
        raise InputError("the input has no tokens: every row needs at least one, special tokens included")
    return int(batch), int(length)


def _power_of_two(batch: int) -> int:
    return 1 << max(0, batch - 1).bit_length()


def _padded_length(model: nn.Module, length: int, table: PositionTable | None, padding: Padding) -> int:
    if padding == "never":
        return length
    padded = -(-length // LENGTH_BUCKET) * LENGTH_BUCKET
    if table is None or (padding == "free" and ("position_ids" in stock_parameters(model) or table.counts_tokens)):
        return padded
    # Positions cannot be given to this model, so the padding must not run past its table.
    return min(padded, max(length, table.limit))


def _pad(model: nn.Module, arguments: dict[str, Any], extent: Extent, table: PositionTable | None) -> None:
    names = stock_parameters(model)
    batch, length = extent.batch, extent.length
    like = arguments.get("input_ids", arguments.get("inputs_embeds"))
    assert isinstance(like, Tensor)
    _complete(model, arguments, extent, table, names)
    for name, value in arguments.items():
        if name == "attention_mask" and isinstance(value, dict):
            # One mask for each kind of layer, as transformers' own create_masks_for_generate gives them.
            arguments[name] = {kind: _pad_mask(_dense(kind, mask), extent) for kind, mask in value.items()}
            continue
        if not isinstance(value, Tensor):
            continue
        value = value.detach().cpu()
        if name == "attention_mask":
            arguments[name] = _pad_mask(value, extent)
        elif name == "position_ids" and value.dim() == 2:
            arguments[name] = _pad_batch(_pad_last(value.expand(batch, -1), extent, edge=True), extent)
        elif value.dim() >= 2 and value.shape[:2] == (batch, length):
            fill = pad_token(model, table) if name == "input_ids" else 0
            arguments[name] = _pad_batch(_pad_tokens(value, extent, fill), extent)
        elif value.dim() >= 1 and value.shape[0] == batch:
            arguments[name] = _pad_batch(value, extent)
        else:
            arguments[name] = value


def _complete(
    model: nn.Module,
    arguments: dict[str, Any],
    extent: Extent,
    table: PositionTable | None,
    names: dict[str, inspect.Parameter],
) -> None:
    """Give explicitly what the stock model would take from buffers that are only as long as its position table."""
    batch, length = extent.batch, extent.length
    if "attention_mask" in names and "attention_mask" not in arguments:
        arguments["attention_mask"] = torch.ones(batch, length, dtype=torch.int64)
    if "token_type_ids" in names and "token_type_ids" not in arguments and holds_token_type_buffer(model):
        arguments["token_type_ids"] = torch.zeros(batch, length, dtype=torch.int64)
    if "position_ids" in names and "position_ids" not in arguments and table is not None:
        if not table.counts_tokens:
            arguments["position_ids"] = torch.arange(length).expand(batch, length)
        elif table.from_ids and "inputs_embeds" in arguments:
            arguments["position_ids"] = torch.arange(table.first, table.first + length).expand(batch, length)
    if "position_ids" in names and "position_ids" not in arguments and scales_with_length(model):
        arguments["position_ids"] = torch.arange(length).expand(batch, length)


def pad_token(model: nn.Module, table: PositionTable | None) -> int:
    """The id that padded positions get: that of the position table or the config, else 0."""
    if table is not None and table.from_ids:
        return table.first - 1
    pad = getattr(getattr(model, "config", None), "pad_token_id", None)
    return pad if isinstance(pad, int) and pad >= 0 else 0


def _dense(kind: str, mask: Any) -> Tensor:
    if not isinstance(mask, Tensor) or mask.dim() != 4:
        given = f"{mask.dim()}-D" if isinstance(mask, Tensor) else type(mask).__name__
        raise InputError(f"attention_mask[{kind!r}] must be a tensor [batch, 1, tokens, tokens], got {given}")
    return mask.detach().cpu()


def _pad_mask(mask: Tensor, extent: Extent) -> Tensor:
    if mask.dim() == 2:
        return _pad_batch(_pad_tokens(token_mask(mask, extent), extent, 0), extent)
    if mask.dim() == 4:
        return _pad_batch(dense_mask(mask, extent), extent)
    raise InputError(
        f"attention_mask must be [batch, tokens] or [batch, 1, tokens, tokens], got {tuple(mask.shape)} for input of "
        f"{extent.batch} rows and {extent.length} tokens"
    )


def _pad_tokens(value: Tensor, extent: Extent, fill: int) -> Tensor:
    shape = (extent.batch, extent.padded_length, *value.shape[2:])
    out = value.new_full(shape, fill)
    out[:, : extent.length] = value
    return out


def _pad_last(value: Tensor, extent: Extent, *, edge: bool) -> Tensor:
    extra = extent.padded_length - value.shape[1]
    return torch.cat([value, value[:, -1:].expand(-1, extra)], dim=1) if edge and extra > 0 else value


def _pad_batch(value: Tensor, extent: Extent) -> Tensor:
    """Fill the bucket with copies of the first row, as harmless as the row itself; zeros for an empty batch."""
    extra = extent.padded_batch - value.shape[0]
    if extra <= 0:
        return value.contiguous()
    if value.shape[0] == 0:
        return value.new_zeros((extra, *value.shape[1:]))
    return torch.cat([value, value[:1].expand(extra, *value.shape[1:])]).contiguous()
