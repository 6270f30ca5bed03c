"""Which verdict is the current one of each model, and which structures still need one."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from typing import Any

from sqlalchemy import ColumnElement, Connection, func, or_, select

from hf_adapters.store.records import CurrentVerdict, StoredModel, StoredVerdict, StructureWork
from hf_adapters.store.tables import MEMBERSHIPS, MODELS, STRUCTURES, VERDICTS
from hf_adapters.store.unbuildable import ABSENCES

_MODEL_FIELDS = tuple(item.name for item in fields(StoredModel))
_VERDICT_FIELDS = tuple(item.name for item in fields(StoredVerdict))
_MODEL_COLUMNS = [MODELS.c[name] for name in _MODEL_FIELDS]
_VERDICT_COLUMNS = [VERDICTS.c[name] for name in _VERDICT_FIELDS]
_NO_VERDICT = "its structure was not tried yet"


def current_verdicts(
    connection: Connection,
    *,
    release: str,
    source: str | None = None,
    top: int | None = None,
    model_row_ids: Collection[int] | None = None,
) -> list[CurrentVerdict]:
    """The current verdict of every selected model, in rank order (models without a rank last).

    The newest verdict about the model itself counts, unless a newer one about its structure was made under
    another fingerprint; else the newest verdict of its structure. That a model had no profile once does not count
    when it has one now.

    Args:
        connection: an open connection.
        release: emulated release that the verdicts are about.
        source: only models of this ranking.
        top: only ranks 1 to `top`.
        model_row_ids: only these models.
    """
    query = select(*_MODEL_COLUMNS, MEMBERSHIPS.c.signature).join(
        MEMBERSHIPS,
        (MEMBERSHIPS.c.profile_id == MODELS.c.profile_id) & (MEMBERSHIPS.c.release == release),
        isouter=True,
    )
    if source is not None:
        query = query.where(MODELS.c.source == source)
    if top is not None:
        query = query.where(MODELS.c.rank <= top)
    if model_row_ids is not None:
        query = query.where(MODELS.c.id.in_(sorted(model_row_ids)))
    rows = connection.execute(query.order_by(MODELS.c.rank.is_(None), MODELS.c.rank, MODELS.c.id)).all()
    of_structure = newest(connection, VERDICTS.c.signature, release)
    of_model = newest(connection, VERDICTS.c.model_row_id, release)
    return [_combine(row, of_structure, of_model) for row in rows]


def newest(connection: Connection, subject: ColumnElement[Any], release: str) -> dict[Any, StoredVerdict]:
    """The newest verdict for each value of a subject column (structure or model)."""
    last = (
        select(func.max(VERDICTS.c.id))
        .where(VERDICTS.c.release == release, subject.is_not(None))
        .group_by(subject)
        .scalar_subquery()
    )
    found = connection.execute(select(*_VERDICT_COLUMNS).where(VERDICTS.c.id.in_(last)))
    verdicts = [stored_verdict(row) for row in found]
    name = subject.key
    assert name in ("signature", "model_row_id")
    return {getattr(verdict, name): verdict for verdict in verdicts}


def history(connection: Connection, where: Sequence[ColumnElement[bool]], *, since: int = 0) -> list[StoredVerdict]:
    """All verdicts after number `since` that fulfil one of the conditions, newest first."""
    wanted = select(*_VERDICT_COLUMNS).where(or_(*where), VERDICTS.c.id > since)
    found = connection.execute(wanted.order_by(VERDICTS.c.id.desc()))
    return [stored_verdict(row) for row in found]


def stored_verdict(row: Sequence[Any]) -> StoredVerdict:
    """A selected verdict row as a plain dataclass."""
    return StoredVerdict(**dict(zip(_VERDICT_FIELDS, row, strict=True)))


def pending_structures(
    connection: Connection,
    *,
    release: str,
    source: str,
    fingerprint: str | Mapping[str, str],
    top: int | None = None,
    families: Collection[str] | None = None,
    retry: Collection[str] = (),
) -> list[StructureWork]:
    """Structures of a ranking whose newest verdict was not made under the given fingerprint, by impact.

    Args:
        connection: an open connection.
        release: emulated release.
        source: the ranking.
        fingerprint: one for all structures, or one for each signature (a missing one counts as untried).
        top: only models of rank 1 to `top` count.
        families: only structures of these model types.
        retry: verdicts that are tried again although their fingerprint is the same.
    """
    work = structures_of(connection, release=release, source=source, top=top, families=families)
    tried = newest(connection, VERDICTS.c.signature, release)

    def settled(signature: str) -> bool:
        verdict = tried.get(signature)
        wanted = fingerprint if isinstance(fingerprint, str) else fingerprint.get(signature)
        return verdict is not None and verdict.fingerprint == wanted and verdict.verdict not in retry

    return [item for item in work if not settled(item.signature)]


def structures_of(
    connection: Connection,
    *,
    release: str,
    source: str,
    top: int | None = None,
    families: Collection[str] | None = None,
) -> list[StructureWork]:
    """The structures of a ranking with the models and downloads behind each, highest impact first."""
    query = (
        select(MEMBERSHIPS.c.signature, MODELS.c.downloads, MODELS.c.rank, MODELS.c.stand_in)
        .join(MEMBERSHIPS, MEMBERSHIPS.c.profile_id == MODELS.c.profile_id)
        .where(MEMBERSHIPS.c.release == release, MODELS.c.source == source, MODELS.c.rank.is_not(None))
    )
    if top is not None:
        query = query.where(MODELS.c.rank <= top)
    behind: dict[str, list[Any]] = {}
    for row in connection.execute(query):
        behind.setdefault(row.signature, []).append(row)
    structures = connection.execute(select(STRUCTURES.c.signature, STRUCTURES.c.profile, STRUCTURES.c.model_type))
    work = [
        _work(signature, profile, family, behind[signature])
        for signature, profile, family in structures
        if signature in behind and (families is None or family in families)
    ]
    return sorted(work, key=lambda item: (-item.impact, item.signature))


def _work(signature: str, profile: Mapping[str, Any], family: str, rows: Sequence[Any]) -> StructureWork:
    return StructureWork(
        signature=signature,
        profile=profile,
        models=len(rows),
        downloads=sum(row.downloads for row in rows),
        best_rank=min(row.rank for row in rows),
        family=family,
        stand_in_only=all(row.stand_in for row in rows),
    )


def _combine(
    row: Sequence[Any], of_structure: Mapping[str, StoredVerdict], of_model: Mapping[int, StoredVerdict]
) -> CurrentVerdict:
    model = StoredModel(**dict(zip(_MODEL_FIELDS, row[:-1], strict=True)))
    signature: str | None = row[-1]
    shared = of_structure.get(signature) if signature else None
    own = of_model.get(model.id)
    if own and signature and own.verdict == "unbuildable" and own.rule in ABSENCES:
        own = None
    verdict = own or shared
    if own and shared and shared.id > own.id and shared.fingerprint != own.fingerprint:
        verdict = shared
    return CurrentVerdict(
        model=model,
        signature=signature,
        stand_in=model.stand_in and (own is None or verdict is not own),
        verdict=verdict.verdict if verdict else None,
        reason=verdict.reason if verdict else _NO_VERDICT,
        evidence=verdict,
    )
