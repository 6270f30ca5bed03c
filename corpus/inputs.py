"""Text inputs for a built structure: token ids of varied lengths, masked and padded as a tokenizer does it."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

    from hf_adapters.corpus.build import BuiltModel

_FIRST_TOKEN = ("cls_token_id", "bos_token_id")
_LAST_TOKEN = ("sep_token_id", "eos_token_id")


def make_inputs(
    built: BuiltModel,
    *,
    batch: int | None = None,
    lengths: Sequence[int] | None = None,
    seed: int = 0,
    padding_side: Literal["left", "right"] = "right",
) -> dict[str, Tensor]:
    """Random sentences for a structure, as keyword arguments of its forward.

    Sentences start and end with the config's special tokens, as those of a tokenizer do; padding is never used
    as a token. Equal arguments give equal inputs.

    Args:
        built: the structure.
        batch: number of sentences; defaults to the number of lengths.
        lengths: tokens of each sentence, special ones included; repeated when there are fewer than `batch`, and
            lowered to what the position table holds.
        seed: another seed gives other sentences.
        padding_side: where shorter sentences are filled up.

    Returns:
        `input_ids` and `attention_mask`, int64 of shape [batch, longest]; `token_type_ids` likewise where the
        model has them.

    Raises:
        ValueError: a length or the batch is smaller than one.
    """
    wanted = list(lengths) if lengths is not None else [24, 17, 9, 5]
    batch = len(wanted) if batch is None else batch
    if batch < 1 or not wanted or min(wanted) < 1:
        raise ValueError(f"batch {batch} and lengths {wanted}: every sentence needs at least one token")
    limit = longest_input(built.model)
    sizes = [min(wanted[index % len(wanted)], limit) for index in range(batch)]
    return text_inputs(built.model, sizes, f"{built.signature}/{seed}", padding_side)


def text_inputs(
    model: PreTrainedModel, lengths: Sequence[int], key: str, padding_side: Literal["left", "right"] = "right"
) -> dict[str, Tensor]:
    """`make_inputs` for a bare model; `key` decides the sentences."""
    config = model.config
    generator = torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(key.encode()).digest()[:7], "little"))
    words = _words(config)
    padding = padding_id(config)
    input_ids = torch.full((len(lengths), max(lengths)), padding, dtype=torch.int64)
    attention_mask = torch.zeros_like(input_ids)
    for row, length in enumerate(lengths):
        start = input_ids.shape[1] - length if padding_side == "left" else 0
        chosen = words[torch.randint(len(words), (length,), generator=generator)]
        input_ids[row, start : start + length] = _framed(chosen, config)
        attention_mask[row, start : start + length] = 1
    inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
    if takes(model, "token_type_ids") and (getattr(config, "type_vocab_size", 0) or 0) > 0:
        inputs["token_type_ids"] = torch.zeros_like(input_ids)
    return inputs


def takes(model: PreTrainedModel, name: str) -> bool:
    """Whether the model's forward has a parameter of that name."""
    return name in inspect.signature(type(model).forward).parameters


def padding_id(config: PretrainedConfig) -> int:
    """The token that fills up short sentences: the config's, else the first of the vocabulary."""
    padding = getattr(config, "pad_token_id", None)
    return int(padding) if isinstance(padding, int) and 0 <= padding < config.vocab_size else 0


def longest_input(model: PreTrainedModel) -> int:
    """Tokens that the learned position table holds (rows that the padding offset uses up are taken off).

    Models without such a table are limited by their config; T5 and its like by nothing, for which a large
    number is returned.
    """
    config = model.config
    stated = getattr(config, "max_position_embeddings", None)
    if not isinstance(stated, int) or stated < 1:
        return 1 << 20
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, torch.nn.Embedding):
            offset = module.padding_idx + 1 if module.padding_idx is not None else 0
            return max(1, module.num_embeddings - offset)
    return stated


def _words(config: PretrainedConfig) -> Tensor:
    special = {
        value
        for name, value in vars(config).items()
        if name.endswith("_token_id") and isinstance(value, int) and not isinstance(value, bool)
    }
    special.add(padding_id(config))
    words = [token for token in range(config.vocab_size) if token not in special]
    # A vocabulary of nothing but special tokens does not exist outside of tests; any token then is a word.
    return torch.tensor(words or list(range(config.vocab_size)), dtype=torch.int64)


def _framed(sentence: Tensor, config: PretrainedConfig) -> Tensor:
    first, last = _special(config, _FIRST_TOKEN), _special(config, _LAST_TOKEN)
    if first is not None and len(sentence) > 2:
        sentence[0] = first
    if last is not None and len(sentence) > 1:
        sentence[-1] = last
    return sentence


def _special(config: PretrainedConfig, names: Sequence[str]) -> int | None:
    padding = getattr(config, "pad_token_id", None)
    for name in names:
        value: Any = getattr(config, name, None)
        if isinstance(value, int) and 0 <= value < config.vocab_size and value != padding:
            return value
    return None
