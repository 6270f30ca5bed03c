"""The whole way for an application: patch, move to the device, compile region by region, call as before.

    >>> hf_adapters.compile(model)
    >>> model(**tokenizer("a sentence", return_tensors="pt")).last_hidden_state   # CPU tensors in and out
    >>> hf_adapters.decompile(model)                                               # bitwise the stock model again
"""

from __future__ import annotations

import copy
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from hf_adapters import _capture
from hf_adapters._inputs import is_text_model, prepare
from hf_adapters._outputs import check_attentions, to_caller
from hf_adapters._patcher import Patcher
from hf_adapters._placement import FP16_MAX, Placement
from hf_adapters._positions import find_position_table, refuses_padding
from hf_adapters._regions import CompiledForward, compiled, find_regions, strict_dynamo, uncompiled
from hf_adapters.errors import InputError, PatchConflictError
from hf_adapters.patching import (
    PatchedModel,
    check_inference,
    check_model,
    check_target,
    patch,
    patch_state,
    remove_patch,
    resolve_release,
)

STATE = "_hf_adapters_compiled"
DTYPES = (torch.float16, torch.bfloat16)

M = TypeVar("M", bound=nn.Module)

# One process uses one card, and a program's address patching must not overlap with another launch (D3.4).
_device_lock = threading.RLock()
_running = threading.local()


@dataclass
class CompiledState:
    """What a compiled model carries besides its patch.

    Attributes:
        target: ``"spyre"`` or ``"cpu"``.
        dtype: dtype of the parameters on the device.
        release: torch-spyre release compiled for.
        backend: backend of the regions; None runs them uncompiled.
        caller_dtype: dtype in which floating point results are returned.
        placement: the parameters; None on the host.
        patcher: steps taken by compile, on top of the patch.
        whole: the model is one region.
        padding_stops: the model refuses lengths beyond its position table even as padding.
    """

    target: str
    dtype: torch.dtype
    release: str | None
    backend: str | None
    caller_dtype: torch.dtype
    placement: Placement | None
    patcher: Patcher
    whole: bool
    padding_stops: bool

    @property
    def options(self) -> tuple[Any, ...]:
        return self.target, self.dtype, self.release, self.backend


class CompiledModel:
    """Mixin of a compiled model: its forward takes and gives tensors on the caller's device."""

    keeps_signature = True

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As the stock forward, for inference; see :func:`compile`."""
        return _run(self, args, kwargs)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        # sentence-transformers calls .to(device) before every batch. A compiled model has its place already.
        return self


class CompiledTransformer(CompiledModel):
    """The same for a transformers model, which tells its callers a device and a dtype."""

    @property
    def device(self) -> torch.device:
        """Where callers put their tensors: the host."""
        return super().device if getattr(_running, "inside", False) else torch.device("cpu")  # type: ignore[misc, no-any-return]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the results, that of the stock model."""
        if getattr(_running, "inside", False):
            return super().dtype  # type: ignore[misc, no-any-return]
        return _state(self).caller_dtype

    def save_pretrained(self, *args: Any, **kwargs: Any) -> Any:
        """As stock: writes the original weights and config."""
        stock = decompile(copy.deepcopy(self))  # type: ignore[type-var]
        return stock.save_pretrained(*args, **kwargs)  # type: ignore[attr-defined]


def compile(
    model: M,
    *,
    target: str = "spyre",
    dtype: torch.dtype = torch.float16,
    only: Iterable[str] | None = None,
    release: str | None = None,
) -> M:
    """Make a model run on the device, in place; it is called as before, with CPU tensors.

    A transformers text model is padded inside (length to multiples of 64, batch to powers of two), and each repeated
    layer and each part around the layers is compiled as a region. Any other module is compiled as one region and never
    padded. A module that holds transformers models (a ``SentenceTransformer``) gets those compiled in place.

    Args:
        model: any ``nn.Module`` in eval mode.
        target: ``"spyre"``; ``"cpu"`` does the same on the host, without moving and compiling.
        dtype: dtype of the parameters on the device, float16 or bfloat16.
        only: names of the adapters to use, see :func:`hf_adapters.patch`.
        release: torch-spyre release to compile for; the current one of spyre_backend when None.

    Returns:
        The model given. Its results have the dtype that its parameters had, are on the device of the inputs and never
        require a gradient.

    Raises:
        ModelTypeError: ``model`` is not an eager ``nn.Module``.
        PatchConflictError: the model is compiled already, with other options.
        WeightRangeError: a weight does not fit into ``dtype``; the model is stock again.
    """
    return compile_with(model, target=target, dtype=dtype, only=only, release=release, backend="inductor")


