"""What is known to break a rule of the device in a patched model, judged by its state, not by what was reported."""

from __future__ import annotations

from torch import nn

from hf_adapters._classes import split_class
from hf_adapters.adapters import _probe
from hf_adapters.adapters._heads import SIZES
from hf_adapters.adapters._sticks import features, has_plan, is_whole
from hf_adapters.protocols import Leftover

_NAMES = {
    "pow": "pow-scalar-exponent",
    "sin": "op-unsupported",
    "cos": "op-unsupported",
    "erf": "op-unsupported",
    "arange": "op-unsupported",
    "tril": "op-unsupported",
    "triu": "op-unsupported",
    "cumsum": "op-unsupported",
    "argmax": "op-unsupported",
    "isinf": "op-unsupported",
    "isnan": "op-unsupported",
    "masked_fill_": "op-unsupported",
    "bitwise_or": "op-unsupported",
    "gather": "indirect-access",
    "nonzero": "dynamic-shape",
    "index_add_": "op-unsupported",
    "scatter_": "op-unsupported",
    "_grouped_mm": "op-unsupported",
    "rotate_half": "rope-half-stick",
    "apply_rotary_pos_emb": "rope-half-stick",
}
"""Names in the bytecode of a layer that stand for an operation without a kernel (D5.2 to D5.4, D6.2)."""

_QUANTISED = ("bitsandbytes.", "torch.ao.nn.quantized", "torch.ao.nn.qat", "gptqmodel.", "auto_gptq.", "awq.")


def untreated(model: nn.Module) -> tuple[Leftover, ...]:
    """Modules with a trait that the device cannot take and that no adapter changed.

    Only what runs inside repeated layers, or multiplies, is looked at. An empty result is no proof that the model
    compiles.

    Args:
        model: a model after :func:`hf_adapters.patch`; a stock one shows what there is to do.
    """
    found: list[Leftover] = []
    layers = tuple(path + "." for path, module in _layers(model))
    for path, module in model.named_modules():
        for rule, reason in _always(module, model.get_submodule(path.rpartition(".")[0])):
            found.append(Leftover(path, type(module).__name__, rule, reason))
        if any((path + ".").startswith(layer) for layer in layers):
            for rule, reason in _in_layer(module):
                found.append(Leftover(path, type(module).__name__, rule, reason))
    return tuple(found)


def is_quantised(module: nn.Module) -> bool:
    """True for a module that holds packed or integer weights (bitsandbytes, GPTQ, AWQ, torch.ao)."""
    if split_class(type(module))[0].__module__.startswith(_QUANTISED):
        return True
    own = (*module._parameters.items(), *module._buffers.items())
    return any(
        tensor is not None and "weight" in name and not tensor.is_floating_point() and not tensor.is_complex()
        for name, tensor in own
    )


def _layers(model: nn.Module) -> list[tuple[str, nn.Module]]:
    return [
        (f"{path}.{name}", layer)
        for path, module in model.named_modules()
        if isinstance(module, nn.ModuleList)
        for name, layer in module.named_children()
    ]


def _always(module: nn.Module, parent: nn.Module) -> list[tuple[str, str]]:
    found = []
    if is_quantised(module):
        found.append(("dtype-unsupported", "quantised weights: the device multiplies floating point weights only"))
    elif (size := features(module)) is not None:
        if not is_whole(size[0]) and not has_plan(module, 1):
            found.append(("matmul-k-stick", f"contracts over {size[0]} features, not whole sticks"))
        if size[1] == 1 and not has_plan(module, 0):
            found.append(("matmul-out-one", "one output feature"))
    # Some forwards read the weights of a convolution instead of calling it.
    treated = any(split_class(type(m))[1] for m in (module, parent))
    if isinstance(module, nn.modules.conv._ConvNd) and not treated:
        found.append(("conv", f"convolution with kernel {tuple(module.kernel_size)}"))
    return found


def _in_layer(module: nn.Module) -> list[tuple[str, str]]:
    base, mixins = split_class(type(module))
    if mixins:
        return []
    found = []
    names = _probe.code_names(base.__dict__["forward"]) if "forward" in base.__dict__ else frozenset()
    found += [(_NAMES[name], f"its forward uses {name}") for name in sorted(names & set(_NAMES))]
    if isinstance(module, nn.LayerNorm):
        found.append(("layer-norm-shape", f"native layer norm over {tuple(module.normalized_shape)}"))
    size = next((module.__dict__[n] for n in SIZES if isinstance(module.__dict__.get(n), int)), None)
    if size is not None and not is_whole(size):
        found.append(("view-stick-split", f"heads of {size}"))
    return found
