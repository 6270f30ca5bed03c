"""What a drafter may look at and try."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from hf_adapters._classes import split_class
from hf_adapters.agents.acceptance.candidate import examine
from hf_adapters.agents.acceptance.duplicates import sources
from hf_adapters.agents.localise import PUBLIC_SEED, capture
from hf_adapters.agents.protocol import Trial
from hf_adapters.agents.sandbox.run import Sandbox
from hf_adapters.agents.screening.declared import Drafted
from hf_adapters.agents.screening.policy import screen
from hf_adapters.agents.subject import Subject
from hf_adapters.diagnose import Diagnosis
from spyre_backend import capabilities

_LONGEST = 20_000
"""Characters of a source text that are shown."""


@dataclass(kw_only=True)
class SubjectWorkbench:
    """The workbench for one failing subject.

    Attributes:
        subject: the failing model.
        model: built from it, stock.
        sandbox: where candidates run.
        beside: drafts for other failing modules of the model, applied as well.
        causes: failures that those and the candidates are for.
        trials: how many candidates were tried.
    """

    subject: Subject
    model: nn.Module
    sandbox: Sandbox
    beside: tuple[Drafted, ...] = ()
    causes: tuple[Diagnosis, ...] = ()
    trials: int = field(default=0)

    def rules(self) -> Mapping[str, str]:
        """See `Workbench`."""
        chosen = capabilities.load(self.subject.release)
        return {name: rule.title for name, rule in chosen.rules.items()}

    def adapters(self) -> Mapping[str, str]:
        """See `Workbench`."""
        return sources(self.subject.adapters()) | {part.adapter.name: part.source for part in self.beside}

    def module_source(self, path: str) -> str:
        """See `Workbench`."""
        modules = dict(self.model.named_modules())
        if path not in modules:
            raise LookupError(f"the model has no module {path!r}")
        base, _ = split_class(type(modules[path]))
        try:
            return inspect.getsource(base)[:_LONGEST]
        except (OSError, TypeError) as error:
            raise LookupError(f"no source text for {base.__qualname__}") from error

    def values(self, path: str) -> str:
        """See `Workbench`."""
        module, call = capture(self.model, path)
        with torch.no_grad():
            result = module(*call.args, **call.kwargs)
        lines = [f"argument {i}: {_summary(value)}" for i, value in enumerate(call.args)]
        lines += [f"argument {name}: {_summary(value)}" for name, value in call.kwargs.items()]
        return "\n".join([*lines, f"result: {_summary(result)}"])

    def try_out(self, source: str) -> Trial:
        """See `Workbench`. The inputs are public; acceptance draws others."""
        self.trials += 1
        screened = screen(source)
        if not screened.ok or screened.adapter is None:
            return Trial(stage="screen", reason="\n".join(screened.violations))
        outcome = examine(
            source, screened.adapter, self.subject, self.sandbox,
            seed=PUBLIC_SEED, beside=self.beside, causes=self.causes,
        )  # fmt: skip
        if outcome.remaining is not None:
            reason = (
                f"right for its own module; the model then fails elsewhere, which is no fault of it: {outcome.reason}"
            )
            return Trial(stage="passed", reason=reason, sites=outcome.sites, figures=outcome.figures())
        if outcome.accepted:
            return Trial(stage="passed", reason=outcome.reason, sites=outcome.sites, figures=outcome.figures())
        verdict = None if outcome.validation is None else outcome.validation.verdict
        stage = {"mismatch": "numbers", "fallback": "numbers", "uncovered": "device"}.get(verdict or "", "sandbox")
        return Trial(
            stage=stage,  # type: ignore[arg-type]
            reason=outcome.reason,
            sites=outcome.sites,
            figures=outcome.figures(),
        )


def _summary(value: Any) -> str:
    if isinstance(value, Tensor):
        text = f"{value.dtype}{list(value.shape)}"
        if value.is_floating_point() and value.numel():
            finite = value[value.isfinite()].double()
            if finite.numel():
                text += f" min {float(finite.min()):.4g} mean {float(finite.mean()):.4g} max {float(finite.max()):.4g}"
            text += f", {int(value.numel() - finite.numel())} not finite" if finite.numel() < value.numel() else ""
        return text
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {_summary(item)}" for name, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "(" + ", ".join(_summary(item) for item in value) + ")"
    return repr(value)[:80]
