"""`hf-adapters diagnose`: from a failing model to the smallest cause."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hf_adapters.commands._common import Release, friendly, release_name

if TYPE_CHECKING:
    from hf_adapters.diagnose import Diagnosis
    from hf_adapters.validation.smallest import Smallest

_MAX_ELEMENTS = 50_000_000
_LINES = 40
"""Source lines that are printed."""


@friendly
def diagnose(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Hub id, local folder, or profile id.")],
    stock: Annotated[bool, typer.Option("--stock", help="Diagnose the model unpatched.")] = False,
    save: Annotated[
        Path | None, typer.Option("--save", metavar="DIR", help="Save a script that fails in the same way.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the diagnosis as JSON, nothing else.")] = False,
    backend_release: Release = None,
) -> None:
    """Find the operation, the smallest module and the source lines that keep a model from running right.

    Exit code 0: nothing is wrong; 1: something is.

    Example: hf-adapters diagnose bert.tiny/v30522 --stock
    """
    import json
    import warnings

    from hf_adapters.corpus import load_model, resolve
    from hf_adapters.diagnose import diagnose as find
    from hf_adapters.sweep.surroundings import check_caches
    from spyre_backend.errors import DowncastWarning, FallbackWarning

    release = release_name(backend_release)
    check_caches()
    built = load_model(resolve(model), max_elements=_MAX_ELEMENTS, release=release)
    with warnings.catch_warnings():
        for noise in (DowncastWarning, FallbackWarning):
            warnings.simplefilter("ignore", noise)
        found = find(built.model, release=release, stock=stock)
        cause = _smallest(built.model, found, release, stock) if found.kind == "refused" else None
    script = _saved(cause, found, save, release)
    if as_json:
        typer.echo(json.dumps(_as_json(found, cause, script), indent=2))
    else:
        typer.echo(str(found))
        for line in _describe(cause, script):
            typer.echo(line)
    raise typer.Exit(0 if found.kind == "none" else 1)


def _smallest(model: Any, found: Diagnosis, release: str, stock: bool) -> Smallest:
    from contextlib import nullcontext

    from hf_adapters.patching import patched
    from hf_adapters.validation.inputs import draw, spec_of, structure_seed
    from hf_adapters.validation.smallest import smallest
    from spyre_backend import capabilities

    batch = draw(spec_of(model), name="two", lengths=(64, 23), padding="right", seed=structure_seed(model))
    path = (found.module_path or "").partition(" ")[0]
    with capabilities.use(release):
        apply = nullcontext if stock else lambda m: patched(m, release=release)
        return smallest(model, path, found.rule or "", apply, batch, release)


def _saved(cause: Smallest | None, found: Diagnosis, folder: Path | None, release: str) -> Path | None:
    from hf_adapters.validation.smallest import save_reproducer

    if folder is None or cause is None or not cause.alone:
        return None
    return save_reproducer(cause, folder, release=release, title=found.message)


def _describe(cause: Smallest | None, script: Path | None) -> list[str]:
    if cause is None:
        return []
    alone = "fails alone" if cause.alone else "fails only in the model"
    lines = [f"  smallest module: {cause.path or 'the model'} ({cause.name}), {alone}"]
    lines += [f"    {name}: {dtype}{list(shape)}" for name, shape, dtype in cause.operands]
    source, first = cause.source()
    shown = source.splitlines()[:_LINES]
    lines += [f"  {number:5d}  {text}" for number, text in enumerate(shown, first or 1)]
    return lines + ([f"  reproduce with: python {script}"] if script is not None else [])


def _as_json(found: Diagnosis, cause: Smallest | None, script: Path | None) -> dict[str, Any]:
    from dataclasses import asdict

    data = asdict(found)
    if cause is not None:
        source, first = cause.source()
        data["smallest"] = {
            "path": cause.path,
            "class": cause.name,
            "alone": cause.alone,
            "operands": [{"name": n, "shape": list(s), "dtype": d} for n, s, d in cause.operands],
            "source": source,
            "first_line": first,
            "reproducer": None if script is None else str(script),
        }
    return data
