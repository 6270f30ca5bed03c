"""Verdicts of models that no structure stands for: why nothing can be built."""

from __future__ import annotations

from sqlalchemy import Connection, func, select

from hf_adapters.store.records import VerdictRecord
from hf_adapters.store.tables import MODELS, VERDICTS

#: How a catalogue says that a model can(not) be built -> (stable cause, error code).
CAUSES: dict[str, tuple[str, str]] = {
    "remote_only": ("remote-code", "E_REMOTE_CODE"),
    "not_transformers": ("not-transformers", "E_NOT_TRANSFORMERS"),
    "gated": ("gated", "E_GATED"),
    "broken": ("broken-config", "E_CONFIG_INVALID"),
}
_OTHERWISE = ("no-profile", "E_NO_PROFILE")
#: Causes that are about what a catalogue lacks; once it has a profile for the model, they are out of date.
ABSENCES = frozenset({_OTHERWISE[0], *(cause for cause, _ in CAUSES.values())})
_NO_REASON = "no profile describes this model, and none of its type can stand in"


def missing_verdicts(
    connection: Connection,
    *,
    source: str,
    release: str,
    release_fingerprint: str,
    fingerprint: str,
    top: int | None = None,
) -> list[VerdictRecord]:
    """Verdicts still to be recorded; none for models whose newest verdict says the same already."""
    last = (
        select(func.max(VERDICTS.c.id))
        .where(VERDICTS.c.release == release, VERDICTS.c.model_row_id.is_not(None))
        .group_by(VERDICTS.c.model_row_id)
        .scalar_subquery()
    )
    said = {
        row.model_row_id: row.reason
        for row in connection.execute(select(VERDICTS.c.model_row_id, VERDICTS.c.reason).where(VERDICTS.c.id.in_(last)))
    }
    query = select(MODELS.c.id, MODELS.c.buildable, MODELS.c.no_profile_reason, MODELS.c.config_hash).where(
        MODELS.c.source == source, MODELS.c.profile_id.is_(None), MODELS.c.rank.is_not(None)
    )
    if top is not None:
        query = query.where(MODELS.c.rank <= top)
    records = []
    for row in connection.execute(query.order_by(MODELS.c.rank)):
        reason = row.no_profile_reason or _NO_REASON
        if said.get(row.id) == reason:
            continue
        cause, code = CAUSES.get(row.buildable, _OTHERWISE)
        records.append(
            VerdictRecord(
                model_row_id=row.id,
                verdict="unbuildable",
                reason=reason,
                rule=cause,
                error_code=code,
                weights="none",
                depth="none",
                config_hash=row.config_hash,
                release=release,
                release_fingerprint=release_fingerprint,
                fingerprint=fingerprint,
            )
        )
    return records
