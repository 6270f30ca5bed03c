"""The whole way for an application: patch, move to the device, compile region by region, call as before.

>>> hf_adapters.compile(model)
>>> model(**tokenizer("a sentence", return_tensors="pt")).last_hidden_state   # CPU tensors in and out
>>> hf_adapters.decompile(model)                                               # bitwise the stock model again
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

import torch
from torch import nn

from hf_adapters._classes import rebuild, split_class
from hf_adapters._execution import STATE, CompiledState, compiled_state, device_lock, inside_a_run, run
from hf_adapters._inputs import Padding, is_text_model, pad_token
from hf_adapters._invariance import padding_changes_values
from hf_adapters._patcher import Patcher
from hf_adapters._placement import FP16_MAX, Placement, largest
from hf_adapters._positions import find_position_table, refuses_padding
from hf_adapters._regions import CompiledForward, find_regions
from hf_adapters._towers import STATE as TOWERS
from hf_adapters._towers import is_transformer, mark, parts, unmark
from hf_adapters.adapters._traits import is_quantised
from hf_adapters.errors import DeviceUnavailableError, InputError, ModelTypeError, PatchConflictError
from hf_adapters.patching import check_model, check_target, patch, patch_state, remove_patch, resolve_release

DTYPES = (torch.float16, torch.bfloat16)

M = TypeVar("M", bound=nn.Module)


class CompiledModel:
    """Mixin of a compiled model: its forward takes and gives tensors on the caller's device."""

    keeps_signature = True

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As the stock forward, for inference; see :func:`compile`."""
        return run(self, args, kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        twin: Any = rebuild(*split_class(type(self)))
        memo[id(self)] = twin
        twin.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        return twin

    def reduce_patched(self) -> tuple[Any, ...]:
        """Pickle as a stock model on the host and the way to compile it again.

        Pools of processes share tensors, which only those of the host can be, and the originals are there anyway.
        """
        state = compiled_state(self)
        patched = patch_state(self)  # type: ignore[arg-type]
        assert patched is not None
        return _compile_again, (stock_twin(self), *state.options, patched.adapters)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        # sentence-transformers calls .to(device) before every batch. A compiled model has its place already, and its
        # format there; after .half() its results are in half precision, as those of heads behind it are.
        state = compiled_state(self)
        state.caller_dtype = fn(torch.empty(0, dtype=state.caller_dtype)).dtype
        return self


class CompiledTransformer(CompiledModel):
    """The same for a transformers model, which tells its callers a device and a dtype."""

    @property
    def device(self) -> torch.device:
        """Where callers put their tensors: the host."""
        if inside_a_run():
            return super().device  # type: ignore[misc, no-any-return]
        return torch.device("cpu")

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the results, that of the stock model."""
        if inside_a_run():
            return super().dtype  # type: ignore[misc, no-any-return]
        return compiled_state(self).caller_dtype

    def save_pretrained(self, *args: Any, **kwargs: Any) -> Any:
        """As stock: writes the original weights and config."""
        return stock_twin(self).save_pretrained(*args, **kwargs)

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> Any:
        """As stock, on the original weights; the model is compiled again around the new ones."""
        model: Any = self
        patched = patch_state(model)
        assert patched is not None
        target, dtype, release, backend = compiled_state(model).options
        try:
            return decompile(model).resize_token_embeddings(*args, **kwargs)
        finally:
            compile_with(model, target=target, dtype=dtype, only=patched.adapters, release=release, backend=backend)


def stock_twin(model: Any) -> Any:
    """A stock copy that shares the original weights with a compiled model, as far as they are up to date."""
    memo: dict[int, Any] = {}
    on_host = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    for part in model.modules():
        placement = compiled_state(part).placement if STATE in part.__dict__ else None
        if placement is not None:
            placement.sync(part)
            memo |= {id(host): host for host in placement.masters().values()}
            for slot in placement.slots:
                on_host.pop(id(slot.device), None)
    return decompile(copy.deepcopy(model, memo | on_host))


def _compile_again(
    model: Any, target: str, dtype: torch.dtype, release: str | None, backend: str | None, adapters: tuple[str, ...]
) -> Any:
    return compile_with(model, target=target, dtype=dtype, only=adapters, release=release, backend=backend)


def compile(
    model: M,
    *,
    target: str = "spyre",
    dtype: torch.dtype | Literal["auto"] = torch.float16,
    only: Iterable[str] | None = None,
    release: str | None = None,
) -> M:
    """Make a model run on the device, in place; it is called as before, with CPU tensors.

    A transformers text model is padded inside (length to multiples of 64, batch to powers of two), and each repeated
    layer and each part around the layers is compiled as a region. Any other module is compiled as one region and never
    padded; without linear layers it runs in float32 if the device has all its operations in float32 (D1.6). A module
    that holds transformers models (a ``SentenceTransformer``) gets those compiled in place, and so does a model of
    several towers whose embeddings methods give (``CLIPModel.get_text_features``).

    Args:
        model: any ``nn.Module`` in eval mode.
        target: ``"spyre"``; ``"cpu"`` does the same on the host, without moving and compiling.
        dtype: dtype of the parameters on the device, float16 or bfloat16. ``"auto"`` takes bfloat16 when the weights
            are bfloat16 or one of them is beyond float16, else float16; what a model's values reach is not measured
            here, as :func:`hf_adapters.validate` does.
        only: names of the adapters to use, see :func:`hf_adapters.patch`.
        release: torch-spyre release to compile for; the current one of spyre_backend when None.

    Returns:
        The model given. Its results have the dtype that its parameters had, are on the device of the inputs and never
        require a gradient.

    Raises:
        ModelTypeError: ``model`` is not an eager ``nn.Module``, or its weights are quantised or on the meta device.
        PatchConflictError: the model is compiled already, with other options.
        WeightRangeError: a weight does not fit into ``dtype``; the model is stock again.
    """
    return compile_with(model, target=target, dtype=dtype, only=only, release=release, backend="inductor")


