"""One call of a compiled model, from the caller's tensors to the caller's results."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hf_adapters import _capture
from hf_adapters._importable import importable
from hf_adapters._inputs import Call, Padding, is_text_model, no_decoder_inputs, prepare, stock_parameters
from hf_adapters._masks import HIDDEN
from hf_adapters._outputs import check_attentions, keep_logits, to_caller
from hf_adapters._patcher import Patcher
from hf_adapters._placement import FP16_MAX, Placement
from hf_adapters._regions import compiled, strict_dynamo, uncompiled
from hf_adapters.errors import InputError, UnsupportedOptionError
from hf_adapters.patching import PatchedModel, check_inference, patch_state
from spyre_backend.errors import SpyreUnsupported

STATE = "_hf_adapters_compiled"

# One process uses one card, and a program's address patching must not overlap with another launch (D3.4).
device_lock = threading.RLock()
_running = threading.local()


@dataclass
class CompiledState:
    """What a compiled model carries besides its patch.

    Attributes:
        target: ``"spyre"`` or ``"cpu"``.
        dtype: dtype of the parameters on the device; a module without matmuls is tried in float32 first.
        release: torch-spyre release compiled for.
        backend: backend of the regions; None runs them uncompiled.
        caller_dtype: dtype in which floating point results are returned.
        placement: the parameters; None on the host.
        patcher: steps taken by compile, on top of the patch.
        whole: the model is one region.
        padding: how far the lengths of inputs may be padded.
    """

    target: str
    dtype: torch.dtype
    release: str | None
    backend: str | None
    caller_dtype: torch.dtype
    placement: Placement | None
    patcher: Patcher
    whole: bool
    padding: Padding

    @property
    def options(self) -> tuple[Any, ...]:
        """What a second call of compile must ask for as well."""
        return self.target, self.dtype, self.release, self.backend


def compiled_state(model: Any) -> CompiledState:
    """The state that :func:`hf_adapters.compile` left on a model."""
    state: CompiledState = model.__dict__[STATE]
    return state


@torch.compiler.disable  # type: ignore[untyped-decorator]
def run(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The forward of a compiled model."""
    state = compiled_state(model)
    check_inference(model)
    with device_lock, ExitStack() as stack:
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
            stack.enter_context(importable(model))
        bring_up_to_date(model, state)
        runner = _run_text if is_text_model(model) else _run_module
        return runner(model, state, args, kwargs)


def bring_up_to_date(model: Any, state: CompiledState) -> None:
    """Follow what was written to parameters since the last call, on either side."""
    patched = patch_state(model)
    assert patched is not None
    if state.placement is None:
        patched.patcher.refresh()
        return
    state.placement.sync(model)
    masters = state.placement.masters()
    known = set(masters)
    patched.patcher.refresh(masters)
    state.placement.mark_written(known - set(masters))


def inside_a_run() -> bool:
    """True while this thread is inside the forward of a compiled model."""
    return bool(getattr(_running, "inside", False))


def _run_text(model: Any, state: CompiledState, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    call = prepare(model, args, kwargs, padding=state.padding)
    device = _callers_device(args, kwargs)
    arguments = {name: _to_target(value, state, name) for name, value in call.arguments.items()}
    with ExitStack() as stack:
        if call.attentions:
            # The weights come out of modules inside the regions, where a compiled graph keeps them.
            stack.enter_context(uncompiled())
        _capture.remove_hooks(model)
        if call.captures:
            stack.callback(_capture.remove_hooks, model)
            _capture.install_hooks(model, call.captures)
        try:
            outputs = _stock_forward(model, state)(**arguments)
        except ValueError as error:
            if getattr(model.config, "is_encoder_decoder", False) and "decoder_input_ids" in stock_parameters(model):
                raise no_decoder_inputs(model) from error
            raise
    if call.attentions:
        check_attentions(outputs)
    _check_pooled_scores(model, outputs, call)
    result = to_caller(outputs, dtype=state.caller_dtype, device=device, extent=call.extent)
    keep_logits(result, call.kept_logits)
    return result.to_tuple() if call.as_tuple and hasattr(result, "to_tuple") else result


def _check_pooled_scores(model: Any, outputs: Any, call: Call) -> None:
    """Refuse scores that a decoder's head took at the last position, because that one is padding of ours.

    Such a head looks for the last token that is not ``pad_token_id`` and, without one, takes the last position.
    """
    logits = outputs.get("logits") if isinstance(outputs, dict) else None
    padded = call.extent.padded_length > call.extent.length
    if not padded or not isinstance(logits, Tensor) or logits.dim() != 2 or not hasattr(model, "score"):
        return
    if getattr(model.config, "pad_token_id", None) is None or "input_ids" not in call.arguments:
        raise UnsupportedOptionError(
            f"{type(model).__name__} scores the last token of each row, and without a pad_token_id and input_ids it "
            "cannot tell it from padding; set model.config.pad_token_id and pass input_ids"
        )


def _run_module(model: Any, state: CompiledState, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    device = _callers_device(args, kwargs)
    names = [*stock_parameters(model), *(f"argument {i}" for i in range(len(args)))]
    moved = [_to_target(value, state, name) for name, value in zip(names, args, strict=False)]
    named = {name: _to_target(value, state, name) for name, value in kwargs.items()}
    floats = [v.dtype for v in (*args, *kwargs.values()) if isinstance(v, Tensor) and v.is_floating_point()]
    placement, outputs, refused = state.placement, None, False
    try:
        outputs = _stock_forward(model, state)(*moved, **named)
    except SpyreUnsupported:
        if placement is None or placement.dtype == state.dtype:
            raise
        refused = True
    if refused and placement is not None:
        # float32 was a try: only some operations have it (D1.6), and this module uses others. What fails from here on
        # is no consequence of the refusal, so it is not handled inside of it.
        placement.change_dtype(model, state.dtype)
        return run(model, args, kwargs)
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
        if "mask" in name:
            value = value.clamp(min=HIDDEN)  # an additive one hides with the smallest number of the caller's dtype
        _check_input_range(value, state.placement.dtype, name)
        value = value.to(state.placement.dtype)
    return value.to(state.placement.device)


def _check_input_range(value: Tensor, dtype: torch.dtype, name: str) -> None:
    if dtype != torch.float16 or value.dtype == torch.float16 or value.numel() == 0:
        return
    largest = float(value.abs().nan_to_num(posinf=0.0).amax())
    if largest > FP16_MAX:
        raise InputError(
            f"{name} holds values up to {largest:.3g}, beyond {FP16_MAX:.0f}, the largest float16; scale it, or "
            "compile with dtype=torch.bfloat16"
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
