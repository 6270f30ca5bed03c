"""Run a model whose layers do not fit into memory together: the weights of one layer at a time.

The model that is held has one layer of each kind (the carrier). It is called on all batches at once, each call inside
the one before, down to its first layer; there every layer of the whole model has its turn: its weights replace those of
the carrier's layer of its kind, and all batches pass through it. So each layer is read once a run, and nothing else
about a run changes: the carrier is patched, compiled, copied and compared as any model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

STREAM = "_hf_adapters_layer_stream"
_HIDDEN = "hidden_states"

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class LayerWeights(Protocol):
    """Where weights come from; plain data, since models are copied and built again in other processes."""

    def __call__(self, index: int) -> Iterator[tuple[str, Tensor]]:
        """Parameters of one layer of the whole model, by their names below the layer: float32 on the CPU."""
        ...


@dataclass(frozen=True, slots=True)
class LayerStream:
    """The layers of the whole model.

    Attributes:
        path: of the list of layers.
        kinds: for each layer of the whole model, the index of the carrier's layer that computes it.
        weights: of the layers.
    """

    path: str
    kinds: tuple[int, ...]
    weights: LayerWeights


def attach(model: nn.Module, stream: LayerStream) -> None:
    """Make `model` the carrier of a stream, holding the weights of the first layer of each kind."""
    model.__dict__[STREAM] = stream
    _first_of_each_kind(model, stream)


def stream_of(model: Any) -> LayerStream | None:
    """The stream that a model carries."""
    found: LayerStream | None = getattr(model, "__dict__", {}).get(STREAM)
    return found


def run(model: Any, calls: Sequence[Mapping[str, Any]], after: Callable[[int, int, Tensor], None]) -> list[Any]:
    """Outputs of the whole model, one for each call.

    Args:
        model: the carrier, stock, patched or compiled.
        calls: keyword arguments of its forward.
        after: told of each layer's output: index of the call, index of the layer, `[batch, length, hidden]`.
    """
    stream = stream_of(model)
    assert stream is not None
    others = [_arguments(model, stream, call) for call in calls]
    pending: list[Tensor] = []
    outputs: list[Any] = [None] * len(calls)
    finals: list[Any] = []
    current = 0

    def enter(*args: Any, **kwargs: Any) -> Any:
        nonlocal current
        at = len(pending)
        pending.append(args[0] if args else kwargs[_HIDDEN])
        if at + 1 < len(calls):
            outputs[at + 1] = model(**calls[at + 1])
        else:
            finals.extend(_all_layers(model, stream, forwards, pending, others, after))
        current = at
        return finals[at]

    layers = list(model.get_submodule(stream.path))
    forwards = [layer.forward for layer in layers]
    with ExitStack() as stack:
        stack.enter_context(replaced_forward(layers[0], enter))
        for layer in layers[1:]:
            stack.enter_context(replaced_forward(layer, lambda *_, **__: finals[current]))
        outputs[0] = model(**calls[0])
    _first_of_each_kind(model, stream)
    return outputs


def _all_layers(
    model: nn.Module,
    stream: LayerStream,
    forwards: Sequence[Callable[..., Any]],
    states: Sequence[Tensor],
    others: Sequence[Mapping[int, Arguments]],
    after: Callable[[int, int, Tensor], None],
) -> list[Any]:
    """What the last layer returns for each call."""
    hidden, returned = list(states), list[Any](states)
    for index, kind in enumerate(stream.kinds):
        _fill(model, stream, kind, index)
        for at, state in enumerate(hidden):
            args, kwargs = others[at][kind]
            returned[at] = forwards[kind](state, *args, **kwargs)
            hidden[at] = returned[at] if isinstance(returned[at], Tensor) else returned[at][0]
            after(at, index, hidden[at])
    return returned


def _arguments(model: Any, stream: LayerStream, call: Mapping[str, Any]) -> dict[int, Arguments]:
    """What the layer of each kind is given besides the hidden states, in one call of the carrier."""
    found: dict[int, Arguments] = {}
    with ExitStack() as stack:
        for kind, layer in enumerate(model.get_submodule(stream.path)):

            def note(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], kind: int = kind) -> None:
                found[kind] = (args[1:], {name: value for name, value in kwargs.items() if name != _HIDDEN})

            stack.callback(layer.register_forward_pre_hook(note, with_kwargs=True).remove)
        model(**call)
    return found


def _first_of_each_kind(model: nn.Module, stream: LayerStream) -> None:
    for kind in sorted(set(stream.kinds)):
        _fill(model, stream, kind, stream.kinds.index(kind))


def _fill(model: nn.Module, stream: LayerStream, kind: int, index: int) -> None:
    """Write the weights of layer `index` into the carrier's layer, and bring what follows from them up to date."""
    from hf_adapters._execution import STATE, CompiledState, bring_up_to_date
    from hf_adapters.validation.floor import HALF, load
    from hf_adapters.validation.runners import refresh_derived

    compiled: CompiledState | None = model.__dict__.get(STATE)
    placement = None if compiled is None else compiled.placement
    originals = {} if placement is None else {id(slot.device): slot.host for slot in placement.slots}
    held = dict(model.get_submodule(f"{stream.path}.{kind}").named_parameters())
    with _disable_current_modes(), torch.inference_mode(False), torch.no_grad():
        for name, value in stream.weights(index):
            target = originals.get(id(held[name]), held[name])
            target.copy_(load(value.to(target.dtype)) if target.dtype in HALF else value)
        if compiled is None:
            refresh_derived(model)
        else:
            bring_up_to_date(model, compiled)


@contextmanager
def replaced_forward(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Give one instance another forward; a compiled one has a forward of its own already."""
    before = module.__dict__.get("forward")
    module.__dict__["forward"] = forward
    try:
        yield
    finally:
        module.__dict__.pop("forward")
        if before is not None:
            module.__dict__["forward"] = before
