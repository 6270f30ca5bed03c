"""`hf-adapters adapters`: the catalogue."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from hf_adapters.commands._common import (
    DEFAULT_DATABASE,
    Database,
    Release,
    UserError,
    console,
    friendly,
    open_store,
    release_name,
)

app = typer.Typer(help="The catalogue of adapters.", no_args_is_help=True, epilog="Example: hf-adapters adapters list")


Verdicts = Annotated[
    str | None,
    typer.Option("--db", metavar="FILE|URL", help="Also count the models that each adapter unlocks in this database."),
]


@app.command("list", epilog="Example: hf-adapters adapters list --db sweep.db")
@friendly
def list_(db: Verdicts = None, backend_release: Release = None) -> None:
    """List every adapter with its equivalence class and the device rules it works around.

    With a database: the accepted models it was applied to, and those that need no other adapter.
    """
    from rich import box
    from rich.table import Table

    import hf_adapters

    unlocked = None if db is None else _unlocked(db, release_name(backend_release))
    table = Table(box=box.SIMPLE)
    headers = ["adapter", "equivalence", "releases", "written for", "rules", "summary"]
    for header in headers[:4] + (["models", "alone"] if unlocked is not None else []) + headers[4:]:
        table.add_column(header, overflow="fold")
    for adapter in hf_adapters.catalogue():
        releases = ", ".join(adapter.releases) if adapter.releases else "all"
        cells = [adapter.name, adapter.equivalence, releases, ", ".join(adapter.architectures) or "any"]
        if unlocked is not None:
            figures = unlocked.get(adapter.name, {})
            cells += [f"{figures.get('accepted', 0):,}", f"{figures.get('accepted_alone', 0):,}"]
        table.add_row(*cells, ", ".join(adapter.rules), adapter.summary)
    console().print(table)


def _unlocked(db: str, release: str) -> dict[str, dict[str, Any]]:
    from hf_adapters.report.load import load_summary

    with open_store(db) as store:
        return load_summary(store, release=release).adapters


@app.command("controls", epilog="Example: hf-adapters adapters controls --db sweep.db --adapter rotary")
@friendly
def controls(
    db: Database = DEFAULT_DATABASE,
    adapter: Annotated[
        list[str] | None, typer.Option("--adapter", metavar="NAME", help="Only this adapter; repeatable.")
    ] = None,
    structures: Annotated[
        int, typer.Option("--structures", min=1, help="Structures to try for each adapter, until one is lost.")
    ] = 30,
    backend_release: Release = None,
) -> None:
    """Leave out each adapter in turn, until models are lost without it.

    The structures are those that a sweep accepted with the adapter, one of each family first, built small. They are
    compiled layer by layer and, if not lost so, whole. An adapter without which none is lost is left out of its own
    examples instead, in a column of its own. Exit code 1: an adapter loses neither, so it is not needed.
    """
    import hf_adapters
    from hf_adapters.report.load import load_summary
    from hf_adapters.sweep.controls import candidates, run_controls
    from hf_adapters.sweep.own_examples import example_control

    release = release_name(backend_release)
    catalogue = {found.name: found for found in hf_adapters.catalogue() if found.needed_by(release)}
    known = list(catalogue)
    if unknown := sorted(set(adapter or ()) - set(known)):
        raise UserError(f"no adapter of {release} is called {', '.join(unknown)}: choose among {', '.join(known)}")
    names = [name for name in known if not adapter or name in adapter]
    with open_store(db) as store:
        found = candidates(load_summary(store, release=release).rows)
    done = run_controls(found, names, release=release, structures=structures, say=typer.echo)
    needed = {control.adapter for control in done if control.lost}
    own = {}
    for name in (name for name in names if name not in needed):
        own[name] = example_control(catalogue[name], release=release)
        typer.echo(f"{name} left out of its own example {own[name].example}: {own[name].outcome}")
    console().print(_controls_table(names, found, done, own))
    if needed | {name for name in own if own[name].lost} != set(names):
        raise typer.Exit(1)


def _controls_table(names: list[str], found: dict[str, Any], done: list[Any], own: dict[str, Any]) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(title="Each adapter left out in turn", box=box.SIMPLE)
    for header in (
        "adapter",
        "accepted with it",
        "structures tried",
        "structures lost",
        "compiled",
        "models lost",
        "because of",
        *(["own example (no accepted structure is lost)"] if own else []),
    ):
        table.add_column(header, overflow="fold")
    for name in names:
        tried = [control for control in done if control.adapter == name]
        lost = [control for control in tried if control.lost]
        because = sorted({control.rule or control.verdict for control in lost})
        with_it = sum(candidate.models for candidate in found.get(name, ()))
        models = sum(control.candidate.models for control in lost)
        how = ", ".join(sorted({"whole" if control.whole else "by layers" for control in lost}))
        cells = [name, f"{with_it:,}", f"{len(tried)}", f"{len(lost)}", how, f"{models:,}", ", ".join(because)]
        if name in own:
            why = own[name].rule or ("does not run right" if own[name].lost else "")
            cells.append(f"{own[name].example} {own[name].outcome}" + (f" ({why})" if why else ""))
        table.add_row(*cells)
    return table


@app.command("show", epilog="Example: hf-adapters adapters show gelu")
@friendly
def show(name: Annotated[str, typer.Argument(metavar="NAME", help="Name of an adapter.")]) -> None:
    """Print one adapter: what it is for, and its source."""
    import inspect

    import hf_adapters
    from hf_adapters._versions import describe

    catalogue = {adapter.name: adapter for adapter in hf_adapters.catalogue()}
    if name not in catalogue:
        raise UserError(f"there is no adapter {name!r}: choose one of {', '.join(catalogue)}")
    adapter = catalogue[name]
    typer.echo(f"{adapter.name}: {adapter.summary}")
    typer.echo(f"equivalence: {adapter.equivalence}")
    typer.echo(f"releases: {', '.join(adapter.releases) if adapter.releases else 'all'}")
    typer.echo(f"versions: {describe(adapter.versions)}")
    typer.echo(f"written for: {', '.join(adapter.architectures) or 'any architecture'}")
    typer.echo(f"rules: {', '.join(adapter.rules)}\n")
    module = inspect.getmodule(adapter.apply)
    if module is not None:
        typer.echo(inspect.getsource(module))
