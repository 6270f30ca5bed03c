"""`hf-adapters check`: the whole loop for one model, in the foreground."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from hf_adapters.commands._common import Dtype, Release, UserError, dtype_name, friendly, open_store, release_name
from hf_adapters.store.address import command_line, hide_password
from hf_adapters.validation.types import Precision

if TYPE_CHECKING:
    from hf_adapters.corpus.references import ModelRef

_ACCEPTED = ("native", "adapted")


@friendly
def check(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Hub id, local folder, or profile id.")],
    backend_release: Release = None,
    db: Annotated[
        str | None,
        typer.Option("--db", metavar="FILE|URL", envvar="HF_ADAPTERS_DB", help="Also record the verdict there."),
    ] = None,
    full_depth: Annotated[
        bool,
        typer.Option(
            "--full-depth", help="Judge all layers of a model that is too large to be held, one after the other."
        ),
    ] = False,
    task: Annotated[
        str | None,
        typer.Option("--task", metavar="NAME", help="Task whose adapters are merged into the weights."),
    ] = None,
    dtype: Dtype = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole evidence as JSON, nothing else.")] = False,
) -> None:
    """Build, patch, compile, run and judge one model, and print each step.

    Exit code 0: accepted; 1: not accepted; 2: the model cannot be found or read.

    Example: hf-adapters check bert.tiny/v30522
    """
    import json
    import time
    from dataclasses import replace

    from hf_adapters.corpus.references import resolve

    release, forced = release_name(backend_release), dtype_name(dtype)
    _quieten()
    found = replace(resolve(model), task=task)
    if task is not None and found.weights != "real":
        raise UserError(f"{model} has no weights at hand, so --task {task} has nothing to merge into")
    from hf_adapters.sweep.surroundings import check_caches
    from hf_adapters.sweep.work import judge_found

    check_caches()

    started = time.monotonic()
    say = _silent if as_json else _step
    evidence = judge_found(found, release=release, say=say, full_depth=full_depth, dtype=forced)
    evidence["seconds"] = round(time.monotonic() - started, 1)
    if as_json:
        typer.echo(json.dumps(evidence, indent=2, default=str))
    else:
        for line in describe(evidence):
            typer.echo(line)
    if db is not None:
        _record(db, found, evidence, release, forced)
        if not as_json:
            _step(f"recorded in {hide_password(db)}")
    raise typer.Exit(0 if evidence["verdict"] in _ACCEPTED else 1)


def describe(evidence: dict[str, Any]) -> list[str]:
    """The evidence as lines for people, the verdict last."""
    lines = []
    if evidence.get("native_reason"):
        lines.append(f"unpatched: {evidence['native_reason']}")
    if evidence.get("adapters"):
        lines.append(f"adapters: {', '.join(evidence['adapters'])}")
    figures = {
        "noise floor": evidence.get("noise_floor"),
        "error in noise floors": evidence.get("multiple"),
        "accepted up to": evidence.get("floor_multiple"),
        "cosine of tokens": evidence.get("cosine_min"),
        "cosine of embeddings": evidence.get("cosine_pooled"),
        "spearman": evidence.get("spearman"),
    }
    measured = [f"{name} {value:.6g}" for name, value in figures.items() if value is not None]
    if evidence.get("multiple") is not None:
        lines.append("measured: " + ", ".join(measured))
    if evidence.get("precision"):
        lines.append(f"dtype: {Precision(**evidence['precision']).sentence()}")
    if evidence.get("fallbacks"):
        lines.append("on the CPU: " + ", ".join(f"{op} x{count}" for op, count in evidence["fallbacks"].items()))
    lines += [f"failed: {sentence}" for sentence in evidence.get("failed_checks") or ()]
    for name in ("op", "rule", "module_path", "source_line", "hint"):
        if evidence.get(name):
            lines.append(f"{name.replace('_', ' ')}: {evidence[name]}")
    depth, ladder = evidence.get("depth"), evidence.get("ladder", "catalogued")
    lines.append(f"evidence: {evidence.get('weights')} weights, depth: {depth}, ladder: {ladder}")
    lines.append(f"verdict: {evidence['verdict']}: {evidence['reason']}")
    return lines


def _record(db: str, found: ModelRef, evidence: dict[str, Any], release: str, dtype: str | None) -> None:
    import sys

    from hf_adapters.corpus import structural_signature
    from hf_adapters.sweep.fingerprint import fingerprint
    from hf_adapters.sweep.messages import Outcome
    from hf_adapters.sweep.record import adapter_records, verdict_record

    identity = fingerprint(release, dtype)
    with open_store(db, create=True) as store:
        # A bundled profile stands for every model of its structure; anything else is a verdict about this model alone.
        is_profile = found.kind == "profile"
        subject: dict[str, Any] = {"signature": structural_signature(found.profile, release)}
        # A profile that the store knows already has models behind it; another row would only hide them.
        if not is_profile or not store.find(found.ref, release=release):
            row = store.put_local_model(found.ref, profile=found.profile, release=release, revision=found.revision)
            subject = subject if is_profile else {"model_row_id": row}
        run_id = store.begin_run(
            release=release,
            fingerprint=identity.value,
            source="local",
            command=command_line(["hf-adapters", *sys.argv[1:]]),
            versions=identity.versions,
        )
        outcome = Outcome(kind="done", result=evidence)
        store.put_adapters(adapter_records(outcome))
        store.record_verdict(run_id, verdict_record(outcome, identity, **subject))
        store.end_run(run_id)


def _quieten() -> None:
    """Keep progress bars and advice of the libraries out of the steps."""
    import os

    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")


def _step(message: str) -> None:
    typer.echo(message)


def _silent(_: str) -> None:
    return None
