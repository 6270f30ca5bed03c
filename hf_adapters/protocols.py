"""What an adapter is, what it gets to work with and what it leaves behind.

An adapter file holds one module-level ``ADAPTER = Adapter(...)``. Everything here is plain data, so that reports and
stored verdicts can name exactly which rewrite was applied where.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from torch import Tensor, nn

from hf_adapters._versions import PROVEN, Bounds, outside

Equivalence = Literal["exact", "reassociated", "padded"]


@dataclass(frozen=True)
class Site:
    """One place in a model that an adapter changes.

    Attributes:
        path: dotted path of the module inside the model; ``""`` is the model itself.
        kind: what sort of place it is, in the adapter's own words (``"activation"``, ``"rotary"``, ...).
        before: what the model does there now, for the report.
        after: what it will do, for the report.
        meta: anything the adapter found out while looking and needs while applying; must pickle.
    """

    path: str
    kind: str
    before: str
    after: str
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Example:
    """A small case from which the CPU proof of an adapter is generated.

    Attributes:
        name: short identifier, used as the test id.
        build: makes the stock module, float64, in eval mode, with seeded weights.
        inputs: makes the keyword arguments of its forward.
        tolerance: largest relative error allowed between stock and patched in float64.
        widened: the stock module casts to float32 inside, which leaves rounding that says nothing about the
            replacement; the proof lifts such casts to float64 in both.
    """

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[], dict[str, Any]]
    tolerance: float = 1e-9
    widened: bool = False


class PatcherProtocol(Protocol):
    """The reversible steps an adapter may take; see :class:`hf_adapters._patcher.Patcher` for the guarantees."""

    def swap_class(self, module: nn.Module, mixin: type, **attrs: Any) -> None:
        """Put ``mixin`` in front of the class of this one module and set instance attributes."""

    def set_attr(self, module: nn.Module, name: str, value: Any) -> None:
        """Set a plain instance attribute."""

    def derive(
        self,
        module: nn.Module,
        name: str,
        sources: tuple[str, ...],
        fn: Callable[..., Tensor | None],
        **kwargs: Any,
    ) -> None:
        """Keep ``module.<name> = fn(*sources, **kwargs)`` up to date with the tensors it comes from."""

    def override_config(self, model: nn.Module, **values: Any) -> None:
        """Give the model its own copy of the config, with some values changed."""

    def rebind(self, module: nn.Module, names: Mapping[str, Callable[..., Any]]) -> None:
        """Give the module a copy of its stock forward in which global names mean other callables."""


@dataclass(frozen=True)
class Adapter:
    """A rewrite that makes one kind of operation legal on the device.

    Attributes:
        name: identifier, equal to the file name without ``.py``.
        summary: one sentence for people.
        rules: ids of the device rules it works around (keys of ``[rules.*]`` in the capability files).
        equivalence: ``exact`` (same real-number function, same order), ``reassociated`` (same function, other order of
            operations) or ``padded`` (same function on zero-padded operands).
        sites: finds the places in a model; must not change the model.
        apply: changes one of them, only through the patcher.
        examples: small cases for the generated CPU proof.
        releases: names of the torch-spyre releases that need it; None means all of them.
        versions: bounds of torch and transformers that it was proven with.
        architectures: model types that it is written for; empty when it takes a kind of operation wherever it occurs.
        order: position in the catalogue; adapters with a lower number are applied first.
    """

    name: str
    summary: str
    rules: tuple[str, ...]
    equivalence: Equivalence
    sites: Callable[[nn.Module], list[Site]]
    apply: Callable[[PatcherProtocol, nn.Module, Site], None]
    examples: Callable[[], list[Example]]
    releases: tuple[str, ...] | None = None
    versions: Bounds = field(default_factory=lambda: PROVEN)
    architectures: tuple[str, ...] = ()
    order: int = 100

    def needed_by(self, release: str | None) -> bool:
        """True when the release needs this adapter (``None``: the release is not known, so every adapter is)."""
        return release is None or self.releases is None or release in self.releases

    def left_out(self, release: str | None) -> str | None:
        """Why it is not applied for a release and the installed versions; None when it is."""
        if not self.needed_by(release):
            return f"release {release} lowers the stock form (needed by {', '.join(self.releases or ())})"
        return outside(self.versions)


@dataclass(frozen=True)
class AppliedAdapter:
    """One adapter of a report: its identity (``hash`` of its source) and the places where it was applied."""

    name: str
    hash: str
    equivalence: Equivalence
    sites: tuple[Site, ...]


@dataclass(frozen=True)
class Leftover:
    """A module that a device rule speaks about and that no adapter took care of."""

    path: str
    module: str
    rule: str
    reason: str


@dataclass(frozen=True)
class LeftOut:
    """An adapter of the catalogue that was not tried, and why (retired by a release, unproven version)."""

    name: str
    reason: str


@dataclass(frozen=True)
class PatchReport:
    """What ``patch`` did to a model.

    Attributes:
        target: ``"spyre"`` or ``"cpu"``.
        release: the torch-spyre release patched for, None when unknown.
        adapters: the adapters that found a site, in the order in which they were applied.
        left: what is known not to be handled. An empty tuple is no proof that the model compiles.
        left_out: adapters that the release or the installed versions rule out.
    """

    target: str
    release: str | None
    adapters: tuple[AppliedAdapter, ...]
    left: tuple[Leftover, ...]
    left_out: tuple[LeftOut, ...] = ()

    @property
    def sites(self) -> tuple[Site, ...]:
        """Every patched place, in the order of the adapters."""
        return tuple(site for adapter in self.adapters for site in adapter.sites)

    @property
    def hashes(self) -> dict[str, str]:
        """Adapter name -> hash of its source, as stored with verdicts."""
        return {adapter.name: adapter.hash for adapter in self.adapters}

    def __str__(self) -> str:
        lines = [f"patched for {self.target}" + (f", release {self.release}" if self.release else "")]
        for adapter in self.adapters:
            lines.append(f"  {adapter.name} ({adapter.equivalence}): {len(adapter.sites)} sites")
            lines.extend(f"    {s.path or '<model>'}: {s.before} -> {s.after}" for s in adapter.sites)
        lines.extend(f"  not applied: {item.name}: {item.reason}" for item in self.left_out)
        lines.extend(f"  left: {item.path}: {item.reason} [{item.rule}]" for item in self.left)
        return "\n".join(lines)
