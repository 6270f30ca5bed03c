"""A stock model that any process can build again, and the adapters that it already has."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Self

from torch import nn

from hf_adapters.catalogue import catalogue
from hf_adapters.patching import patch_with, unpatch
from hf_adapters.protocols import Adapter
from hf_adapters.sweep.work import FULL_ELEMENTS, rebuild_profile
from hf_adapters.validation.source import ModelSource


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """A model, described by plain data.

    Attributes:
        key: structural signature, or another name that is unique in its portfolio.
        label: for people.
        release: torch-spyre release to emulate.
        kind: `profile` (a structure of the corpus, seeded random weights), `builder` (an importable function) or
            `file` (written by `ModelSource.from_model`).
        profile: `Profile.to_json()`.
        max_elements: parameter elements above which a profile is cut.
        builder: `package.module:function`.
        arguments: keyword arguments of the builder.
        path: the file.
        without: catalogued adapters that are treated as if they did not exist (benchmarks, tests).
        models: how many models of the ranking share the structure.
        downloads: their downloads.
    """

    key: str
    label: str
    release: str
    kind: Literal["profile", "builder", "file"]
    profile: Mapping[str, Any] | None = None
    max_elements: int = FULL_ELEMENTS
    builder: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    path: str | None = None
    without: tuple[str, ...] = ()
    models: int = 1
    downloads: int = 0

    @property
    def impact(self) -> int:
        """Models x downloads."""
        return self.models * max(1, self.downloads)

    def source(self) -> ModelSource:
        """How the reference process builds the stock model.

        Raises:
            ValueError: what `kind` needs is missing.
        """
        if self.kind == "profile" and self.profile is not None:
            arguments = {"profile": self.profile, "release": self.release, "max_elements": self.max_elements}
            return ModelSource(builder=rebuild_profile, arguments=arguments)
        if self.kind == "builder" and self.builder is not None:
            module, _, name = self.builder.partition(":")
            return ModelSource(builder=getattr(importlib.import_module(module), name), arguments=dict(self.arguments))
        if self.kind == "file" and self.path is not None:
            return ModelSource(path=self.path)
        raise ValueError(f"{self.label}: a subject of kind {self.kind!r} needs its {self.kind}")

    def build(self) -> nn.Module:
        """The stock model, float32, on the CPU, in evaluation mode; the same one each time."""
        return self.source().build()

    def adapters(self, extra: Sequence[Adapter] = ()) -> tuple[Adapter, ...]:
        """The catalogue without what is left out, with `extra` in its place in the order."""
        kept = [a for a in catalogue() if a.name not in self.without]
        return tuple(sorted([*kept, *extra], key=lambda a: (a.order, a.name)))

    @contextmanager
    def patched(self, model: nn.Module, extra: Sequence[Adapter] = ()) -> Iterator[nn.Module]:
        """`model` with these adapters, stock again at the end."""
        patch_with(model, self.adapters(extra), release=self.release)
        try:
            yield model
        finally:
            unpatch(model)

    def to_json(self) -> dict[str, Any]:
        """Plain data, accepted by `from_json`."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild from `to_json`."""
        return cls(**{**data, "without": tuple(data.get("without", ()))})
