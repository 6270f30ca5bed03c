"""How many tokens a model has positions for, and whether ids lie inside the tables they are looked up in."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hf_adapters.errors import InputError, SequenceTooLongError

TABLE_NAMES = ("position_embeddings", "position_embedding", "embed_positions", "wpe")
LENGTH_DEPENDENT = {"dynamic", "longrope"}
"""Rotary scalings of transformers (``rope_type``) that look at the length of the input."""


@dataclass(frozen=True)
class PositionTable:
    """The table of learned absolute positions.

    Attributes:
        path: where it is.
        limit: tokens it has room for.
        first: position of the first token; ``padding_idx + 1`` where padding has a position of its own.
        from_ids: positions are counted over the ids that are not padding, so padding uses no position.
        from_mask: positions are counted over the attention mask (OPT), to the same effect.
    """

    path: str
    limit: int
    first: int
    from_ids: bool
    from_mask: bool = False

    @property
    def counts_tokens(self) -> bool:
        """True when only real tokens use a position."""
        return self.from_ids or self.from_mask


def find_position_table(model: nn.Module) -> PositionTable | None:
    """The table of learned absolute positions of a text model; None for rotary and relative positions.

    A table with a ``padding_idx`` (RoBERTa and its relatives) loses the rows up to that index: its usable length is
    ``num_embeddings - padding_idx - 1``.
    """
    for path, module in model.named_modules():
        if path.rpartition(".")[2] not in TABLE_NAMES or not isinstance(module, nn.Embedding):
            continue
        offset = getattr(module, "offset", 0)
        first = offset if isinstance(offset, int) else 0
        padding = module.padding_idx
        if padding is not None:
            first = padding + 1
        from_mask = "attention_mask" in inspect.signature(type(module).forward).parameters
        return PositionTable(path, module.num_embeddings - first, first, padding is not None, from_mask)
    return None


def refuses_padding(model: nn.Module, table: PositionTable | None) -> bool:
    """True when the module that owns the table checks the length itself, whatever positions it is given (CLIP).

    Found out by calling that module on the host with one token more than the table has room for and legal positions.
    """
    owner_path = table.path.rpartition(".")[0] if table is not None else ""
    if table is None or not owner_path:
        return False
    owner = model.get_submodule(owner_path)
    names = inspect.signature(owner.forward).parameters
    if not {"input_ids", "position_ids"} <= set(names):
        return False
    zeros = torch.zeros(1, table.limit + 1, dtype=torch.int64)
    given = {name: zeros for name in ("input_ids", "position_ids", "token_type_ids") if name in names}
    try:
        with torch.no_grad():
            owner(**given)
    except (ValueError, IndexError, RuntimeError):
        return True
    return False


def scales_with_length(model: nn.Module) -> bool:
    """True when rotary frequencies depend on the largest position of a call, which padding must not raise."""
    return any(_kind(getattr(module, "rope_type", None)) & LENGTH_DEPENDENT for module in model.modules())


def _kind(rope_type: Any) -> set[str]:
    return set(rope_type.values()) if isinstance(rope_type, dict) else {rope_type} if rope_type else set()


def holds_token_type_buffer(model: nn.Module) -> bool:
    """True when the stock model takes missing ``token_type_ids`` from a buffer of zeros."""
    return any("token_type_ids" in module._buffers for module in model.modules())


def check_ids(model: nn.Module, arguments: dict[str, Any], table: PositionTable | None, length: int) -> None:
    """Check on the unpadded input what the lookup on a device would not: every index lies inside its table.

    Raises:
        SequenceTooLongError: more tokens than positions.
        InputError: a token, position or segment id outside of its table.
    """
    name = type(model).__name__
    ids = arguments.get("input_ids")
    if table is not None and "position_ids" not in arguments:
        used = length
        counted = _counted(table, ids, arguments.get("attention_mask"))
        if counted is not None:
            used = int(counted.sum(dim=1).amax()) if counted.numel() else 0
        if used > table.limit:
            raise SequenceTooLongError(
                f"{name}: the input has {used} tokens, and {table.path} has room for {table.limit}; truncate "
                f"the input, for instance tokenizer(..., truncation=True, max_length={table.limit})"
            )
    _check_range(name, "input_ids", ids, _word_table(model))
    if table is not None:
        _check_range(name, "position_ids", arguments.get("position_ids"), model.get_submodule(table.path))
    for path, module in model.named_modules():
        if path.rpartition(".")[2] == "token_type_embeddings":
            _check_range(name, "token_type_ids", arguments.get("token_type_ids"), module)


def _word_table(model: Any) -> Any:
    """The table that `input_ids` are looked up in; None when there is none, or transformers cannot tell which it is."""
    try:
        return model.get_input_embeddings()
    except (AttributeError, NotImplementedError):  # its own getter knows tables of the usual names only
        return None


def _counted(table: PositionTable, ids: Any, mask: Any) -> Tensor | None:
    """Which tokens ``[batch, tokens]`` use a position; None when all of them do."""
    if table.from_ids and isinstance(ids, Tensor):
        return ids != table.first - 1
    if table.from_mask and isinstance(mask, Tensor) and mask.dim() == 2:
        return mask != 0
    return None


def _check_range(model: str, name: str, ids: Any, table: Any) -> None:
    if not isinstance(ids, Tensor) or ids.numel() == 0 or not isinstance(table, nn.Embedding):
        return
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= table.num_embeddings:
        raise InputError(
            f"{model}: {name} holds {low if low < 0 else high}, outside of the {table.num_embeddings} rows of its "
            "table; does the tokenizer belong to this model?"
        )
