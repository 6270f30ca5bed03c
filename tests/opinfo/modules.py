"""PyTorch's ModuleInfo entries of the modules that embedding models use, as calls that `judge` runs.

Parameters and buffers are arguments of the call, so that host, float64 reference and device have the same ones.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.testing._internal.common_modules import module_db

from tests.opinfo.judge import Call, Outcome, judge
from tests.opinfo.samples import in_mode, spread

_NAMES = """
Linear Embedding LayerNorm RMSNorm GroupNorm BatchNorm1d GELU SiLU ReLU ReLU6 LeakyReLU PReLU ELU Mish Hardswish
Softplus Tanh Sigmoid LogSigmoid Softmax LogSoftmax GLU MultiheadAttention TransformerEncoderLayer
TransformerEncoder Conv1d Conv2d AvgPool1d AdaptiveAvgPool1d MaxPool1d ConstantPad1d
"""
NAMES = frozenset(_NAMES.split())


def _entries() -> Iterator[Any]:
    """ModuleInfos, with the 16-bit dtypes that the device is for; PyTorch lists fp32 and fp64."""
    for info in module_db:
        if info.module_cls.__name__ in NAMES and info.module_cls.__module__.startswith("torch.nn."):
            entry = copy.copy(info)
            entry.dtypes = (torch.float16, torch.bfloat16, torch.float32)
            entry.train_and_eval_differ = False
            yield entry


MODULES = tuple(_entries())


def module_outcomes(info: Any, dtype: torch.dtype, mode: str, device: str) -> Iterator[tuple[int, Outcome]]:
    """Run the chosen inputs of a ModuleInfo in eval mode."""
    torch.manual_seed(0)
    inputs = info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=False, training=False)
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        for position in spread(len(inputs), 1):
            function, call = _as_call(info.module_cls, inputs[position], dtype)
            yield position, judge(in_mode(function, mode), call, device, reference=function)
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def _as_call(cls: type[torch.nn.Module], sample: Any, dtype: torch.dtype) -> tuple[Callable[..., Any], Call]:
    made, given = sample.constructor_input, sample.forward_input
    module = cls(*made.args, **made.kwargs).to(dtype).eval()
    state: dict[str, Tensor] = {**dict(module.named_parameters()), **dict(module.named_buffers())}

    def function(state: dict[str, Tensor], *args: Any, **kwargs: Any) -> Any:
        return torch.func.functional_call(module, state, args, kwargs)

    return function, ((state, *given.args), dict(given.kwargs))
