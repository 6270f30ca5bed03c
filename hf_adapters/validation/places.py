"""Where in a model an error came from: the compiler knows the path inside a region, the run knows the region."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import nn

from hf_adapters._regions import find_regions
from spyre_backend.errors import SpyreInternalError, SpyreUnsupported

ROOT = "<root>"


@dataclass(slots=True)
class Trail:
    """The modules that were entered and not left; after an error, the last one is where it happened."""

    open: list[str] = field(default_factory=list)

    @property
    def innermost(self) -> str | None:
        """Path of the innermost module still open."""
        return self.open[-1] if self.open else None


@contextmanager
def trail(modules: Mapping[str, nn.Module]) -> Iterator[Trail]:
    """Follow which of `modules` is being called. A module's own hooks run around its compiled forward."""
    followed = Trail()

    def enter(path: str) -> Callable[..., None]:
        return lambda *_: followed.open.append(path)

    def leave(*_: object) -> None:
        followed.open.pop()

    handles = []
    for path, module in modules.items():
        handles += [module.register_forward_pre_hook(enter(path)), module.register_forward_hook(leave)]
    try:
        yield followed
    finally:
        for handle in handles:
            handle.remove()


def regions(model: nn.Module) -> dict[str, nn.Module]:
    """The modules that `hf_adapters.compile` compiles one by one, by path."""
    return dict(find_regions(model))


def located(error: SpyreUnsupported | SpyreInternalError, region: str | None) -> SpyreUnsupported | SpyreInternalError:
    """`error` with the module path from the model's root, where the region is known.

    The compiler writes `path (Class)` from the region it compiles, `<root>` for the region itself.
    """
    if region is None:
        return error
    inside, _, kind = (error.module_path or "").partition(" ")
    path = region if inside in ("", ROOT) else f"{region}.{inside}"
    plain = SpyreUnsupported if isinstance(error, SpyreUnsupported) else SpyreInternalError
    found = plain(**{**error.fields(), "module_path": f"{path} {kind}".strip()})
    found.__cause__ = error
    return found
