"""Convolutions as products: of patches with one matrix, of shifted rows with one matrix, of shifted rows with a vector.

No convolution lowers inside a graph (D5.1). One whose stride is its kernel cuts its input into patches, which the host
does before the first layer, because patches of pixels are no whole sticks; the rest is a matmul. One of stride 1 over
tokens adds up as many products as it has taps, of rows shifted by whole rows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hf_adapters.adapters import _probe
from hf_adapters.adapters._sticks import is_whole, round_up
from hf_adapters.protocols import Adapter, Example, PatcherProtocol, Site

_CAUSAL = "causal_conv1d_fn"


class PatchProduct(nn.Module):
    """Mixin for convolutions of any rank whose stride is their kernel.

    Attributes:
        patch_matrix: ``[out channels, elements of a patch, padded to whole sticks]``, derived.
    """

    patch_matrix: Tensor
    kernel_size: tuple[int, ...]
    bias: Tensor | None

    def forward(self, input: Tensor) -> Tensor:
        """``[batch, channels, *sizes] -> [batch, out channels, *patches]``; rows at the far ends that fill no patch are
        left out, as stock."""
        patches, grid = cut_patches(input.detach().cpu(), self.kernel_size)
        patches = F.pad(patches, (0, self.patch_matrix.shape[1] - patches.shape[-1]))
        rows = F.linear(patches.contiguous().to(input.device), self.patch_matrix, self.bias)
        return rows.transpose(1, 2).view(rows.shape[0], rows.shape[2], *grid)


def cut_patches(pixels: Tensor, kernel: tuple[int, ...]) -> tuple[Tensor, tuple[int, ...]]:
    """Patches ``[batch, number, channels * kernel elements]`` of ``[batch, channels, *sizes]``, and their grid."""
    batch, channels = pixels.shape[:2]
    grid = tuple(size // step for size, step in zip(pixels.shape[2:], kernel, strict=True))
    for axis, (count, step) in enumerate(zip(grid, kernel, strict=True)):
        pixels = pixels.narrow(2 + axis, 0, count * step)
    split = pixels.reshape(batch, channels, *(n for pair in zip(grid, kernel, strict=True) for n in pair))
    rank = len(kernel)
    order = (0, *range(2, 2 + 2 * rank, 2), 1, *range(3, 3 + 2 * rank, 2))
    return split.permute(order).reshape(batch, -1, channels * _product(kernel)), grid


def _product(sizes: tuple[int, ...]) -> int:
    return functools.reduce(int.__mul__, sizes, 1)


def patch_matrix(weight: Tensor) -> Tensor:
    """``[out, in, *kernel] -> [out, elements of a patch, padded with zeros to whole sticks]``."""
    flat = weight.flatten(1)
    return F.pad(flat, (0, round_up(flat.shape[1]) - flat.shape[1])).contiguous()


class TapProduct(nn.Module):
    """Mixin for convolutions of stride 1 over tokens that keep their number.

    Attributes:
        tap_matrix: ``[out channels, taps * in channels]``, derived.
    """

    tap_matrix: Tensor
    kernel_size: tuple[int]
    padding: tuple[int]
    bias: Tensor | None

    def forward(self, input: Tensor) -> Tensor:
        """``[batch, channels, tokens] -> [batch, out channels, tokens]``."""
        # Rows are shifted as a whole only when the channels are what sticks hold.
        rows = input.transpose(1, 2).contiguous()
        shifted = [shift(rows, tap - self.padding[0]) for tap in range(self.kernel_size[0])]
        return F.linear(torch.cat(shifted, dim=-1), self.tap_matrix, self.bias).transpose(1, 2)


def tap_matrix(weight: Tensor) -> Tensor:
    """``[out, in, taps] -> [out, taps * in]``."""
    return weight.transpose(1, 2).flatten(1).contiguous()


def shift(rows: Tensor, by: int) -> Tensor:
    """``[batch, tokens, channels]`` with row ``t`` replaced by row ``t + by``, zeros from outside."""
    tokens = rows.shape[1]
    if by == 0 or abs(by) >= tokens:
        return rows if by == 0 else torch.zeros_like(rows)
    missing = rows.new_zeros((rows.shape[0], abs(by), rows.shape[2]))
    return torch.cat([rows[:, by:], missing] if by > 0 else [missing, rows[:, :by]], dim=1)


def causal_taps(
    hidden_states: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None, **kwargs: Any
) -> Tensor:
    """Stands in for the causal convolution of each channel by itself (LFM2).

    Args:
        hidden_states: ``[batch, channels, tokens]``.
        weight: ``[channels, taps]``; the last tap belongs to the token itself.
        bias: ``[channels]``.
        activation: not supported, must be None.
        **kwargs: options of other kernels.

    Returns:
        ``[batch, channels, tokens]``.

    Raises:
        NotImplementedError: an activation was asked for.
    """
    if activation is not None:
        raise NotImplementedError(f"causal convolution with the activation {activation!r}")
    rows, taps = hidden_states.transpose(1, 2), weight.shape[1]
    total = rows * weight[:, taps - 1]
    for tap in range(taps - 1):
        total = total + shift(rows, tap - taps + 1) * weight[:, tap]
    return (total if bias is None else total + bias).transpose(1, 2)


def _causal(function: Callable[..., Any]) -> bool:
    """The function is the one that :func:`causal_taps` stands in for."""
    generator = torch.Generator().manual_seed(5)
    x, w = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((2, 3, 7), (3, 4)))
    stock = _probe.run(_Call(function), x, w, None)
    return _probe.same(causal_taps(x, w, None), stock)


class _Call(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def _kind(module: nn.Module) -> str | None:
    """Which of the mixins computes a convolution; None for one that none does."""
    if not isinstance(module, nn.modules.conv._ConvNd) or isinstance(module, (PatchProduct, TapProduct)):
        return None
    plain = module.groups == 1 and set(module.dilation) == {1} and not module.transposed
    if module.stride == module.kernel_size and (module.padding == "valid" or not any(module.padding)) and plain:
        return "patches"
    if not plain or isinstance(module.padding, str):
        return None
    same = isinstance(module, nn.Conv1d) and module.stride == (1,) and module.padding_mode == "zeros"
    keeps = 2 * module.padding[0] == module.kernel_size[0] - 1
    return "taps" if same and keeps and is_whole(module.in_channels) else None


def _sites(model: nn.Module) -> list[Site]:
    found = []
    for path, module in model.named_modules():
        kind = _kind(module)
        if kind is not None:
            before = f"convolution, kernel {tuple(module.kernel_size)}, stride {tuple(module.stride)}"
            after = "product with patches" if kind == "patches" else "product with shifted rows"
            found.append(Site(path=path, kind=kind, before=before, after=after))
        function = _probe.global_names(type(module).forward).get(_CAUSAL)
        if function not in (None, causal_taps) and _causal(function):
            after = "sum of shifted rows"
            found.append(Site(path=path, kind="causal", before="convolution of each channel", after=after))
    return found


def _apply(patcher: PatcherProtocol, model: nn.Module, site: Site) -> None:
    module = model.get_submodule(site.path)
    if site.kind == "causal":
        patcher.rebind(module, {_CAUSAL: causal_taps})
    elif site.kind == "taps":
        patcher.swap_class(module, TapProduct)
        patcher.derive(module, "tap_matrix", ("weight",), tap_matrix)
    else:
        # Patches are cut on the host, which a graph cannot do.
        patcher.swap_class(module, PatchProduct, runs_eagerly=True)
        patcher.derive(module, "patch_matrix", ("weight",), patch_matrix)


def _siglip() -> nn.Module:
    from transformers import SiglipVisionConfig, SiglipVisionModel

    torch.manual_seed(3)
    config = SiglipVisionConfig(
        hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=1, image_size=28, patch_size=7
    )
    model: nn.Module = SiglipVisionModel(config).double().eval()
    return model


def _vision(patch: int) -> nn.Module:
    from transformers import CLIPVisionConfig, CLIPVisionModel

    torch.manual_seed(3)
    config = CLIPVisionConfig(
        hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=1, image_size=28,
        patch_size=patch, initializer_range=0.1,
    )  # fmt: skip
    model: nn.Module = CLIPVisionModel(config).double().eval()
    return model


def _convolution(kind: str) -> nn.Module:
    torch.manual_seed(3)
    made: dict[str, nn.Module] = {
        "taps": nn.Conv1d(64, 70, 5, padding=2),
        "patches_3d": nn.Conv3d(3, 70, (2, 4, 4), stride=(2, 4, 4), bias=False),
    }
    return nn.Sequential(made[kind]).double().eval()


def _lfm2() -> nn.Module:
    from transformers import Lfm2Config, Lfm2Model

    torch.manual_seed(3)
    config = Lfm2Config(
        vocab_size=40, hidden_size=64, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1,
        intermediate_size=64, initializer_range=0.1, layer_types=["conv"], pad_token_id=0,
    )  # fmt: skip
    model: nn.Module = Lfm2Model(config).double().eval()
    return model


def _random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def _examples() -> list[Example]:
    ids = torch.arange(3, 17).view(2, 7)
    return [
        Example("patches_of_7", functools.partial(_vision, 7), lambda: {"pixel_values": _random(2, 3, 28, 28)}),
        Example("patches_of_8", functools.partial(_vision, 8), lambda: {"pixel_values": _random(1, 3, 28, 28)}),
        Example("valid_padding", _siglip, lambda: {"pixel_values": _random(2, 3, 28, 28)}),
        Example("patches_3d", functools.partial(_convolution, "patches_3d"), lambda: {"input": _random(2, 3, 2, 9, 8)}),
        Example("taps", functools.partial(_convolution, "taps"), lambda: {"input": _random(2, 64, 9)}),
        Example("causal", _lfm2, lambda: {"input_ids": ids, "use_cache": False}),
    ]


ADAPTER = Adapter(
    name="convolutions",
    summary="Convolutions of patches and over tokens as products.",
    rules=("conv",),
    equivalence="reassociated",
    sites=_sites,
    apply=_apply,
    examples=_examples,
    order=16,
)
