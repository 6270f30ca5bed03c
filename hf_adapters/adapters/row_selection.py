"""One row per sequence, selected by index (CLIP text models), as a product with one-hot rows."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hf_adapters.adapters import _probe
from hf_adapters.adapters._sticks import round_up
from hf_adapters.protocols import Adapter, Example, PatcherProtocol, Site


class SelectableRows(torch.Tensor):
    """States ``[batch, tokens, hidden]`` whose ``states[arange(batch), index]`` is a product; gathers have no kernel
    (D5.4). Results of any operation are plain tensors again."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Turns that one kind of indexing into a product, and hands everything else on with plain tensors."""
        plain = [a.as_subclass(Tensor) if isinstance(a, SelectableRows) else a for a in args]
        if func is Tensor.__getitem__ and isinstance(args[0], SelectableRows) and _selects_rows(plain[0], plain[1]):
            return select_rows(plain[0], plain[1][1])
        with torch._C.DisableTorchFunctionSubclass():
            return func(*plain, **(kwargs or {}))


def _selects_rows(states: Tensor, index: Any) -> bool:
    if not isinstance(index, tuple) or len(index) != 2 or states.dim() != 3:
        return False
    if not all(isinstance(part, Tensor) and part.shape == states.shape[:1] for part in index):
        return False
    return bool(torch.equal(index[0].cpu().long(), torch.arange(states.shape[0])))


def select_rows(states: Tensor, index: Tensor) -> Tensor:
    """``states[b, index[b]]`` for every row of the batch.

    Args:
        states: ``[batch, tokens, hidden]``.
        index: integers ``[batch]``; negative ones count from the end.

    Returns:
        ``[batch, hidden]``. Exact: every sum has one term that is not zero.

    Raises:
        IndexError: an index is outside of the tokens.
    """
    tokens = states.shape[1]
    where = index.cpu().long()
    if bool(((where < -tokens) | (where >= tokens)).any()):
        raise IndexError(f"index out of range: rows hold {tokens} tokens, asked for {where.tolist()}")
    width = round_up(tokens)
    if width > tokens:
        # A matmul sums whole sticks (D6.11); CLIP refuses to be padded beyond its 77 positions.
        missing = states.new_zeros((states.shape[0], width - tokens, states.shape[2]))
        states = torch.cat([states, missing], dim=1)
    chosen = F.one_hot(where % tokens, width).to(states.dtype)[:, None, :].to(states.device)
    return torch.matmul(chosen, states).squeeze(1)


class SelectableNorm(nn.Module):
    """Mixin for the norm whose output is indexed; its forward itself, which may be compiled, stays as it is."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """States ``[batch, tokens, hidden]`` that can be indexed with a product."""
        states = super().__call__(*args, **kwargs)
        return states if torch.compiler.is_compiling() else states.as_subclass(SelectableRows)


class PlainOutputs(nn.Module):
    """Mixin for the model around that norm: its outputs are ordinary tensors."""

    keeps_signature = True

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As stock."""
        outputs = super().forward(*args, **kwargs)
        states = getattr(outputs, "last_hidden_state", None)
        if isinstance(states, SelectableRows):
            outputs.last_hidden_state = states.as_subclass(Tensor)
        return outputs


_NORM = "final_layer_norm"


def _sites(model: nn.Module) -> list[Site]:
    found = []
    for path, module in model.named_modules():
        names = _probe.code_names(type(module).forward)
        if not {"argmax", "arange", _NORM, "last_hidden_state"} <= names or not hasattr(module, _NORM):
            continue
        if not isinstance(module, PlainOutputs):
            before, after = "rows selected by index", "product with one-hot rows"
            found.append(Site(path=path, kind="rows", before=before, after=after))
    return found


def _apply(patcher: PatcherProtocol, model: nn.Module, site: Site) -> None:
    module = model.get_submodule(site.path)
    patcher.swap_class(module, PlainOutputs)
    patcher.swap_class(module.get_submodule(_NORM), SelectableNorm)


def _clip(family: str, eos: int) -> nn.Module:
    import transformers

    torch.manual_seed(2)
    config = getattr(transformers, f"{family}Config")(
        vocab_size=60, hidden_size=64, num_hidden_layers=1, num_attention_heads=1, intermediate_size=64,
        max_position_embeddings=20, eos_token_id=eos, bos_token_id=1, initializer_factor=5.0,
    )  # fmt: skip
    model: nn.Module = getattr(transformers, f"{family}Model")(config)
    return model.double().eval()


def _inputs() -> dict[str, Any]:
    ids = torch.randint(3, 40, (3, 11), generator=torch.Generator().manual_seed(1))
    ids[0, 4], ids[1, 10], ids[2, 7] = 49, 49, 49
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _examples() -> list[Example]:
    return [
        Example("clip", functools.partial(_clip, "CLIPText", 49), _inputs),
        Example("clip_highest_id", functools.partial(_clip, "CLIPText", 2), _inputs),
        Example("metaclip_2", functools.partial(_clip, "MetaClip2Text", 49), _inputs),
    ]


ADAPTER = Adapter(
    name="row_selection",
    summary="One row per sequence selected by index (CLIP text models) as a product with one-hot rows.",
    rules=("indirect-access", "index-duplicate", "op-fallback"),
    equivalence="exact",
    sites=_sites,
    apply=_apply,
    examples=_examples,
    order=80,
)
