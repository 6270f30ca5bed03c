"""One row per sequence, selected by index (CLIP, classifiers on decoders), as a product with one-hot rows."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from hf_adapters.adapters import _probe
from hf_adapters.adapters._host_integers import HostIntegers, rows_by_product
from hf_adapters.protocols import Adapter, Example, PatcherProtocol, Site


class SelectableRows(torch.Tensor):
    """States ``[batch, tokens, hidden]`` whose ``states[arange(batch), index]`` is a product; gathers have no kernel
    (D5.4). Results of any operation are plain tensors again.

    Attributes:
        made_by: function and states ``[batch, tokens, hidden]`` that these rows were made of, one by one; the rows that
            are asked for are then made of the states selected, since no product has a single column (D6.11).
    """

    made_by: tuple[Callable[[Tensor], Tensor], Tensor] | None = None

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Turns that one kind of indexing into a product, and hands everything else on with plain tensors."""
        plain = [a.as_subclass(Tensor) if isinstance(a, SelectableRows) else a for a in args]
        if func is Tensor.__getitem__ and isinstance(args[0], SelectableRows) and _selects_rows(plain[0], plain[1]):
            function, states = args[0].made_by or (None, plain[0])
            chosen = select_rows(states, plain[1][1])
            return chosen if function is None else function(chosen)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*plain, **(kwargs or {}))


def _selects_rows(states: Tensor, index: Any) -> bool:
    if not isinstance(index, tuple) or len(index) != 2 or states.dim() != 3:
        return False
    first, second = index
    if not isinstance(first, Tensor) or first.shape != states.shape[:1]:
        return False
    if not isinstance(second, int) and not (isinstance(second, Tensor) and second.shape == first.shape):
        return False
    return bool(torch.equal(index[0].cpu().long(), torch.arange(states.shape[0])))


def select_rows(states: Tensor, index: Tensor | int) -> Tensor:
    """``states[b, index[b]]`` for every row of the batch.

    Args:
        states: ``[batch, tokens, hidden]``.
        index: integers ``[batch]``, or one for all; negative ones count from the end.

    Returns:
        ``[batch, hidden]``. Exact: every sum has one term that is not zero.

    Raises:
        IndexError: an index is outside of the tokens.
    """
    tokens = states.shape[1]
    where = torch.as_tensor(index).cpu().long().expand(states.shape[0])
    if bool(((where < -tokens) | (where >= tokens)).any()):
        raise IndexError(f"index out of range: rows hold {tokens} tokens, asked for {where.tolist()}")
    return rows_by_product(states, where)


class SelectableNorm(nn.Module):
    """Mixin for the norm whose output is indexed; its forward itself, which may be compiled, stays as it is."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """States ``[batch, tokens, hidden]`` that can be indexed with a product."""
        states = super().__call__(*args, **kwargs)
        return states if torch.compiler.is_compiling() else states.as_subclass(SelectableRows)


class SelectableScores(nn.Module):
    """Mixin for the ``score`` of a classifier on a decoder: scores of the last token are selected by index."""

    def __call__(self, states: Tensor) -> Tensor:
        """``[batch, tokens, hidden]`` -> ``[batch, tokens, labels]`` that can be indexed with a product."""
        make = super().__call__
        scores: Tensor = make(states)
        if torch.compiler.is_compiling() or states.dim() != 3:
            return scores
        rows = scores.as_subclass(SelectableRows)
        rows.made_by = (make, states)
        return rows


class PlainOutputs(nn.Module):
    """Mixin for the model around it: its outputs are ordinary tensors."""

    keeps_signature = True

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As stock."""
        if torch.compiler.is_compiling():
            with HostIntegers():
                return super().forward(*args, **kwargs)
        outputs = super().forward(*args, **kwargs)
        if isinstance(outputs, tuple):
            return tuple(o.as_subclass(Tensor) if isinstance(o, SelectableRows) else o for o in outputs)
        for name in ("last_hidden_state", "logits"):
            states = getattr(outputs, name, None)
            if isinstance(states, SelectableRows):
                setattr(outputs, name, states.as_subclass(Tensor))
        return outputs


_NORM, _SCORE = "final_layer_norm", "score"


def _sites(model: nn.Module) -> list[Site]:
    found = []
    for path, module in model.named_modules():
        names = _probe.code_names(type(module).forward)
        if not {"argmax", "arange"} <= names or isinstance(module, PlainOutputs):
            continue
        before, after = "rows selected by index", "product with one-hot rows"
        if {_NORM, "last_hidden_state"} <= names and hasattr(module, _NORM):
            found.append(Site(path=path, kind="rows", before=before, after=after, meta={"of": _NORM}))
        elif _SCORE in names and isinstance(getattr(module, _SCORE, None), nn.Linear):
            found.append(Site(path=path, kind="scores", before=before, after=after, meta={"of": _SCORE}))
    return found


def _apply(patcher: PatcherProtocol, model: nn.Module, site: Site) -> None:
    module = model.get_submodule(site.path)
    patcher.swap_class(module, PlainOutputs)
    source = module.get_submodule(site.meta["of"])
    patcher.swap_class(source, SelectableNorm if site.kind == "rows" else SelectableScores)


def _clip(family: str, eos: int) -> nn.Module:
    import transformers

    torch.manual_seed(2)
    config = getattr(transformers, f"{family}Config")(
        vocab_size=60, hidden_size=64, num_hidden_layers=1, num_attention_heads=1, intermediate_size=64,
        max_position_embeddings=20, eos_token_id=eos, bos_token_id=1, initializer_factor=5.0,
    )  # fmt: skip
    model: nn.Module = getattr(transformers, f"{family}Model")(config)
    return model.double().eval()


def _classifier(labels: int) -> nn.Module:
    import transformers

    torch.manual_seed(2)
    config = transformers.Qwen2Config(
        vocab_size=60, hidden_size=64, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1,
        intermediate_size=64, max_position_embeddings=20, pad_token_id=0, num_labels=labels, initializer_range=0.2,
    )  # fmt: skip
    model: nn.Module = transformers.Qwen2ForSequenceClassification(config)
    return model.double().eval()


def _texts() -> dict[str, Any]:
    ids = torch.randint(3, 40, (3, 11), generator=torch.Generator().manual_seed(1))
    mask = (torch.arange(11)[None] < torch.tensor([[11], [4], [1]])).long()
    return {"input_ids": ids * mask, "attention_mask": mask}


def _inputs() -> dict[str, Any]:
    ids = torch.randint(3, 40, (3, 11), generator=torch.Generator().manual_seed(1))
    ids[0, 4], ids[1, 10], ids[2, 7] = 49, 49, 49
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _examples() -> list[Example]:
    return [
        Example("clip", functools.partial(_clip, "CLIPText", 49), _inputs),
        Example("clip_highest_id", functools.partial(_clip, "CLIPText", 2), _inputs),
        Example("metaclip_2", functools.partial(_clip, "MetaClip2Text", 49), _inputs),
        Example("classifier", functools.partial(_classifier, 3), _texts),
        Example("reranker", functools.partial(_classifier, 1), _texts),
    ]


ADAPTER = Adapter(
    name="row_selection",
    summary="One row per sequence selected by index (CLIP, classifiers on decoders) as a product with one-hot rows.",
    rules=("indirect-access", "index-duplicate", "op-fallback"),
    equivalence="exact",
    sites=_sites,
    apply=_apply,
    examples=_examples,
    order=80,
)
