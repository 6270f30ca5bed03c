"""What a reviewer is shown, and what a commit message says: the rows of a case, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hf_adapters.store.agent_records import StoredAttempt, StoredCase
from hf_adapters.store.agents import AgentStore


def summary(agents: AgentStore, case_id: int) -> dict[str, Any]:
    """Plain data for the review page: case, last attempt, evidence, earlier rejections, remarks."""
    case, attempts = agents.case(case_id), agents.attempts(case_id)
    last = attempts[-1] if attempts else None
    return {
        "case": case.id,
        "structure": case.label,
        "state": case.state,
        "release": case.release,
        "drafter": case.drafter,
        "rule": case.rule,
        "op": case.op,
        "module": case.failure.get("module"),
        "path": case.module_path,
        "adapter": None if last is None else last.adapter_name,
        "source": "" if last is None else last.source,
        "diff": "" if last is None else last.diff,
        "notes": "" if last is None else last.notes,
        "metrics": {} if last is None else dict(last.metrics),
        "sandboxed": None if last is None else last.sandboxed,
        "parts": [
            {"attempt": a.number, "adapter": a.adapter_name, "source": a.source, "notes": a.notes, "reason": a.reason}
            for a in parts_of(attempts)
        ],
        "spent": agents.spent(case_id),
        "rejected": [
            {"attempt": a.number, "stage": a.stage, "reason": a.reason} for a in attempts if a.outcome == "rejected"
        ],
        "remarks": [{"reviewer": r.reviewer, "decision": r.decision, "text": r.text} for r in agents.reviews(case_id)],
    }


def message(agents: AgentStore, case_id: int) -> str:
    """The evidence as the body of a commit message."""
    case, attempts = agents.case(case_id), agents.attempts(case_id)
    last = next(a for a in reversed(attempts) if a.source)
    lines = _failure(case) + _parts(parts_of(attempts)) + _proof(last) + _generality(last)
    tried = sum(a.outcome == "rejected" for a in attempts)
    spent = agents.spent(case_id)
    lines.append(
        f"Drafted by {case.drafter} in attempt {last.number} after {tried} rejected, "
        f"{spent['tokens']:,.0f} tokens, ${spent['usd']:.2f}, {spent['seconds']:.0f} s."
    )
    lines += [f"{r.decision.capitalize()} by {r.reviewer}: {r.text or '-'}" for r in agents.reviews(case_id)]
    return "\n".join(lines)


def parts_of(attempts: Sequence[StoredAttempt]) -> list[StoredAttempt]:
    """Attempts whose drafts solve one of several failing places of a model; the last draft was judged with them."""
    return [a for a in attempts[:-1] if a.outcome == "accepted"]


def _parts(parts: Sequence[StoredAttempt]) -> list[str]:
    return [f"Adapter {a.adapter_name}, attempt {a.number}: {' '.join(a.reason.split())}." for a in parts]


def _failure(case: StoredCase) -> list[str]:
    said: Mapping[str, Any] = case.failure.get("diagnosis", {})
    lines = [f"Failing structure: {case.label} (release {case.release})."]
    if case.rule:
        lines.append(f"Broken rule: {case.rule}, {case.op or 'no operation named'}.")
    lines.append(f"Where: {case.module_path or 'the model'}, {case.failure.get('module') or 'unknown class'}.")
    if said.get("source_line"):
        lines.append(f"Source: {' '.join(str(said['source_line']).split())}")
    return lines


def _proof(attempt: StoredAttempt) -> list[str]:
    found: Mapping[str, Any] = attempt.metrics.get("validate", {})
    figures: Mapping[str, float] = found.get("figures", {})
    names = {
        "multiple": "error in noise floors",
        "noise_floor": "noise floor",
        "equivalence_error": "float64 error",
        "cosine_min": "least cosine of a token",
        "spearman": "rank correlation",
        "simulated_us": "simulated microseconds",
    }
    measured = [f"{text} {figures[name]:.4g}" for name, text in names.items() if name in figures]
    where = "in the sandbox" if attempt.sandboxed else "WITHOUT A SANDBOX"
    sites = found.get("sites", [])
    return [
        f"Validated {where} on inputs of seed {found.get('seed')}: {found.get('reason', '')}.",
        f"Measured: {', '.join(measured)}." if measured else "Nothing was measured.",
        f"Sites: {len(sites)}, first {sites[0]}." if sites else "No sites.",
    ]


def _generality(attempt: StoredAttempt) -> list[str]:
    found: Mapping[str, Any] = attempt.metrics.get("generalise", {})
    if not found:
        return ["Not tried on other structures."]
    lines = [f"Siblings solved as well: {', '.join(found['solved']) or 'none'}."]
    lines.append(f"Passed before and still do: {', '.join(found['kept']) or 'none touched'}.")
    return lines
