"""Apply adapters to one model instance, and take them off again.

>>> import hf_adapters
>>> hf_adapters.patch(model)             # this instance only; the class and other instances stay stock
>>> print(hf_adapters.patch_report(model))
>>> hf_adapters.unpatch(model)           # bitwise the stock outputs again
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import nn

from hf_adapters._patcher import Patcher
from hf_adapters.adapters._traits import untreated
from hf_adapters.catalogue import catalogue, select, source_hash
from hf_adapters.errors import (
    AdapterError,
    HfAdaptersError,
    ModelTypeError,
    NotPatchedError,
    PatchConflictError,
    TrainingModeError,
    UnknownTargetError,
)
from hf_adapters.protocols import Adapter, AppliedAdapter, LeftOut, PatchReport, Site

TARGETS = ("spyre", "cpu")
STATE = "_hf_adapters_patch"

M = TypeVar("M", bound=nn.Module)


@dataclass
class PatchState:
    """What a patched model carries: the recorded steps, the report and the options it was patched with."""

    patcher: Patcher
    report: PatchReport
    adapters: tuple[str, ...]


class PatchedModel:
    """Mixin of the patched model itself: refuses training mode and refreshes derived tensors before each forward."""

    keeps_signature = True

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The stock forward on the patched modules, without gradients.

        Raises:
            TrainingModeError: the model, or a module of it, is in training mode.
        """
        state: PatchState = self.__dict__[STATE]
        if torch.compiler.is_compiling():
            if state.patcher.derived:
                _refresh_outside_graph(self)
        else:
            check_inference(self)
            state.patcher.refresh()
        with torch.no_grad():
            return super().forward(*args, **kwargs)  # type: ignore[misc]


class PatchedTransformer(PatchedModel):
    """The same for a transformers model, whose config is part of what gets saved."""

    def save_pretrained(self, *args: Any, **kwargs: Any) -> Any:
        """As stock; writes the config that the model had before it was patched."""
        state: PatchState = self.__dict__[STATE]
        patched_config = self.__dict__["config"]
        self.__dict__["config"] = state.patcher.stock_config(self)  # type: ignore[arg-type]
        try:
            return super().save_pretrained(*args, **kwargs)  # type: ignore[misc]
        finally:
            self.__dict__["config"] = patched_config

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> Any:
        """As stock, on the host: new rows are drawn around the mean of the old ones by float32 products (D1.6)."""
        state: PatchState = self.__dict__[STATE]
        model: Any = self
        place, stock = model.device, state.patcher.stock_config(model)
        try:
            model.cpu()
            table = super().resize_token_embeddings(*args, **kwargs)  # type: ignore[misc]
        finally:
            model.to(place)
        stock.get_text_config().vocab_size = model.config.get_text_config().vocab_size
        return table


@torch.compiler.disable(  # type: ignore[untyped-decorator, no-untyped-call]
    reason="what hf_adapters derived from parameters is made anew when they have changed, and that is no part of a "
    "graph; call torch.compile without fullgraph=True, or hf_adapters.compile(model)"
)
def _refresh_outside_graph(model: Any) -> None:
    model.__dict__[STATE].patcher.refresh()


def check_inference(model: Any) -> None:
    """Refuse a model that is, even in part, in training mode.

    Raises:
        TrainingModeError: dropout would be active in the stock model and is not on the device.
    """
    for path, module in model.named_modules():
        if module.training:
            raise TrainingModeError(
                f"{type(model).__name__} is patched for inference, but {path or 'it'} is in training mode, where the "
                "stock model applies dropout; call model.eval() first, or hf_adapters.unpatch(model) to train it"
            )


def patch(model: M, *, target: str = "spyre", only: Iterable[str] | None = None, release: str | None = None) -> M:
    """Patch this model instance for the device, in place; patching twice is the same as patching once.

    Args:
        model: any ``nn.Module``; unknown architectures are patched as far as adapters apply.
        target: ``"spyre"``, or ``"cpu"`` to run the same rewrites on the host. Nothing is moved.
        only: names of the adapters to use; all of the catalogue when None.
        release: torch-spyre release to patch for; the current one of spyre_backend when None.

    Returns:
        The model given.

    Raises:
        ModelTypeError: ``model`` is not an eager ``nn.Module``.
        UnknownAdapterError: ``only`` names an adapter that does not exist.
        PatchConflictError: the model is patched already, with other adapters.
        AdapterError: an adapter failed; the model is stock again.
    """
    return patch_with(model, select(catalogue(), only), target=target, release=release)


