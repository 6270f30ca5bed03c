"""Position ids, relative position buckets and masks as numbers, computed on the host, before the first layer."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hf_adapters.adapters import _probe
from hf_adapters.adapters._float_masks import FloatTokenMask, computes_with_masks
from hf_adapters.adapters._layer_bias import apply_bias, bias_sites
from hf_adapters.adapters._token_dropout import HostTokenDropout, drops_tokens
from hf_adapters.protocols import Adapter, Example, PatcherProtocol, Site

_FROM_IDS = "create_position_ids_from_input_ids"


def positions_after_padding(input_ids: Tensor, padding_idx: int) -> Tensor:
    """Positions that count real tokens from ``padding_idx + 1``; padding tokens get ``padding_idx``.

    Args:
        input_ids: int64 ``[batch, tokens]``.
        padding_idx: id of the padding token.

    Returns:
        int64 ``[batch, tokens]``.
    """
    real = (input_ids != padding_idx).long()
    return real.cumsum(dim=1) * real + padding_idx


class HostPositions(nn.Module):
    """Mixin for models whose positions depend on the token ids: cumsum and comparison have no kernel (D5.2, D5.3).

    Attributes:
        position_padding: the padding token, from which positions count.
        position_names: names of the forward arguments, in their order.
    """

    keeps_signature = True
    position_padding: int
    position_names: tuple[str, ...]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As stock; missing ``position_ids`` are computed on the host and moved to the device of ``input_ids``."""
        stock: Any = super().forward
        given = {**dict(zip(self.position_names, args, strict=False)), **kwargs}
        ids = given.get("input_ids")
        no_cache = given.get("cache") is None and given.get("past_key_values") is None
        if isinstance(ids, Tensor) and given.get("position_ids") is None and no_cache:
            given["position_ids"] = positions_after_padding(ids.cpu(), self.position_padding).to(ids.device)
            return stock(**given)
        return stock(*args, **kwargs)


class HostPositionBias(nn.Module):
    """Mixin for encoders that look a bias up by relative position (MPNet): buckets, lookup and transpose on the host.

    A lookup followed by permute has no device copy (D6.10).
    """

    relative_attention_bias: nn.Embedding
    relative_position_bucket: Callable[..., Tensor]

    def compute_position_bias(self, x: Tensor, position_ids: Tensor | None = None, num_buckets: int = 32) -> Tensor:
        """Bias ``[1, heads, tokens, tokens]``, or ``[batch, ...]`` with ``position_ids``, for states ``x``."""
        steps = torch.arange(x.shape[1])[None, :] if position_ids is None else position_ids.cpu()
        relative = steps[:, None, :] - steps[:, :, None]
        buckets = self.relative_position_bucket(relative, num_buckets=num_buckets)
        table = self.relative_attention_bias.weight
        values = F.embedding(buckets, table.detach().cpu())
        return values.permute(0, 3, 1, 2).contiguous().to(table.dtype).to(x.device)


def _stock_positions(module: nn.Module) -> Callable[..., Tensor] | None:
    own = getattr(type(module), _FROM_IDS, None)
    return own or _probe.global_names(type(module).forward).get(_FROM_IDS)


def _counted_from(module: nn.Module) -> int | None:
    """The padding token when the module computes positions as :func:`positions_after_padding` does."""
    stock, padding = _stock_positions(module), getattr(module, "padding_idx", None)
    if stock is None or not isinstance(padding, int):
        return None
    ids = torch.tensor([[padding, padding + 3, padding, padding + 2], [padding + 1] * 3 + [padding]])
    try:
        result = stock(ids, padding)
    except Exception:  # another signature: not the function this adapter knows
        return None
    same = isinstance(result, Tensor) and torch.equal(result, positions_after_padding(ids, padding))
    return padding if same else None


def _sites(model: nn.Module) -> list[Site]:
    found = bias_sites(model)
    if computes_with_masks(model):
        before, after = "computes with integer masks", "masks as numbers of the model's dtype"
        meta: dict[str, Any] = {"names": _names(model)}
        found.append(Site(path="", kind="float mask", before=before, after=after, meta=meta))
    for path, module in model.named_modules():
        arguments = inspect.signature(type(module).forward).parameters
        if drops_tokens(module):
            before, after = "share of mask tokens on the device", "share counted on the host"
            found.append(Site(path=path, kind="token dropout", before=before, after=after))
        elif {"input_ids", "position_ids"} <= set(arguments) and not isinstance(module, HostPositions):
            padding = next((p for p in map(_counted_from, module.children()) if p is not None), None)
            if padding is not None and not isinstance(getattr(module, "padding_idx", None), int):
                meta = {"names": _names(module), "padding": padding}
                before, after = "positions counted on the device", "positions counted on the host"
                found.append(Site(path=path, kind="positions", before=before, after=after, meta=meta))
        elif not isinstance(module, HostPositionBias) and _proven(module):
            before, after = "position buckets on the device", "position buckets on the host"
            found.append(Site(path=path, kind="position bias", before=before, after=after))
    return found


