"""Write a ranking into the store: models, structures, and which profile belongs to which structure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, bindparam, insert, or_, select, update

from hf_adapters.corpus.profiles import Profile
from hf_adapters.corpus.ranking import Ranking, RankingRow
from hf_adapters.corpus.signature import group_profiles
from hf_adapters.store._types import utc_now
from hf_adapters.store.models import MembershipRow, ModelRow, StructureRow
from hf_adapters.store.tables import MEMBERSHIPS, MODELS, STRUCTURES

_COMPARED = tuple(name for name in ModelRow.model_fields if name not in ("id", "updated_at"))


@dataclass(frozen=True, slots=True, kw_only=True)
class PutSummary:
    """What `put_ranking` changed."""

    inserted: int
    updated: int
    unchanged: int
    structures: int


def put_ranking(
    connection: Connection, ranking: Ranking, profiles: Mapping[str, Profile], *, release: str
) -> PutSummary:
    """Insert or update the models of a ranking, within the caller's transaction.

    Rows are known by source and key; ranks that another model of the source held before are freed.

    Args:
        connection: an open transaction.
        ranking: rows to write.
        profiles: at least the profiles that the rows refer to.
        release: whose rules decide which profiles share a structure.

    Raises:
        KeyError: a row refers to a profile that is not in `profiles`.
    """
    wanted = [_model_values(row, ranking, profiles) for row in ranking.rows]
    inserted, updated = _put_models(connection, ranking.source, wanted)
    used = {values["profile_id"] for values in wanted} - {None}
    put_structures(connection, (profiles[name] for name in used), release=release)
    structures = len({signature for signature, _ in memberships(connection, used, release)})
    return PutSummary(
        inserted=inserted, updated=updated, unchanged=len(wanted) - inserted - updated, structures=structures
    )


def put_structures(connection: Connection, profiles: Iterable[Profile], *, release: str) -> dict[str, str]:
    """Make sure that every profile has its structure; profile id -> signature."""
    groups = group_profiles(profiles, release)
    known = set(connection.execute(select(STRUCTURES.c.signature)).scalars())
    now = utc_now()
    fresh = [
        StructureRow(
            signature=signature,
            shape_id=group.representative.shape_id,
            model_type=group.representative.model_type,
            architecture_class=group.representative.architecture_class,
            representative_profile_id=group.representative.profile_id,
            representative_checkpoint=group.representative.representative_checkpoint,
            expected_parameter_count=group.representative.expected_parameter_count,
            profile=group.representative.to_json(),
            created_at=now,
        ).model_dump()
        for signature, group in groups.items()
        if signature not in known
    ]
    if fresh:
        connection.execute(insert(STRUCTURES), fresh)
    links = {profile.profile_id: signature for signature, group in groups.items() for profile in group.profiles}
    stored = {name: signature for signature, name in memberships(connection, set(links), release)}
    missing = [
        MembershipRow(profile_id=name, release=release, signature=signature).model_dump()
        for name, signature in links.items()
        if name not in stored
    ]
    if missing:
        connection.execute(insert(MEMBERSHIPS), missing)
    changed = [
        {"name": name, "new": signature}
        for name, signature in links.items()
        if stored.get(name, signature) != signature
    ]
    if changed:
        connection.execute(
            update(MEMBERSHIPS)
            .where(MEMBERSHIPS.c.profile_id == bindparam("name"), MEMBERSHIPS.c.release == release)
            .values(signature=bindparam("new")),
            changed,
        )
    return links


def memberships(connection: Connection, profile_ids: set[Any], release: str) -> list[tuple[str, str]]:
    """Pairs of signature and profile id of a release, for the profiles named."""
    found = connection.execute(
        select(MEMBERSHIPS.c.signature, MEMBERSHIPS.c.profile_id).where(MEMBERSHIPS.c.release == release)
    )
    return [(signature, name) for signature, name in found if name in profile_ids]


def profiles_named(connection: Connection, ref: str, release: str) -> set[str]:
    """Profiles that share the structure which a profile id, checkpoint or signature names."""
    names = (STRUCTURES.c.signature, STRUCTURES.c.representative_checkpoint)
    signatures = set(
        connection.execute(select(STRUCTURES.c.signature).where(or_(*(name == ref for name in names)))).scalars()
    )
    of_release = MEMBERSHIPS.c.release == release
    own = select(MEMBERSHIPS.c.signature).where(of_release, MEMBERSHIPS.c.profile_id == ref)
    exact = set(connection.execute(own).scalars())
    if exact:
        return {ref}
    members = select(MEMBERSHIPS.c.profile_id).where(of_release, MEMBERSHIPS.c.signature.in_(signatures))
    return set(connection.execute(members).scalars())


def _model_values(row: RankingRow, ranking: Ranking, profiles: Mapping[str, Profile]) -> dict[str, Any]:
    profile = profiles[row.judged_profile_id] if row.judged_profile_id else None
    return {
        "source": ranking.source,
        "source_date": ranking.date,
        "key": row.key,
        "model_id": row.model_id,
        "revision": row.revision,
        "config_hash": row.config_hash,
        "rank": row.rank,
        "downloads": row.downloads,
        "model_type": row.model_type,
        "family": profile.model_type if profile else row.model_type or "unknown",
        "profile_id": row.judged_profile_id,
        "stand_in": row.stand_in,
        "match": row.match,
        "buildable": row.buildable,
        "pooling": row.pooling,
        "gated": row.gated,
        "moe": row.moe,
        "multimodal": row.multimodal,
        "no_profile_reason": row.no_profile_reason,
    }


def _put_models(connection: Connection, source: str, wanted: Sequence[dict[str, Any]]) -> tuple[int, int]:
    columns = [MODELS.c.id, *(MODELS.c[name] for name in _COMPARED)]
    stored = {
        row["key"]: row for row in connection.execute(select(*columns).where(MODELS.c.source == source)).mappings()
    }
    now = utc_now()
    keys = {values["key"] for values in wanted}
    ranks = {values["rank"] for values in wanted}
    pushed_out = [
        {"row": row["id"]} for key, row in stored.items() if key not in keys and row["rank"] in ranks and row["rank"]
    ]
    if pushed_out:
        connection.execute(update(MODELS).where(MODELS.c.id == bindparam("row")).values(rank=None), pushed_out)
    fresh = [{**values, "updated_at": now} for values in wanted if values["key"] not in stored]
    if fresh:
        connection.execute(insert(MODELS), fresh)
    changed = [
        {**values, "updated_at": now, "row": stored[values["key"]]["id"]}
        for values in wanted
        if values["key"] in stored and any(stored[values["key"]][name] != values[name] for name in _COMPARED)
    ]
    if changed:
        connection.execute(update(MODELS).where(MODELS.c.id == bindparam("row")), changed)
    return len(fresh), len(changed)