def compile_with(
    model: M,
    *,
    target: str = "spyre",
    dtype: torch.dtype = torch.float16,
    only: Iterable[str] | None = None,
    release: str | None = None,
    backend: str | None = None,
) -> M:
    """As :func:`compile`, with the backend of the regions given; None runs them op by op on the target."""
    check_model(model, "compile")
    check_target(target)
    if dtype not in DTYPES:
        raise InputError(f"dtype must be torch.float16 or torch.bfloat16 on the device (D1.6), got {dtype}")
    release = resolve_release(release)
    inner = [] if is_transformer(model) else outermost_transformers(model)
    for part in inner:
        compile_with(part, target=target, dtype=dtype, only=only, release=release, backend=backend)
    if inner:
        return model
    backend = backend if target == "spyre" else None
    options = (target, dtype, release, backend)
    state: CompiledState | None = model.__dict__.get(STATE)
    if state is not None:
        if state.options != options:
            raise PatchConflictError(
                f"{type(model).__name__} is compiled already with (target, dtype, release, backend) = {state.options}, "
                f"asked for now: {options}; call hf_adapters.decompile(model) first"
            )
        return model
    patch(model, target=target, only=only, release=release)
    with _undo_on_error(model):
        _compile(model, options)
    return model


def _compile(model: nn.Module, options: tuple[Any, ...]) -> None:
    target, dtype, release, backend = options
    caller_dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    patcher = Patcher(model)
    whole = not is_transformer(model) or not any(isinstance(m, nn.ModuleList) for m in model.modules())
    placement = Placement(torch.device(target), dtype) if target != "cpu" else None
    padding_stops = is_text_model(model) and refuses_padding(model, find_position_table(model))
    state = CompiledState(target, dtype, release, backend, caller_dtype, placement, patcher, whole, padding_stops)
    model.__dict__[STATE] = state
    if backend is not None and not whole:
        for _, module in find_regions(model):
            patcher.set_attr(module, "forward", CompiledForward(module, backend, release))
    patcher.swap_class(model, CompiledTransformer if is_transformer(model) else CompiledModel)
    if placement is not None:
        placement.move(model)


@contextmanager
def _undo_on_error(model: nn.Module) -> Iterator[None]:
    try:
        yield
    except BaseException:
        _undo(model)
        raise


def _undo(model: nn.Module) -> None:
    state: CompiledState | None = model.__dict__.pop(STATE, None)
    if state is not None:
        if state.placement is not None:
            state.placement.sync(model)
            state.placement.restore()
        state.patcher.undo()
    if patch_state(model) is not None:
        remove_patch(model)


def decompile(model: M) -> M:
    """Undo :func:`compile`, and the patch with it: original parameters, class and config are back, bitwise.

    A parameter that was changed while the model was compiled keeps its new value. A stock model is left alone.

    Raises:
        ModelTypeError: ``model`` is not an eager ``nn.Module``.
    """
    check_model(model, "decompile")
    for part in [model] if STATE in model.__dict__ else outermost_transformers(model):
        if STATE in part.__dict__:
            with _device_lock:
                _undo(part)
    return model


def is_transformer(model: nn.Module) -> bool:
    """True for a model of the transformers library."""
    # A model of the library exists only when its modeling_utils has been imported.
    library = sys.modules.get("transformers.modeling_utils")
    return library is not None and isinstance(model, library.PreTrainedModel)


def outermost_transformers(model: nn.Module) -> list[nn.Module]:
    """The transformers models inside of a module, without those inside of another one."""
    if is_transformer(model):
        return [model]
    return [found for child in model.children() for found in outermost_transformers(child)]


def _state(model: Any) -> CompiledState:
    state: CompiledState = model.__dict__[STATE]
    return state


