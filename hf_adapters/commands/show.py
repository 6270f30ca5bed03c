"""`hf-adapters show`: the stored verdict of a model, its evidence, and how to reproduce it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from hf_adapters.commands._common import (
    DEFAULT_DATABASE,
    Database,
    Release,
    UserError,
    friendly,
    open_store,
    release_name,
)
from hf_adapters.store.address import hide_password
from hf_adapters.validation.types import Precision

if TYPE_CHECKING:
    from hf_adapters.store.records import CurrentVerdict, StoredVerdict

_MOST_OTHERS = 5


@friendly
def show(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Hub id, local folder, rank/N, profile id, or structural signature.")
    ],
    db: Database = DEFAULT_DATABASE,
    backend_release: Release = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything that is stored, as JSON.")] = False,
) -> None:
    """Print the stored verdict of a model, its evidence and the command that reproduces it.

    Example: hf-adapters show bert.minilm-l6/v30522 --db sweep.db
    """
    release = release_name(backend_release)
    with open_store(db) as store:
        found = store.find(model, release=release)
    if not found:
        raise UserError(
            f"the database {hide_password(db)} knows no model {model!r}: judge it with hf-adapters check {model}"
        )
    first = found[0]
    if as_json:
        typer.echo(_as_json(first))
        return
    for line in describe(first, release):
        typer.echo(line)
    if len(found) > 1:
        names = ", ".join(item.model.key for item in found[1 : 1 + _MOST_OTHERS])
        more = len(found) - 1 - _MOST_OTHERS
        typer.echo(f"also for:   {names}" + (f" and {more:,} more models" if more > 0 else ""))


def describe(item: CurrentVerdict, release: str) -> list[str]:
    """The verdict of one model as lines for people."""
    model = item.model
    lines = [
        f"model:      {model.model_id or model.key} ({model.family}), {model.downloads:,} downloads",
        f"structure:  {item.signature or 'none'}"
        + (f", profile {model.profile_id}" if model.profile_id else "")
        + _relation(item),
        f"verdict:    {item.verdict or 'pending'}" + (f": {item.reason}" if item.reason else ""),
    ]
    if item.evidence is not None:
        lines += _evidence_lines(item.evidence)
    subject = model.model_id or model.profile_id or model.key
    precision = item.evidence.details.get("precision") if item.evidence is not None else None
    forced = f" --dtype {precision['dtype']}" if precision and precision["forced"] else ""
    lines.append(f"reproduce:  hf-adapters check {subject} --backend-release {release}{forced}")
    return lines


def _relation(item: CurrentVerdict) -> str:
    if item.stand_in:
        return " (stand-in: not the model's own structure)"
    return f" ({item.model.match})" if item.model.profile_id else ""


def _evidence_lines(evidence: StoredVerdict) -> list[str]:
    figures = {
        "noise floor": evidence.noise_floor,
        "multiple": evidence.multiple,
        "allowed multiple": evidence.floor_multiple,
        "cosine, tokens": evidence.cosine_min,
        "cosine, pooled": evidence.cosine_pooled,
        "spearman": evidence.spearman,
        "simulated us": evidence.simulated_us,
        "seconds": evidence.seconds,
    }
    named = {
        "rule": evidence.rule,
        "operation": evidence.op,
        "module": evidence.module_path,
        "source": evidence.source_line,
        "hint": evidence.hint,
    }
    lines = [f"{name + ':':<11} {value}" for name, value in named.items() if value]
    lines.append(f"ladder:     {evidence.ladder}")
    lines.append(
        f"evidence:   {evidence.weights} weights, depth: {evidence.depth}"
        + (f", cut: {dict(evidence.cut)}" if evidence.cut else "")
    )
    measured = ", ".join(f"{name} {value:.6g}" for name, value in figures.items() if value is not None)
    if measured:
        lines.append(f"measured:   {measured}")
    precision = evidence.details.get("precision")
    if precision:
        lines.append(f"dtype:      {Precision(**precision).sentence()}")
    if evidence.inputs:
        lines.append(f"inputs:     {dict(evidence.inputs)}")
    lines.append(f"fallbacks:  {dict(evidence.fallbacks) or 'none'}")
    lines.append(
        "adapters:   " + (", ".join(f"{name} {digest[:12]}" for name, digest in evidence.adapters.items()) or "none")
    )
    lines.append("versions:   " + ", ".join(f"{name} {number}" for name, number in evidence.versions.items()))
    when = evidence.created_at.isoformat(timespec="seconds")
    lines.append(f"recorded:   {when}, run {evidence.run_id}, release {evidence.release}")
    return lines


def _as_json(item: CurrentVerdict) -> str:
    import dataclasses
    import json

    return json.dumps(dataclasses.asdict(item), indent=2, default=str)
