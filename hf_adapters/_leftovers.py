"""Modules that a device rule speaks about and that no adapter took: the ``left`` part of a patch report."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from hf_adapters.protocols import Leftover

ELEMENTS_PER_STICK = 64
"""fp16 elements in one 128-byte stick (D2, constants)."""


def leftovers(model: nn.Module, handled: Iterable[str]) -> tuple[Leftover, ...]:
    """What is known not to compile and lies neither in nor below a module that an adapter handles.

    Args:
        model: the patched model.
        handled: paths of the patched modules; a patched module answers for everything below it.
    """
    covered = tuple(handled)
    if "" in covered:
        return ()
    found = []
    for path, module in model.named_modules():
        if any(path == done or path.startswith(done + ".") for done in covered):
            continue
        problem = _problem(module)
        if problem is not None:
            rule, reason = problem
            found.append(Leftover(path, type(module).__name__, rule, reason))
    return tuple(found)


def _problem(module: nn.Module) -> tuple[str, str] | None:
    """(rule id, reason) when the module alone breaks a rule of the device (D6.2, D6.11)."""
    if isinstance(module, nn.Linear):
        if module.in_features % ELEMENTS_PER_STICK:
            return "matmul-k-stick", f"in_features {module.in_features} is not a multiple of {ELEMENTS_PER_STICK}"
        if module.out_features == 1:
            return "matmul-out-one", "out_features is 1"
    if isinstance(module, nn.LayerNorm) and len(module.normalized_shape) != 1:
        return "layer-norm-shape", f"normalizes over {len(module.normalized_shape)} dimensions"
    if isinstance(module, nn.modules.conv._ConvNd):
        return "conv", f"kernel {tuple(module.kernel_size)} goes through a convolution"
    return None