@torch.compiler.disable
def _run(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    state = _state(model)
    check_inference(model)
    with _device_lock, ExitStack() as stack:
        # One grad mode for all callers: graphs are guarded by it, and inference tensors would poison later calls.
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        if torch.is_autocast_enabled("cpu"):
            stack.enter_context(torch.autocast("cpu", enabled=False))
        stack.enter_context(_inside())
        if state.target == "spyre":
            stack.enter_context(_release(state.release))
        if state.backend is not None:
            stack.enter_context(strict_dynamo())
        masters: dict[int, Tensor] = {}
        if state.placement is not None:
            state.placement.sync(model)
            masters = state.placement.masters()
        patched = patch_state(model)
        assert patched is not None
        patched.patcher.refresh(masters)
        runner = _run_text if is_text_model(model) else _run_module
        return runner(model, state, args, kwargs)


def _run_text(model: Any, state: CompiledState, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    call = prepare(model, args, kwargs, padding_stops=state.padding_stops)
    device = _callers_device(args, kwargs)
    arguments = {name: _to_target(value, state, name) for name, value in call.arguments.items()}
    with ExitStack() as stack:
        if not call.captures:
            _capture.remove_hooks(model)
        elif call.attentions:
            # The weights come out of modules inside the regions, where a compiled graph keeps them.
            stack.enter_context(uncompiled())
        outputs = _stock_forward(model, state)(**arguments)
    if call.attentions:
        check_attentions(outputs)
    result = to_caller(outputs, dtype=state.caller_dtype, device=device, extent=call.extent)
    return result.to_tuple() if call.as_tuple and hasattr(result, "to_tuple") else result


def _run_module(model: Any, state: CompiledState, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    device = _callers_device(args, kwargs)
    moved = [_to_target(value, state, f"argument {i}") for i, value in enumerate(args)]
    named = {name: _to_target(value, state, name) for name, value in kwargs.items()}
    floats = [v.dtype for v in (*args, *kwargs.values()) if isinstance(v, Tensor) and v.is_floating_point()]
    outputs = _stock_forward(model, state)(*moved, **named)
    return to_caller(outputs, dtype=floats[0] if floats else state.caller_dtype, device=device, extent=None)


def _stock_forward(model: Any, state: CompiledState) -> Any:
    """The forward below our own mixins: the stock one, or that of an adapter on the model itself."""
    bound = super(PatchedModel, model).forward
    if state.backend is None or not state.whole:
        return bound
    function = compiled(bound.__func__, state.backend, state.release)
    return function.__get__(model) if hasattr(function, "__get__") else lambda *a, **k: function(model, *a, **k)


def _to_target(value: Any, state: CompiledState, name: str) -> Any:
    """A tensor, or a structure of tensors, on the device: floats in the dtype of the parameters, ids as they are."""
    if isinstance(value, dict):
        return type(value)({key: _to_target(item, state, f"{name}[{key!r}]") for key, item in value.items()})
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return type(value)(_to_target(item, state, name) for item in value)
    if not isinstance(value, Tensor):
        return value
    value = value.detach().contiguous()
    if state.placement is None:
        return value
    value = value.cpu()
    if value.is_floating_point():
        _check_input_range(value, state.dtype, name)
        value = value.to(state.dtype)
    return value.to(state.placement.device)


def _check_input_range(value: Tensor, dtype: torch.dtype, name: str) -> None:
    if dtype != torch.float16 or value.dtype == torch.float16 or value.numel() == 0:
        return
    largest = float(value.abs().nan_to_num(posinf=0.0).amax())
    if largest > FP16_MAX:
        raise InputError(
            f"{name} holds values up to {largest:.3g}, beyond {FP16_MAX:.0f}, the largest float16; scale it, or compile "
            "with dtype=torch.bfloat16"
        )


def _callers_device(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device:
    tensors = (value for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
    first = next(tensors, None)
    return first.device if first is not None else torch.device("cpu")


@contextmanager
def _inside() -> Iterator[None]:
    before = getattr(_running, "inside", False)
    _running.inside = True
    try:
        yield
    finally:
        _running.inside = before


def _release(release: str | None) -> Any:
    from spyre_backend import capabilities

    return capabilities.use(release or capabilities.current().release)