def _names(module: nn.Module) -> tuple[str, ...]:
    """Names of the forward arguments; inside of a graph no signature can be asked."""
    return tuple(name for name in inspect.signature(type(module).forward).parameters if name != "self")


def _proven(module: Any) -> bool:
    """The bias of the mixin equals the stock one up to the broadcast batch."""
    methods = {"compute_position_bias", "relative_position_bucket"} <= set(dir(type(module)))
    if not methods or not isinstance(getattr(module, "relative_attention_bias", None), nn.Embedding):
        return False
    x = torch.empty(2, 70, 1, device=module.relative_attention_bias.weight.device)
    with torch.no_grad():
        stock = module.compute_position_bias(x)
        return _probe.same(HostPositionBias.compute_position_bias(module, x).expand_as(stock), stock)


def _apply(patcher: PatcherProtocol, model: nn.Module, site: Site) -> None:
    module = model.get_submodule(site.path)
    if site.kind == "position bias":
        patcher.swap_class(module, HostPositionBias)
    elif site.kind == "token dropout":
        patcher.swap_class(module, HostTokenDropout)
    elif site.kind == "float mask":
        patcher.swap_class(module, FloatTokenMask, mask_names=site.meta["names"])
    elif site.kind in ("bound", "layer bias"):
        apply_bias(patcher, model, site)
    else:
        padding, names = site.meta["padding"], site.meta["names"]
        patcher.swap_class(module, HostPositions, position_padding=padding, position_names=names)


def _model(family: str) -> nn.Module:
    import transformers

    model_class, config_class = {
        "mpnet": (transformers.MPNetModel, transformers.MPNetConfig),
        "roberta": (transformers.RobertaModel, transformers.RobertaConfig),
        "luke": (transformers.LukeModel, transformers.LukeConfig),
    }[family]
    torch.manual_seed(2)
    options = {"entity_vocab_size": 10, "entity_emb_size": 16} if family == "luke" else {}
    config = config_class(
        **options, vocab_size=40, hidden_size=64, num_hidden_layers=1, num_attention_heads=1, intermediate_size=64,
        initializer_range=0.1, max_position_embeddings=80,
    )  # fmt: skip
    model: nn.Module = model_class(config)
    return model.double().eval()


def _t5(projection: str) -> nn.Module:
    from transformers import T5Config, T5EncoderModel

    torch.manual_seed(2)
    config = T5Config(
        vocab_size=40, d_model=64, d_kv=64, num_heads=2, d_ff=64, num_layers=2, feed_forward_proj=projection
    )
    model: nn.Module = T5EncoderModel(config)
    return model.double().eval()


def _esm() -> nn.Module:
    from transformers import EsmConfig, EsmModel

    torch.manual_seed(2)
    config = EsmConfig(
        vocab_size=40, hidden_size=64, num_hidden_layers=1, num_attention_heads=1, intermediate_size=64,
        initializer_range=0.1, max_position_embeddings=80, pad_token_id=1, mask_token_id=5, token_dropout=True,
        position_embedding_type="absolute", emb_layer_norm_before=True,
    )  # fmt: skip
    model: nn.Module = EsmModel(config).double().eval()
    return model


def _masked() -> dict[str, Any]:
    inputs = _inputs()
    inputs["input_ids"][0, 3:7] = 5
    return inputs


def _inputs() -> dict[str, Any]:
    ids = torch.randint(3, 40, (2, 70), generator=torch.Generator().manual_seed(1))
    ids[0, 50:] = 1
    return {"input_ids": ids, "attention_mask": (ids != 1).long()}


def _examples() -> list[Example]:
    models = [Example(name, functools.partial(_model, name), _inputs) for name in ("mpnet", "roberta", "luke")]
    models.append(Example("esm", _esm, _masked))
    kinds = ("relu", "gated-gelu")
    return [*models, *(Example(f"t5_{k.replace('-', '_')}", functools.partial(_t5, k), _inputs) for k in kinds)]


ADAPTER = Adapter(
    name="host_indices",
    summary="Position ids, relative position buckets and token masks that a model computes with, made on the host.",
    rules=(
        "op-fallback",
        "int64-compare-scalar",
        "dtype-cast",
        "indirect-access",
        "embedding-off-device",
        "op-unsupported",
    ),
    equivalence="exact",
    sites=_sites,
    apply=_apply,
    examples=_examples,
    order=10,
)
