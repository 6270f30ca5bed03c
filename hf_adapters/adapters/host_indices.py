"""Integer inputs handled on the host: token, type and position ids, relative position buckets."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hf_adapters.adapters import _probe
from hf_adapters.protocols import Adapter, Example, PatcherProtocol, Site

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


class IdsAnywhere(nn.Module):
    """Mixin for embedding tables: ids may be on another device than the table."""

    def forward(self, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Integer ids of any shape ``[...]`` -> ``[..., width]``."""
        result: Tensor = super().forward(input.to(self.weight.device), *args, **kwargs)  # type: ignore[misc]
        return result


class HostIds(nn.Module):
    """Mixin for modules that turn ids into embeddings: their integer arithmetic (comparison, cumsum, gather) runs on
    the host, where it has kernels (D5.2, D5.4); the tables stay where they are.

    Attributes:
        default_types: the stock module takes zeros for missing token types.
    """

    keeps_signature = True
    default_types: bool = False

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As stock; integer tensors may be on any device."""
        bound = inspect.signature(super().forward).bind(*args, **kwargs)  # type: ignore[misc]
        given = {name: _on_host(value) for name, value in bound.arguments.items() if name != "kwargs"}
        if self.default_types and given.get("token_type_ids") is None:
            shaped = given.get("input_ids")
            size = given["inputs_embeds"].shape[:-1] if shaped is None else shaped.shape
            given["token_type_ids"] = torch.zeros(size, dtype=torch.long)
        return super().forward(**given, **bound.arguments.get("kwargs", {}))  # type: ignore[misc]


def _on_host(value: Any) -> Any:
    return value.cpu() if isinstance(value, Tensor) and value.dtype in _INTEGERS else value


class HostPositionBias(nn.Module):
    """Mixin for encoders that look a bias up by relative position (MPNet): buckets, lookup and transpose on the host.

    A lookup followed by permute has no device copy (D6.10).
    """

    def compute_position_bias(self, x: Tensor, position_ids: Tensor | None = None, num_buckets: int = 32) -> Tensor:
        """Bias ``[1, heads, tokens, tokens]`` (``[batch, ...]`` with ``position_ids``) for states ``x`` of any device."""
        if position_ids is None:
            steps = torch.arange(x.shape[1])[None, :]
        else:
            steps = position_ids.cpu()
        relative = steps[:, None, :] - steps[:, :, None]
        buckets = self.relative_position_bucket(relative, num_buckets=num_buckets)
        table = self.relative_attention_bias.weight
        values = F.embedding(buckets, table.detach().cpu())
        return values.permute(0, 3, 1, 2).contiguous().to(table.dtype).to(x.device)


def _holds_tables(module: nn.Module) -> bool:
    tables = any(isinstance(child, nn.Embedding) for child in module.children())
    arguments = inspect.signature(type(module).forward).parameters
    return tables and "input_ids" in arguments and not hasattr(module, "save_pretrained")


def _default_types(module: nn.Module) -> bool:
    types = module._buffers.get("token_type_ids")
    takes = "token_type_ids" in inspect.signature(type(module).forward).parameters
    return takes and types is not None and not bool(types.any())


def _sites(model: nn.Module) -> list[Site]:
    found = []
    for path, module in model.named_modules():
        if isinstance(module, nn.Embedding) and not isinstance(module, IdsAnywhere):
            after = "ids moved to where the table is"
            found.append(Site(path=path, kind="table", before="lookup", after=after))
        elif isinstance(module, (HostIds, HostPositionBias)):
            continue
        elif _holds_tables(module):
            meta = {"default_types": _default_types(module)}
            before, after = "integer arithmetic on the device", "integer arithmetic on the host"
            found.append(Site(path=path, kind="ids", before=before, after=after, meta=meta))
        elif {"compute_position_bias", "relative_position_bucket"} <= set(dir(type(module))):
            if isinstance(getattr(module, "relative_attention_bias", None), nn.Embedding) and _proven(module):
                before, after = "position buckets on the device", "position buckets on the host"
                found.append(Site(path=path, kind="position bias", before=before, after=after))
    return found


def _proven(module: nn.Module) -> bool:
    """The bias of the mixin equals the stock one up to the broadcast batch."""
    x = torch.empty(2, 70, 1, device=module.relative_attention_bias.weight.device)
    with torch.no_grad():
        stock = module.compute_position_bias(x)
        return _probe.same(HostPositionBias.compute_position_bias(module, x).expand_as(stock), stock)


def _apply(patcher: PatcherProtocol, model: nn.Module, site: Site) -> None:
    module = model.get_submodule(site.path)
    if site.kind == "table":
        patcher.swap_class(module, IdsAnywhere)
    elif site.kind == "position bias":
        patcher.swap_class(module, HostPositionBias)
    else:
        patcher.swap_class(module, HostIds, default_types=site.meta["default_types"])


def _mpnet() -> nn.Module:
    from transformers import MPNetConfig, MPNetModel

    torch.manual_seed(2)
    config = MPNetConfig(
        vocab_size=40, hidden_size=64, num_hidden_layers=1, num_attention_heads=1, intermediate_size=64,
        initializer_range=0.1, max_position_embeddings=80,
    )  # fmt: skip
    return MPNetModel(config).double().eval()


def _roberta() -> nn.Module:
    from transformers import RobertaConfig, RobertaModel

    torch.manual_seed(2)
    config = RobertaConfig(
        vocab_size=40, hidden_size=64, num_hidden_layers=1, num_attention_heads=1, intermediate_size=64,
        initializer_range=0.1, max_position_embeddings=80, type_vocab_size=2,
    )  # fmt: skip
    return RobertaModel(config).double().eval()


def _inputs() -> dict[str, Any]:
    ids = torch.randint(3, 40, (2, 70), generator=torch.Generator().manual_seed(1))
    ids[0, 50:] = 1
    return {"input_ids": ids, "attention_mask": (ids != 1).long()}


def _examples() -> list[Example]:
    return [Example("mpnet", _mpnet, _inputs), Example("roberta", _roberta, _inputs)]


ADAPTER = Adapter(
    name="host_indices",
    summary="Token, type and position ids and relative position buckets computed on the host.",
    rules=("op-fallback", "int64-compare-scalar", "indirect-access", "embedding-off-device"),
    equivalence="exact",
    sites=_sites,
    apply=_apply,
    examples=_examples,
    order=10,
)
