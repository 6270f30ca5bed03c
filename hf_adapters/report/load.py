"""From the store's current verdicts to a report's rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from hf_adapters.report.rows import Evidence, ModelRow, Provenance
from hf_adapters.report.summary import Summary, summarise
from hf_adapters.store.records import CurrentVerdict

if TYPE_CHECKING:
    from hf_adapters.store.store import Store


def load_summary(store: Store, *, release: str, source: str | None = None, top: int | None = None) -> Summary:
    """All figures about one ranking in a store.

    Args:
        store: where the verdicts are.
        release: emulated release that they are about.
        source: the ranking; None takes that of the newest run.
        top: only ranks 1 to `top`.
    """
    source = source or store.default_source()
    current = store.current(release=release, source=source, top=top)
    return summarise((to_row(item) for item in current), _provenance(store, current, release, source))


def to_row(item: CurrentVerdict) -> ModelRow:
    """One model's row."""
    model, evidence = item.model, item.evidence
    assert model.rank is not None, "models without a rank are in no report"
    return ModelRow(
        rank=model.rank,
        downloads=model.downloads,
        model_id=model.model_id,
        family=model.family,
        evidence=_evidence(item),
        structure=item.signature,
        profile_id=model.profile_id,
        verdict=item.verdict or "pending",
        reason="" if item.accepted else item.reason,
        rule=evidence.rule if evidence and not item.accepted else None,
        op=evidence.op if evidence and not item.accepted else None,
        module_path=evidence.module_path if evidence and not item.accepted else None,
        adapters=tuple(sorted(evidence.adapters)) if evidence else (),
        weights=evidence.weights if evidence else None,
        simulated_us=evidence.simulated_us if evidence else None,
    )


def _evidence(item: CurrentVerdict) -> Evidence:
    if item.stand_in:
        return "stand-in"
    if item.model.match == "exact":
        return "exact"
    return "inferred" if item.model.match == "inferred" else "none"


def _provenance(store: Store, current: Iterable[CurrentVerdict], release: str, source: str) -> Provenance:
    runs = [run for run in store.runs() if run.source == source and run.release == release]
    dates = {item.model.source_date for item in current if item.model.source_date}
    latest = runs[0] if runs else None
    finished = latest.finished_at if latest and latest.state == "finished" else None
    return Provenance(
        ranking_source="bundled snapshot" if source == "bundled" else source,
        ranking_date=max(dates, default="unknown"),
        release=release,
        run_id=str(latest.id) if latest else None,
        run_finished=finished.isoformat(timespec="seconds") if finished else None,
        versions=dict(latest.versions) if latest else {},
        rule_titles=_rule_titles(release),
    )


def _rule_titles(release: str) -> dict[str, str]:
    from spyre_backend import capabilities

    titles = {name: rule.title for name, rule in capabilities.load(release).rules.items()}
    return {
        **titles,
        "remote-code": "needs code from the model's repository, which is never run",
        "not-transformers": "no transformers model",
        "gated": "its owner must grant access first",
        "broken-config": "its config.json cannot be used",
        "no-profile": "the ranking does not tell the model's structure",
    }
