"""Trying drafts in this process, without the sandbox: for drafts of the offline drafter, and for nothing else."""

from __future__ import annotations

import importlib
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hf_adapters.agents.acceptance.duplicates import sources
from hf_adapters.agents.localise import public_batch
from hf_adapters.agents.protocol import Trial
from hf_adapters.agents.screening.policy import screen
from hf_adapters.agents.subject import Subject
from hf_adapters.catalogue import catalogue
from hf_adapters.diagnose import diagnose
from hf_adapters.patching import patch_report, patch_with, unpatch
from hf_adapters.protocols import Adapter
from hf_adapters.validation.float64 import in_float64
from hf_adapters.validation.runners import Device
from spyre_backend import capabilities

_PROOF = 1e-9


@dataclass
class DirectWorkbench:
    """The workbench of one subject; see `hf_adapters.agents.protocol.Workbench`."""

    subject: Subject

    def rules(self) -> Mapping[str, str]:
        """See `Workbench`."""
        return {name: rule.title for name, rule in capabilities.load(self.subject.release).rules.items()}

    def adapters(self) -> Mapping[str, str]:
        """See `Workbench`."""
        return sources(self.subject.adapters())

    def module_source(self, path: str) -> str:
        """Not needed by the drafter that this is for."""
        raise LookupError(path)

    def values(self, path: str) -> str:
        """Not needed by the drafter that this is for."""
        raise LookupError(path)

    def try_out(self, source: str) -> Trial:
        """Screen, prove in float64, run on the device."""
        screened = screen(source)
        if not screened.ok:
            return Trial(stage="screen", reason="; ".join(screened.violations))
        assert screened.adapter is not None
        with catalogued(source, screened.adapter.name) as adapter:
            wrong = _proof(adapter, self.subject.release)
            return Trial(stage="numbers", reason=wrong) if wrong is not None else self._run(adapter)

    def _run(self, adapter: Adapter) -> Trial:
        model = self.subject.build()
        names = [a.name for a in self.subject.adapters() if a.needed_by(self.subject.release)]

        def apply(candidate: nn.Module) -> AbstractContextManager[nn.Module]:
            return self.subject.patched(candidate)

        with self.subject.patched(model):
            applied = [a for a in patch_report(model).adapters if a.name == adapter.name]
        if not applied:
            return Trial(stage="device", reason="the adapter applies to nothing in this model")
        said = diagnose(
            model, [public_batch(model).kwargs], release=self.subject.release, patch=apply,
            runner=Device(adapters=names, release=self.subject.release),
        )  # fmt: skip
        elsewhere = _elsewhere()
        if said.kind != "none":
            return Trial(stage="device", reason=str(said))
        if elsewhere:
            return Trial(stage="device", reason=f"on the CPU: {', '.join(elsewhere)}")
        return Trial(stage="passed", reason=said.message)


def _elsewhere() -> list[str]:
    from hf_adapters.validation.conduct import ALLOWED_FALLBACKS

    counts: Mapping[Any, int] = torch.spyre.fallback_counts()  # type: ignore[attr-defined]
    return [str(op) for (op, category) in counts if category not in ALLOWED_FALLBACKS]


@contextmanager
def catalogued(source: str, name: str) -> Iterator[Adapter]:
    """Inside the block, the adapter of a draft's text is part of the catalogue."""
    import hf_adapters.adapters as package

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, f"{name}.py").write_text(source, encoding="utf-8")
        package.__path__.append(folder)
        importlib.invalidate_caches()
        catalogue.cache_clear()
        try:
            yield next(adapter for adapter in catalogue() if adapter.name == name)
        finally:
            package.__path__.remove(folder)
            sys.modules.pop(f"{package.__name__}.{name}", None)
            catalogue.cache_clear()


def _proof(adapter: Adapter, release: str) -> str | None:
    """What is wrong with the adapter on its own examples; None when nothing is."""
    for example in adapter.examples():
        model, inputs = example.build(), example.inputs()
        with torch.no_grad(), in_float64() if example.widened else nullcontext():
            stock = _floats(model(**inputs))
            patch_with(model, [adapter], release=release)
            applied = bool(patch_report(model).sites)
            ours = _floats(model(**inputs))
            unpatch(model)
        if not applied:
            return f"example {example.name}: no site"
        error = max((_error(a, b) for a, b in zip(ours, stock, strict=True)), default=1.0)
        if not error <= _PROOF:
            return f"example {example.name}: differs from stock by {error:.2g} in float64"
    return None


def _error(ours: torch.Tensor, stock: torch.Tensor) -> float:
    return float((ours - stock).abs().amax() / stock.abs().amax().clamp(min=1e-300))


def _floats(result: Any) -> list[torch.Tensor]:
    values = (
        result.values() if isinstance(result, Mapping) else result if isinstance(result, (tuple, list)) else [result]
    )
    found = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (tuple, list)):
            found += _floats(value)
    return found