def patch_with(model: M, adapters: Iterable[Adapter], *, target: str = "spyre", release: str | None = None) -> M:
    """As :func:`patch`, with the adapters given instead of those of the catalogue (drafts, tests)."""
    check_model(model, "patch")
    check_target(target)
    release = resolve_release(release)
    known = [(adapter, adapter.left_out(release)) for adapter in adapters]
    chosen = tuple(adapter for adapter, reason in known if reason is None)
    left_out = tuple(LeftOut(adapter.name, reason) for adapter, reason in known if reason is not None)
    names = tuple(a.name for a in chosen)
    state = patch_state(model)
    if state is not None:
        if state.adapters != names:
            raise PatchConflictError(
                f"{type(model).__name__} is patched already with the adapters {', '.join(state.adapters) or 'none'}; "
                f"asked for now: {', '.join(names) or 'none'}. Call hf_adapters.unpatch(model) first"
            )
        return model
    patcher = Patcher(model)
    try:
        applied = tuple(a for a in (_apply(patcher, model, adapter) for adapter in chosen) if a is not None)
        report = PatchReport(target, release, applied, untreated(model), left_out)
        patcher.swap_class(model, PatchedTransformer if hasattr(model, "save_pretrained") else PatchedModel)
    except BaseException:
        patcher.undo()
        raise
    model.__dict__[STATE] = PatchState(patcher, report, names)
    return model


def _apply(patcher: Patcher, model: nn.Module, adapter: Adapter) -> AppliedAdapter | None:
    site: Site | None = None
    try:
        sites = tuple(adapter.sites(model))
        for site in sites:
            adapter.apply(patcher, model, site)
    except HfAdaptersError:
        raise
    except Exception as error:
        where = f"at {site.path or 'the model itself'}" if site is not None else "while looking for its sites"
        raise AdapterError(
            f"adapter {adapter.name} failed {where} of {type(model).__name__}: {type(error).__name__}: {error}. "
            "The model was restored; leave the adapter out with only=[...] to go on without it"
        ) from error
    return AppliedAdapter(adapter.name, source_hash(adapter), adapter.equivalence, sites) if sites else None


def unpatch(model: M) -> M:
    """Undo :func:`patch`: class, attributes and config are the stock ones again. A stock model is left alone.

    Raises:
        ModelTypeError: ``model`` is not an eager ``nn.Module``.
        PatchConflictError: the model is compiled; ``decompile`` undoes that and the patch.
    """
    check_model(model, "unpatch")
    state = patch_state(model)
    if state is None:
        return model
    if "_hf_adapters_compiled" in model.__dict__:
        raise PatchConflictError(
            f"{type(model).__name__} is compiled, and the compiled regions rely on the patch; "
            "call hf_adapters.decompile(model), which also removes the patch"
        )
    remove_patch(model)
    return model


def remove_patch(model: nn.Module) -> None:
    """Take the patch off without looking at what else was done to the model."""
    state: PatchState = model.__dict__.pop(STATE)
    state.patcher.undo()


@contextmanager
def patched(
    model: M, *, target: str = "spyre", only: Iterable[str] | None = None, release: str | None = None
) -> Iterator[M]:
    """``with patched(model):`` patches and, at the end, unpatches; a model that was patched before stays patched."""
    before = isinstance(model, nn.Module) and patch_state(model) is not None
    patch(model, target=target, only=only, release=release)
    try:
        yield model
    finally:
        if not before:
            unpatch(model)


def patch_report(model: nn.Module) -> PatchReport:
    """The report of a patched model.

    Raises:
        NotPatchedError: the model is stock.
    """
    check_model(model, "patch_report")
    state = patch_state(model)
    if state is None:
        raise NotPatchedError(f"{type(model).__name__} is not patched; call hf_adapters.patch(model) first")
    return state.report


def patch_state(model: nn.Module) -> PatchState | None:
    """The patch state of this very instance, None when it is stock."""
    state: PatchState | None = model.__dict__.get(STATE)
    return state


def check_model(model: Any, verb: str) -> None:
    """Refuse anything that is not an eager ``nn.Module`` instance.

    Raises:
        ModelTypeError: says what was given and what to give instead.
    """
    hint = "give it the model object, for instance transformers.AutoModel.from_pretrained(...)"
    if isinstance(model, type) and issubclass(model, nn.Module):
        raise ModelTypeError(f"{verb}: {model.__name__} is a class, not a model; {hint}")
    if not isinstance(model, nn.Module):
        raise ModelTypeError(f"{verb}: expected a torch.nn.Module, got {type(model).__name__} ({model!r:.80}); {hint}")
    if isinstance(model, torch.jit.ScriptModule):
        raise ModelTypeError(f"{verb}: a ScriptModule has no Python forward that could be patched; {hint}")
    if hasattr(model, "_orig_mod"):
        raise ModelTypeError(
            f"{verb}: the model went through torch.compile already; give the model itself (its _orig_mod) and compile "
            "it afterwards"
        )


def check_target(target: str) -> None:
    """Refuse an unknown target.

    Raises:
        UnknownTargetError: ``target`` is neither ``"spyre"`` nor ``"cpu"``.
    """
    if target not in TARGETS:
        raise UnknownTargetError(f"unknown target {target!r}; known are {', '.join(map(repr, TARGETS))}")


def resolve_release(release: str | None) -> str | None:
    """The name of the release to patch for; unknown names are refused by spyre_backend.

    Raises:
        UnknownRelease: a ``ValueError`` of spyre_backend that names the releases it knows.
    """
    from spyre_backend import capabilities

    chosen = capabilities.current() if release is None else capabilities.load(release)
    return str(chosen.release)
