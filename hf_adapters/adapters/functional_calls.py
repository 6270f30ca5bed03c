"""Function calls inside the forwards of modules that are not transformers models, rewritten wherever they occur.

Adapters that look for modules cannot see ``q @ k`` or ``F.normalize(x)`` in the middle of somebody's forward. A torch
function mode around that forward sees every call, also while Dynamo traces it, and replaces those that the device
cannot lower.
"""

from __future__ import annotations

import dis
import functools
import inspect
import operator
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from hf_adapters.adapters import _probe
from hf_adapters.protocols import Adapter, Example, PatcherProtocol, Site

STICK = 64
"""fp16 elements in a stick; what a matmul sums over is a multiple of it (D6.11)."""

LARGEST_POWER = 4
_MATMULS = (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, operator.matmul, torch.bmm, torch.Tensor.bmm)
_POWERS = (torch.pow, torch.Tensor.pow, torch.Tensor.__pow__, operator.pow)
_NAMES = frozenset({"normalize", "pow", "square", "matmul", "bmm"})
_OPERATORS = frozenset({"@", "**", "@=", "**="})


class DeviceCalls(TorchFunctionMode):
    """Replaces ``F.normalize``, small integer powers and matmuls over a partly filled stick by what the device has."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """The call itself, or its replacement."""
        kwargs = kwargs or {}
        if func in _MATMULS and not kwargs and _ragged(args[0], args[1]):
            return func(*_whole_sticks(args[0], args[1]))
        if func in _POWERS and not kwargs and type(args[1]) in (int, float) and args[1] in range(2, LARGEST_POWER + 1):
            return _power(args[0], int(args[1]))
        if func is torch.square or func is torch.Tensor.square:
            return args[0] * args[0]
        if func is F.normalize:
            return _normalize(*args, **kwargs)
        return func(*args, **kwargs)


def _ragged(a: Any, b: Any) -> bool:
    if not isinstance(a, Tensor) or not isinstance(b, Tensor) or a.dim() < 2 or b.dim() < 2:
        return False
    return a.shape[-1] % STICK != 0


def _whole_sticks(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Both operands with zeros appended to what is summed over, up to a whole stick; cat may start mid-stick."""
    extra = -a.shape[-1] % STICK
    a = torch.cat([a, a.new_zeros((*a.shape[:-1], extra))], dim=-1)
    return a, torch.cat([b, b.new_zeros((*b.shape[:-2], extra, b.shape[-1]))], dim=-2)


def _power(x: Tensor, exponent: int) -> Tensor:
    result = x
    for _ in range(exponent - 1):
        result = result * x
    return result


def _normalize(x: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: Tensor | None = None) -> Tensor:
    """``F.normalize``; the length comes from products, because the stock norm is made of ``pow``."""
    if p != 2.0 or out is not None:
        return F.normalize(x, p=p, dim=dim, eps=eps, out=out)
    length = (x * x).sum(dim=dim, keepdim=True).sqrt()
    return x / length.clamp(min=_floor(eps, x.dtype))


def _floor(eps: float, dtype: torch.dtype) -> float:
    # 1e-12 is zero in the 16-bit format of the device, whose smallest number is about 2^-31 (D1.5): 0 / 0 is NaN.
    return max(eps, 2.0**-20) if dtype in (torch.float16, torch.bfloat16) else eps


class WithDeviceCalls(nn.Module):
    """Mixin of the outermost module: its forward runs under :class:`DeviceCalls`."""

    keeps_signature = True

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The stock forward."""
        with DeviceCalls():
            return super().forward(*args, **kwargs)


def _codes(function: Callable[..., Any]) -> Iterator[types.CodeType]:
    plain = inspect.unwrap(function)
    pending = [plain.__code__] if hasattr(plain, "__code__") else []
    while pending:
        code = pending.pop()
        yield code
        pending.extend(const for const in code.co_consts if inspect.iscode(const))


def _calls(module: nn.Module) -> list[str]:
    forward = type(module).forward
    found = _NAMES & _probe.code_names(forward)
    for code in _codes(forward):
        found |= {i.argrepr for i in dis.get_instructions(code) if i.opname == "BINARY_OP" and i.argrepr in _OPERATORS}
    return sorted(found)


def _sites(model: nn.Module) -> list[Site]:
    if hasattr(model, "save_pretrained") or isinstance(model, WithDeviceCalls):
        return []
    own = [module for module in model.modules() if not type(module).__module__.startswith(("torch.", "transformers."))]
    calls = sorted({call for module in own for call in _calls(module)})
    if not calls:
        return []
    before = f"calls of {', '.join(calls)}"
    return [Site(path="", kind="calls", before=before, after="products, padded matmuls", meta={"calls": calls})]


def _apply(patcher: PatcherProtocol, model: nn.Module, site: Site) -> None:
    patcher.swap_class(model.get_submodule(site.path) if site.path else model, WithDeviceCalls)


class _Calls(nn.Module):
    """Attention over a number of tokens that is no multiple of a stick, powers and a normalised result."""

    def forward(self, x: Tensor) -> Tensor:
        """``[rows, tokens, features]`` -> the same shape."""
        weights = torch.softmax(x @ x.transpose(-1, -2) / x.shape[-1] ** 0.5, dim=-1)
        mixed = torch.matmul(weights, x) + torch.bmm(weights, x) ** 3
        return F.normalize(mixed - x.pow(2) + x.square(), dim=-1)


def _inputs(tokens: int) -> dict[str, Any]:
    return {"x": torch.randn(2, tokens, 70, dtype=torch.float64, generator=torch.Generator().manual_seed(4))}


def _examples() -> list[Example]:
    return [Example(f"attention_{n}", lambda: _Calls().eval(), functools.partial(_inputs, n)) for n in (24, 64)]


ADAPTER = Adapter(
    name="functional_calls",
    summary="Function calls in forwards of one's own: normalize and powers as products, matmuls over whole sticks.",
    rules=("pow-scalar-exponent", "matmul-k-stick"),
    equivalence="padded",
    sites=_sites,
    apply=_apply,
    examples=_examples,
    order=200,
)
