"""`hf-adapters corpus`: the models that a sweep knows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hf_adapters.commands._common import DEFAULT_DATABASE, Database, Release, friendly, open_store, release_name
from hf_adapters.store.address import hide_password, sqlite_file

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hf_adapters.corpus.hub import PullProgress
    from hf_adapters.corpus.profiles import Profile
    from hf_adapters.store.store import Store

app = typer.Typer(
    help="The models that a sweep knows: bundled snapshot, the Hub's ranking, or a table of your own.",
    no_args_is_help=True,
    epilog="Example: hf-adapters corpus info",
)
_PROGRESS_EVERY = 100


@app.command("info", epilog="Example: hf-adapters corpus info --db sweep.db")
@friendly
def info(db: Database = DEFAULT_DATABASE) -> None:
    """Tell what is bundled, and which rankings a database holds."""
    from hf_adapters.corpus import load_profiles, load_ranking

    ranking, profiles = load_ranking(), load_profiles()
    shapes = {profile.shape_id for profile in profiles.values()}
    described = sum(row.profile_id is not None for row in ranking.rows)
    typer.echo(
        f"bundled: {len(ranking.rows):,} models of {ranking.date}, {ranking.downloads:,} downloads; "
        f"{described:,} are described by {len(profiles)} profiles over {len(shapes)} shapes"
    )
    path = sqlite_file(db)
    if path is not None and not path.exists():
        return
    with open_store(db) as store:
        for source, models in sorted(store.sources().items()):
            typer.echo(f"{hide_password(db)}: ranking {source!r} with {models:,} models")


@app.command("profiles", epilog="Example: hf-adapters corpus profiles --family bert")
@friendly
def profiles(
    family: Annotated[str | None, typer.Option("--family", help="Only profiles of this model_type.")] = None,
) -> None:
    """List the bundled profiles: id, models, downloads, parameters, and a well-known checkpoint."""
    from hf_adapters.corpus import load_profiles

    for profile in load_profiles().values():
        if family is None or profile.model_type == family:
            typer.echo(
                f"{profile.profile_id}  {profile.rows} models  {profile.downloads:,} downloads  "
                f"{profile.expected_parameter_count:,} parameters  {profile.representative_checkpoint}"
            )


@app.command("pull", epilog="Example: hf-adapters corpus pull --top 1000 --db sweep.db")
@friendly
def pull(
    top: Annotated[int, typer.Option("--top", min=1, help="The N most downloaded embedding models.")] = 10_000,
    db: Database = DEFAULT_DATABASE,
    backend_release: Release = None,
) -> None:
    """Take the ranking and the configs from the Hub; no code of theirs is run. Stopping it loses little.

    HF_ENDPOINT names another Hub, HF_TOKEN gives access to gated models.
    """
    from hf_adapters.corpus import pull as pull_ranking

    release = release_name(backend_release)
    with open_store(db, create=True) as store:
        summary = pull_ranking(top, store, release=release, on_progress=_progress)
        _place_in_all_releases(store, summary.profiles.values())
    counts = ", ".join(f"{name} {count:,}" for name, count in sorted(summary.buildable.items()))
    typer.echo(f"{hide_password(db)}: {len(summary.ranking.rows):,} models of {summary.ranking.date} ({counts})")
    _advise(f"--source {summary.ranking.source} --top {top}", db)


@app.command("import", epilog="Example: hf-adapters corpus import top10k.csv --db sweep.db")
@friendly
def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="CSV with the columns rank, model_id and downloads.")],
    db: Database = DEFAULT_DATABASE,
    backend_release: Release = None,
) -> None:
    """Read a ranking from a table; needs no network."""
    from hf_adapters.corpus import import_table, read_table

    release = release_name(backend_release)
    ranking = read_table(file)
    with open_store(db, create=True) as store:
        import_table(file, store, release=release)
    typer.echo(f"{hide_password(db)}: {len(ranking.rows):,} models of {ranking.date} from {file}")
    _advise(f"--source {ranking.source}", db)


def _advise(options: str, db: str) -> None:
    typer.echo(f"Judge them with: hf-adapters sweep {options} --db {hide_password(db)}")


def _place_in_all_releases(store: Store, profiles: Iterable[Profile]) -> None:
    """Tell the store which profiles share a structure in each release, so that a sweep may emulate any of them."""
    from spyre_backend import capabilities

    known = list(profiles)
    for name in capabilities.available():
        store.put_profiles(known, release=name)


def _progress(progress: PullProgress) -> None:
    if progress.problem:
        typer.echo(f"{progress.model_id}: {progress.problem}", err=True)
    if progress.done % _PROGRESS_EVERY == 0 or progress.done == progress.total:
        typer.echo(f"{progress.done:,} of {progress.total:,}", err=True)
