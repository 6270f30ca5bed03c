"""From what a worker answered to a row of the store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from hf_adapters.store.models import VERDICTS
from hf_adapters.store.records import AdapterRecord, VerdictRecord
from hf_adapters.sweep.fingerprint import Fingerprint
from hf_adapters.sweep.messages import Outcome

_FIELDS = frozenset(field.name for field in fields(VerdictRecord))
#: Set by the sweep itself, never by a worker.
_OWN = frozenset({"release", "release_fingerprint", "fingerprint", "signature", "model_row_id", "details", "versions"})
_DETAIL_LIMIT = 4000
#: Key in `details` of the fingerprint without the adapters.
BASE = "base_fingerprint"
_CATALOGUE = "catalogue"


def verdict_record(
    outcome: Outcome, identity: Fingerprint, *, signature: str | None = None, model_row_id: int | None = None
) -> VerdictRecord:
    """The verdict to store for a finished task; exactly one of `signature` and `model_row_id` is given.

    Whatever a worker answered beyond the columns of the store is kept under `details`.
    """
    evidence = _evidence(outcome)
    known = {name: value for name, value in evidence.items() if name in _FIELDS - _OWN and value is not None}
    details = {name: value for name, value in evidence.items() if name not in _FIELDS and name != _CATALOGUE}
    return VerdictRecord(
        **{"seconds": outcome.seconds, **known},
        release=identity.release,
        release_fingerprint=identity.release_fingerprint,
        fingerprint=identity.value,
        signature=signature,
        model_row_id=model_row_id,
        versions={**identity.versions, **(evidence.get("versions") or {})},
        details={**details, BASE: identity.base, "attempts": outcome.attempts, "peak_rss": outcome.peak_rss},
    )


def adapter_records(outcome: Outcome) -> list[AdapterRecord]:
    """The versions of adapters that a worker applied, to be registered before its verdict."""
    return [AdapterRecord(**entry) for entry in outcome.result.get(_CATALOGUE, ())]


def _evidence(outcome: Outcome) -> Mapping[str, Any]:
    if outcome.kind == "done" and outcome.result.get("verdict") in VERDICTS:
        return outcome.result
    if outcome.kind == "done":
        return {
            "verdict": "crashed",
            "reason": f"the worker answered no known verdict: {outcome.result.get('verdict')!r}",
        }
    verdict = "timed-out" if outcome.kind == "timed-out" else "crashed"
    return {
        "verdict": verdict,
        "reason": outcome.reason,
        "error_code": {"timed-out": "E_TIMEOUT", "memory": "E_MEMORY", "failed": "E_WORK_FAILED"}.get(
            outcome.kind, "E_CRASH"
        ),
        "output": outcome.detail[-_DETAIL_LIMIT:],
    }
