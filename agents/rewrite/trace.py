"""From one module and its calls to a graph of PyTorch functions that stands for every size of its inputs.

`torch.export` traces down to aten operators, which nobody wants to read in an adapter. Here a function mode notes what
the forward calls (`torch.pow`, `Tensor.view`, `F.softmax`), children count as one call, and the numbers in the
arguments are told apart by tracing twice, with other sizes: what changes with the inputs becomes `x.shape[1]`, what
equals an attribute of the module becomes that attribute, and the rest are constants.
"""

from __future__ import annotations

import copy
import inspect
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from hf_adapters.agents.rewrite.modules import held_by, shared_attributes
from hf_adapters.agents.rewrite.sizes import Sizes, unify
from hf_adapters.validation.functions import Call

_OPERATORS: dict[str, Callable[..., Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv, "neg": operator.neg,
    "__add__": operator.add, "__sub__": operator.sub, "__mul__": operator.mul, "__truediv__": operator.truediv,
    "true_divide": operator.truediv, "__neg__": operator.neg, "__getitem__": operator.getitem,
    "__eq__": operator.eq, "__ne__": operator.ne, "__lt__": operator.lt, "__le__": operator.le, "__gt__": operator.gt,
    "__ge__": operator.ge, "__and__": operator.and_, "__or__": operator.or_, "__invert__": operator.invert,
    "__matmul__": torch.matmul, "__pow__": torch.pow,
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
}  # fmt: skip
_REFLECTED: dict[str, Callable[..., Any]] = {
    "__radd__": operator.add, "__rsub__": operator.sub, "__rmul__": operator.mul, "__rtruediv__": operator.truediv,
    "__rdiv__": operator.truediv, "__rmatmul__": torch.matmul, "__rpow__": torch.pow,
}  # fmt: skip
_READS = ("item", "tolist", "__bool__", "__int__", "__float__", "__index__", "numpy", "equal", "allclose", "is_nonzero")
"""Calls that look at values: what follows may depend on them."""
_IDENTITIES = ("dropout", "contiguous", "detach", "clone")


class Untraceable(Exception):
    """The forward does something that a graph cannot stand for; the message says what."""


@dataclass(kw_only=True)
class Traced:
    """A module's forward as a graph.

    Attributes:
        module: the module, as the other adapters left it.
        graph: nodes call torch functions, tensor methods and children; placeholders are the tensor arguments.
        calls: the calls that were traced, each with other sizes.
        inputs: placeholder name -> where it comes from: (parameter, index in it or None).
        given: parameter -> constant that it was called with, for parameters that hold no tensor.
        fixed: attributes whose value stands in the graph as a number.
        opened: paths below the module whose operations are nodes.
        placed: the module as it is where the form will be used, with what other adapters hold there.
    """

    module: nn.Module
    graph: fx.Graph
    calls: tuple[Call, ...]
    inputs: dict[str, tuple[str, int | None]]
    given: dict[str, Any]
    fixed: tuple[str, ...] = ()
    opened: tuple[str, ...] = ()
    placed: nn.Module | None = None

    @property
    def attributes(self) -> dict[str, Any]:
        """Plain attributes by dotted name that a form may read: those that are the same where it will be used."""
        return shared_attributes(self.module, self.placed or self.module, self.opened)

    @property
    def foreign(self) -> tuple[str, ...]:
        """Tensors that the graph reads and another adapter put there: no form can stand by itself with them."""
        held = {name for name, _ in (*self.module.named_parameters(), *self.module.named_buffers())}
        read = dict.fromkeys(str(n.target) for n in self.graph.nodes if n.op == "get_attr")
        return tuple(name for name in read if name not in held and isinstance(held_by(self.module, name), Tensor))

    def arguments(self, call: int) -> list[Any]:
        """Values of the placeholders in one call."""
        bound = bind(self.module, self.calls[call])
        return [bound[name] if index is None else bound[name][index] for name, index in self.inputs.values()]


def bind(module: nn.Module, call: Call) -> dict[str, Any]:
    """The arguments of a call by the names of the forward's parameters; those of `**kwargs` by their own names."""
    signature = inspect.signature(module.forward)
    bound = signature.bind(*call.args, **call.kwargs)
    named: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            named.update(value)
        elif kind is inspect.Parameter.VAR_POSITIONAL:
            if value:
                raise Untraceable(f"it takes more positional arguments than it names (*{name})")
        else:
            named[name] = value
    return named


def trace(
    module: nn.Module, calls: tuple[Call, Call], opened: Collection[str] = (), placed: nn.Module | None = None
) -> Traced:
    """The graph of a module's forward.

    Args:
        module: on the CPU, float32, in evaluation mode.
        calls: two calls whose inputs have the same ranks and other sizes.
        opened: paths of modules below it whose operations become nodes, instead of one node for their call.
        placed: see `Traced`; the module itself by default.

    Raises:
        Untraceable: the forward depends on values, changes tensors in place behind views, or takes different ways.
    """
    first = _record(copy.deepcopy(module), calls[0], torch.float32, opened)
    second = _record(copy.deepcopy(module), calls[1], torch.float64, opened)
    sizes = Sizes.of(first.shapes, second.shapes, shared_attributes(module, placed or module, opened), first.floating)
    try:
        graph = unify(first.graph, second.graph, sizes)
    except ValueError as error:
        raise Untraceable(str(error)) from None
    graph.eliminate_dead_code(is_impure_node=lambda node: node.op in ("placeholder", "output"))
    for node in reversed(list(graph.nodes)):
        if node.op == "placeholder" and not node.users:
            graph.erase_node(node)
            del first.inputs[node.target]
    fixed = tuple(sorted(sizes.fixed))
    return Traced(
        module=module,
        graph=graph,
        calls=calls,
        inputs=first.inputs,
        given=first.given,
        fixed=fixed,
        opened=tuple(sorted(opened)),
        placed=placed,
    )


@dataclass
class _Recorded:
    graph: fx.Graph
    shapes: dict[str, tuple[int, ...]]
    inputs: dict[str, tuple[str, int | None]]
    given: dict[str, Any]
    floating: set[str] = field(default_factory=set)


def _record(module: nn.Module, call: Call, dtype: torch.dtype, opened: Collection[str]) -> _Recorded:
    module = cast(module, dtype)
    call = Call(_cast(call.args, dtype), _cast(call.kwargs, dtype))
    recorder = _Recorder(module, opened)
    found = _Recorded(recorder.graph, {}, {}, {})
    for name, value in bind(module, call).items():
        several = isinstance(value, (tuple, list))
        parts: list[tuple[int | None, Any]] = [*enumerate(value)] if several else [(None, value)]
        if not any(isinstance(part, Tensor) for _, part in parts):
            found.given[name] = value
            continue
        for index, part in parts:
            if not isinstance(part, Tensor):
                raise Untraceable(f"the argument {name} holds something else beside tensors")
            key = name if index is None else f"{name}_{index}"
            found.inputs[key] = (name, index)
            found.shapes[key] = tuple(part.shape)
            if part.is_floating_point():
                found.floating.add(key)
            recorder.know(part, recorder.graph.placeholder(key))
    try:
        with torch.no_grad(), recorder.children(), recorder:
            result = module(*call.args, **call.kwargs)
    except Untraceable:
        raise
    except Exception as error:  # a forward may raise anything where tensors are recorded
        raise Untraceable(f"its forward fails when it is traced: {type(error).__name__}: {str(error)[:160]}") from error
    recorder.graph.output(recorder.arguments(result))
    return found


def cast(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The module itself in another dtype, with the tables that adapters derived, which are plain attributes."""
    for inner in module.to(dtype).modules():
        for name, value in list(vars(inner).items()):
            if isinstance(value, Tensor) and value.is_floating_point():
                inner.__dict__[name] = value.to(dtype)
    return module


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, Tensor):
        return value.detach().to(dtype) if value.is_floating_point() else value.detach().clone()
    if isinstance(value, Mapping):
        return {key: _cast(item, dtype) for key, item in value.items()}
    if type(value) in (tuple, list):
        return type(value)(_cast(item, dtype) for item in value)
    return value


@dataclass
class _Recorder(TorchFunctionMode):
    """Notes every torch function that is called outside of children."""

    module: nn.Module
    opened: Collection[str] = ()
    graph: fx.Graph = field(default_factory=fx.Graph)
    known: dict[int, tuple[Tensor, fx.Node]] = field(default_factory=dict)
    depth: int = 0

    def __post_init__(self) -> None:
        super().__init__()
        self.names = {id(t): n for n, t in [*self.module.named_parameters(), *self.module.named_buffers()]}
        for path, inner in self.module.named_modules():
            for key, value in vars(inner).items():
                if isinstance(value, Tensor):
                    self.names.setdefault(id(value), f"{path}.{key}" if path else key)

    def know(self, tensor: Tensor, node: fx.Node) -> None:
        """From now on `node` stands for `tensor`."""
        self.known[id(tensor)] = (tensor, node)

    def children(self) -> Any:
        """While this is entered, a call of a child is one node."""
        return _Children(self)

    def arguments(self, value: Any) -> Any:
        """`value` with nodes in place of tensors."""
        if isinstance(value, Tensor):
            return self._node(value)
        if isinstance(value, slice):
            return slice(*(self.arguments(part) for part in (value.start, value.stop, value.step)))
        if isinstance(value, torch.Size):
            return tuple(value)
        if type(value) in (tuple, list):
            return type(value)(self.arguments(item) for item in value)
        if type(value) is dict:
            return {key: self.arguments(item) for key, item in value.items()}
        plain = (int, float, bool, str, torch.dtype, torch.device, torch.layout, torch.memory_format)
        if value is None or value is Ellipsis or isinstance(value, plain):
            return value
        raise Untraceable(f"it passes on a {type(value).__name__}")

    def _node(self, tensor: Tensor) -> fx.Node:
        if id(tensor) in self.known:
            return self.known[id(tensor)][1]
        name = self.names.get(id(tensor))
        if name is None:
            raise Untraceable(f"it uses a tensor{list(tensor.shape)} from elsewhere")
        self.know(tensor, self.graph.get_attr(name))
        return self.known[id(tensor)][1]

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = getattr(func, "__name__", str(func))
        if self.depth or (name == "__get__" and not isinstance(result, Tensor)):
            return result
        if name in _READS and any(isinstance(a, Tensor) for a in args):
            raise Untraceable(f"its way depends on values (Tensor.{name})")
        if name in ("__setitem__", "__set__"):
            raise Untraceable("it writes into a tensor")
        own = isinstance(result, Tensor) and any(result is given for given in args)
        if own and not _in_place(name) and not name.startswith("__i"):
            # A cast to the dtype that it has gives the tensor itself, which keeps its own node.
            result = result.detach()
        if any(True for _ in _tensors(result)):
            self._call(func, name, args, kwargs, result)
        return result

    def _call(self, func: Any, name: str, args: Any, kwargs: Any, result: Any) -> None:
        if name in _IDENTITIES and _changes_nothing(name, args, kwargs):
            self.know(result, self._node(args[0] if args else kwargs["input"]))
            return
        if name == "__get__":
            name = func.__self__.__name__
            if name not in ("T", "mT"):
                raise Untraceable(f"it reads Tensor.{name}")
            node = self.graph.call_method("transpose", (self._node(args[0]), -1, -2))
        else:
            node = self._made(func, name.removesuffix("_") if _in_place(name) else name, args, kwargs)
        self.keep(result, node)

    def _made(self, func: Any, name: str, args: Any, kwargs: Any) -> fx.Node:
        plain = {key: item for key, item in kwargs.items() if item is not None and not key.startswith("_")}
        # What works in place is written as what gives a new tensor.
        plain.pop("inplace", None)
        args, kwargs = self.arguments(tuple(args)), self.arguments(plain)
        inner = "__" + name[3:] if name.startswith("__i") and name != "__invert__" else name
        own = getattr(func, "__name__", "")
        method = any(getattr(torch.Tensor, each, None) is func for each in (own, f"__{own}__"))
        if method and inner in _REFLECTED:
            return self.graph.call_function(_REFLECTED[inner], (args[1], args[0]))
        if inner in _OPERATORS and not kwargs and (method or getattr(torch, inner, None) is func):
            return self.graph.call_function(_OPERATORS[inner], args)
        if method:
            # Copies that only change strides are left out, so what was a view may need one.
            return self.graph.call_method("reshape" if name == "view" else name, args, kwargs)
        for owner in (F, torch):
            if getattr(owner, name, None) is not None and getattr(owner, func.__name__, None) is func:
                return self.graph.call_function(getattr(owner, name), args, kwargs)
        raise Untraceable(f"it calls {name}, which is no function of torch")

    def keep(self, result: Any, node: fx.Node) -> None:
        """Note that `node` gave `result`, a tensor or a structure of them."""
        if isinstance(result, Tensor):
            self.know(result, node)
        elif isinstance(result, (tuple, list)):
            for index, part in enumerate(result):
                if isinstance(part, Tensor):
                    self.know(part, self.graph.call_function(operator.getitem, (node, index)))
        elif isinstance(result, Mapping):
            for key, part in result.items():
                if isinstance(part, Tensor):
                    self.know(part, self.graph.call_function(getattr, (node, key)))
        elif result is not None:
            raise Untraceable(f"something gives back a {type(result).__name__}")


class _Children:
    """Hooks that turn the call of a child into one node."""

    def __init__(self, recorder: _Recorder) -> None:
        self.recorder = recorder
        self.handles: list[Any] = []

    def __enter__(self) -> None:
        for path, child in self.recorder.module.named_modules():
            if path and path not in self.recorder.opened:
                self.handles.append(child.register_forward_pre_hook(self._before, prepend=True))
                self.handles.append(child.register_forward_hook(self._after(path), with_kwargs=True))

    def __exit__(self, *_: object) -> None:
        for handle in self.handles:
            handle.remove()

    def _before(self, *_: Any) -> None:
        self.recorder.depth += 1

    def _after(self, path: str) -> Any:
        def note(child: nn.Module, args: Any, kwargs: Any, result: Any) -> None:
            recorder = self.recorder
            recorder.depth -= 1
            if recorder.depth:
                return
            if isinstance(child, (nn.Dropout, nn.Identity)):
                recorder.know(result, recorder.arguments(args[0]))
                return
            node = recorder.graph.call_module(path, recorder.arguments(tuple(args)), recorder.arguments(dict(kwargs)))
            recorder.keep(result, node)

        return note


def _in_place(name: str) -> bool:
    return name.endswith("_") and not name.startswith("__")


def _changes_nothing(name: str, args: Any, kwargs: Any) -> bool:
    if name != "dropout":
        return True
    training = kwargs.get("training", args[2] if len(args) > 2 else True)
    probability = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
    return not training or probability == 0.0


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)
