"""Hidden and feed-forward sizes that do not fill whole sticks, and single output features, padded with zeros."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hf_adapters._classes import split_class
from hf_adapters.adapters._rms import pad_any_norm
from hf_adapters.adapters._sticks import STICK, features, has_plan, pad_linear, spread_table
from hf_adapters.adapters._width import plan_widths
from hf_adapters.protocols import Adapter, Example, PatcherProtocol, Site


class PaddedTable(nn.Module):
    """Mixin for embedding tables: looks rows up in a copy with zeros at their end.

    Attributes:
        padded_table: ``[entries, padded width]``, derived.
    """

    padded_table: Tensor
    padding_idx: int | None

    def forward(self, input: Tensor) -> Tensor:
        """Ids ``[...]`` -> ``[..., padded width]``."""
        if self.padded_table.shape[0] == 1:
            return self.padded_table.expand(*input.shape, self.padded_table.shape[1])
        return F.embedding(input, self.padded_table, self.padding_idx)


class OneFeature(nn.Module):
    """Mixin for ``nn.Linear`` with one output feature, above the one that pads it to a stick of them."""

    def forward(self, input: Tensor) -> Tensor:
        """``[..., in] -> [..., 1]``: the first of the padded features."""
        padded: Tensor = super().forward(input)
        return padded[..., :1]


class CroppedOutputs(nn.Module):
    """Mixin for the model itself: embeddings given are widened, features returned are cut to their true width.

    Attributes:
        true_widths: padded width -> true width.
    """

    keeps_signature = True
    true_widths: dict[int, int]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As stock; layers inside see and return padded states."""
        given = kwargs.get("inputs_embeds")
        if isinstance(given, Tensor):
            padded = next((p for p, true in self.true_widths.items() if true == given.shape[-1]), given.shape[-1])
            kwargs["inputs_embeds"] = F.pad(given.cpu(), (0, padded - given.shape[-1])).to(given.device)
        return crop(super().forward(*args, **kwargs), self.true_widths)


def crop(value: Any, true_widths: Mapping[int, int]) -> Any:
    """Cuts the feature axis of every tensor of rank 1 to 3 in a model output; attention weights have rank 4."""
    if isinstance(value, Tensor):
        width = true_widths.get(value.shape[-1]) if 1 <= value.dim() <= 3 and value.is_floating_point() else None
        return value if width is None else value[..., :width]
    if isinstance(value, Mapping):
        items = {name: crop(item, true_widths) for name, item in value.items()}
        return type(value)(**items) if hasattr(value, "to_tuple") else type(value)(items)  # type: ignore[call-arg]
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(crop(item, true_widths) for item in value)
    return value


def _sites(model: nn.Module) -> list[Site]:
    return [*_width_sites(model), *_single_sites(model)]


def _single_sites(model: nn.Module) -> list[Site]:
    """Scores of rerankers and the like, which no product on the device yields by itself."""
    return [
        Site(path, "one feature", f"Linear {module.in_features} -> 1", "one of a stick of output features")
        for path, module in model.named_modules()
        if isinstance(module, nn.Linear) and module.out_features == 1 and not has_plan(module, 0)
    ]


def _width_sites(model: nn.Module) -> list[Site]:
    plan = plan_widths(model)
    if plan is None:
        return []
    found = []
    for path, (rows, columns) in plan.linears.items():
        module = model.get_submodule(path)
        size = features(module)
        assert size is not None
        before = f"{split_class(type(module))[0].__name__} {size[0]} -> {size[1]}"
        meta: dict[str, Any] = {"rows": rows, "columns": columns}
        found.append(Site(path=path, kind="linear", before=before, after="zero-padded to whole sticks", meta=meta))
    for kind, modules in (("norm", plan.norms), ("table", plan.tables)):
        for path, width in modules.items():
            meta = {"width": width, "padded": plan.padded[width]}
            after = f"rows of {plan.padded[width]}, {width} of them real"
            found.append(Site(path=path, kind=kind, before=f"rows of {width}", after=after, meta=meta))
    widths = {padded: width for width, padded in plan.padded.items()}
    found.append(Site(path="", kind="outputs", before="padded features", after="cut", meta={"widths": widths}))
    return found


def _apply(patcher: PatcherProtocol, model: nn.Module, site: Site) -> None:
    module = model.get_submodule(site.path)
    if site.kind == "linear":
        pad_linear(patcher, module, rows=site.meta["rows"], columns=site.meta["columns"])
    elif site.kind == "one feature" and isinstance(module, nn.Linear):
        pad_linear(patcher, module, rows=(1, 1, STICK))
        patcher.swap_class(module, OneFeature)
    elif site.kind == "norm":
        pad_any_norm(patcher, module, site.meta["width"], site.meta["padded"])
    elif site.kind == "table":
        patcher.swap_class(module, PaddedTable)
        patcher.derive(
            module, "padded_table", ("weight",), spread_table, plan=(1, site.meta["width"], site.meta["padded"])
        )
    else:
        patcher.swap_class(module, CroppedOutputs, true_widths=dict(site.meta["widths"]))


class _Block(nn.Module):
    """Example: a norm and a feed-forward network of crooked sizes, gated or not."""

    def __init__(self, gated: bool) -> None:
        super().__init__()
        self.gated = gated
        self.table = nn.Embedding(9, 70)
        self.norm = nn.LayerNorm(70)
        self.up = nn.Linear(70, 200 if gated else 100)
        self.down = nn.Linear(100, 70)

    def forward(self, input_ids: Tensor) -> Tensor:
        states: Tensor = self.norm(self.table(input_ids))
        inner: Tensor = self.up(states)
        if self.gated:
            first, gate = inner.chunk(2, dim=-1)
            inner = F.gelu(first) * gate
        else:
            inner = F.gelu(inner)
        result: Tensor = states + self.down(inner)
        return result


def _block(gated: bool) -> nn.Module:
    torch.manual_seed(8)
    return _Block(gated).double().eval()


def _block_inputs() -> dict[str, Tensor]:
    return {"input_ids": torch.arange(9).view(3, 3)}


def _bottleneck() -> nn.Module:
    """A width whose padded form is as wide as what leaves the model."""
    torch.manual_seed(8)
    return nn.Sequential(nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 64), nn.LayerNorm(64)).double().eval()


def _states() -> dict[str, Tensor]:
    return {"input": torch.randn(3, 64, generator=torch.Generator().manual_seed(9), dtype=torch.float64)}


def _score() -> nn.Module:
    torch.manual_seed(8)
    return nn.Sequential(nn.Linear(128, 1)).double().eval()


def _score_inputs() -> dict[str, Tensor]:
    return {"input": torch.randn(3, 128, generator=torch.Generator().manual_seed(9), dtype=torch.float64)}


def _examples() -> list[Example]:
    return [
        Example("one_feature", _score, _score_inputs),
        Example("feed_forward", functools.partial(_block, False), _block_inputs),
        Example("bottleneck", _bottleneck, _states),
        Example("gated", functools.partial(_block, True), _block_inputs),
    ]


ADAPTER = Adapter(
    name="width_padding",
    summary="Feature sizes padded with zeros to whole sticks, single scores to one; norms divide by the true count.",
    rules=("matmul-k-stick", "matmul-out-one"),
    equivalence="padded",
    sites=_sites,
    apply=_apply,
    examples=_examples,
    order=70,
)