def compile_with(
    model: M,
    *,
    target: str = "spyre",
    dtype: torch.dtype | Literal["auto"] = torch.float16,
    only: Iterable[str] | None = None,
    release: str | None = None,
    backend: str | None = None,
) -> M:
    """As :func:`compile`, with the backend of the regions given; None runs them op by op on the target."""
    check_model(model, "compile")
    check_target(target)
    if dtype != "auto" and dtype not in DTYPES:
        raise InputError(f'dtype must be torch.float16, torch.bfloat16 or "auto" on the device (D1.6), got {dtype!r}')
    _check_available(target)
    check_weights(model)
    release = resolve_release(release)
    if inner := parts(model):
        with _undo_on_error(model, *inner):
            for part in inner:
                compile_with(part, target=target, dtype=dtype, only=only, release=release, backend=backend)
            mark(model)
        return model
    backend = backend if target == "spyre" else None
    state: CompiledState | None = model.__dict__.get(STATE)
    if dtype == "auto":
        dtype = fitting_dtype(model) if state is None else state.dtype
    options = (target, dtype, release, backend)
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


def check_weights(model: nn.Module) -> None:
    """Refuse a model whose weights cannot be placed, before anything is changed.

    Raises:
        ModelTypeError: a weight has no values yet (meta device), or is quantised.
    """
    name = type(model).__name__
    empty = next((path for path, tensor in model.named_parameters() if tensor.device.type == "meta"), None)
    if empty is not None:
        raise ModelTypeError(
            f"compile: {empty} of {name} is on the meta device and has no values; load the weights first, for instance "
            "with from_pretrained, or model.to_empty and load_state_dict"
        )
    packed = next(((path, module) for path, module in model.named_modules() if is_quantised(module)), None)
    if packed is not None:
        raise ModelTypeError(
            f"compile: {packed[0] or name} of {name} is a {type(packed[1]).__name__} with quantised weights, and the "
            "device multiplies floating point weights only; load the checkpoint in float, or call model.dequantize()"
        )


def fitting_dtype(model: nn.Module) -> torch.dtype:
    """bfloat16 for weights that are bfloat16 already, or beyond float16; else float16, which rounds less."""
    for parameter in model.parameters():
        if parameter.dtype == torch.bfloat16 or (parameter.is_floating_point() and largest(parameter) > FP16_MAX):
            return torch.bfloat16
    return torch.float16


def _check_available(target: str) -> None:
    module = getattr(torch, target, None)
    if target != "cpu" and (module is None or not module.is_available()):
        raise DeviceUnavailableError(
            f"there is no {target} device in this process: torch.{target} is not registered or finds none. Check that "
            "the package is installed, that TORCH_DEVICE_BACKEND_AUTOLOAD is not 0, or use target='cpu'"
        )


def _compile(model: nn.Module, options: tuple[Any, ...]) -> None:
    target, dtype, release, backend = options
    caller_dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    patcher = Patcher(model)
    whole = not is_transformer(model) or not any(isinstance(m, nn.ModuleList) for m in model.modules())
    first_dtype = torch.float32 if whole and backend is not None and _may_run_in_float32(model, dtype) else dtype
    placement = Placement(torch.device(target), first_dtype) if target != "cpu" else None
    padding: Padding = "free"
    if is_text_model(model):
        table = find_position_table(model)
        padding = "in table" if refuses_padding(model, table) else padding
        padding = "never" if padding_changes_values(model, pad_token(model, table)) else padding
    state = CompiledState(target, dtype, release, backend, caller_dtype, placement, patcher, whole, padding)
    model.__dict__[STATE] = state
    if backend is not None and not whole:
        for _, module in find_regions(model):
            patcher.set_attr(module, "forward", CompiledForward(module, backend, release))
    patcher.swap_class(model, CompiledTransformer if is_transformer(model) else CompiledModel)
    if placement is not None:
        placement.move(model)


def _may_run_in_float32(model: nn.Module, dtype: torch.dtype) -> bool:
    """Norms, activations and poolings: what the device can do in float32 (D1.6) need not be rounded to 9 bits."""
    if dtype != torch.float16 or is_transformer(model):
        return False
    matmuls = (nn.Linear, nn.Bilinear, nn.modules.conv._ConvNd, nn.RNNBase, nn.MultiheadAttention)
    parameters = [p for p in model.parameters() if p.is_floating_point()]
    return not any(isinstance(m, matmuls) for m in model.modules()) and all(
        p.dtype == torch.float32 for p in parameters
    )


@contextmanager
def _undo_on_error(*models: nn.Module) -> Iterator[None]:
    before = [model for model in models if STATE in model.__dict__ or TOWERS in model.__dict__]
    try:
        yield
    except BaseException:
        for model in models:
            if model not in before:
                _undo(model)
        raise


def _undo(model: nn.Module) -> None:
    unmark(model)
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
    for part in list(model.modules()):
        if STATE in part.__dict__ or TOWERS in part.__dict__:
            with device_lock:
                _undo(part)
    return model
