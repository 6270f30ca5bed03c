"""`hf-adapters profile`: what a model costs on the simulated card."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hf_adapters.commands._common import Release, UserError, console, friendly, release_name

if TYPE_CHECKING:
    from hf_adapters.corpus.build import BuiltModel
    from spyre_backend.emulator.profile import Profile

_ROWS = 30


@friendly
def profile(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Hub id, local folder, or profile id.")],
    length: Annotated[int, typer.Option("--length", min=1, metavar="TOKENS", help="Tokens of each sentence.")] = 128,
    batch: Annotated[int, typer.Option("--batch", min=1, metavar="N", help="Sentences of the call.")] = 1,
    trace: Annotated[
        Path | None, typer.Option("--trace", metavar="FILE", help="Also write a trace for Chrome or Perfetto.")
    ] = None,
    stock: Annotated[bool, typer.Option("--stock", help="Run the model unpatched.")] = False,
    backend_release: Release = None,
) -> None:
    """Run one call of a model on the emulated device and print what it would cost on the card.

    One line for each kind of operation: shape, cores, what bounds it, simulated time by the clock and by the
    independent cycle model, share of the kernels' time. SPYRE_CLOCK_DISPATCH and SPYRE_CLOCK_NOISE set the clock.

    Example: hf-adapters profile bert.tiny/v30522 --trace trace.json
    """
    import json

    release = release_name(backend_release)
    _check_target(trace)
    from hf_adapters.corpus import load_model, resolve
    from hf_adapters.sweep.surroundings import check_caches
    from spyre_backend.emulator.clock import settings
    from spyre_backend.emulator.profile import chrome_trace

    settings()  # a mistake in the environment is told before anything is built
    check_caches()
    built = load_model(resolve(model), release=release)
    result, fallbacks = _run(built, release=release, stock=stock, length=length, batch=batch)
    for name, (before, after) in built.cut.items():
        typer.echo(f"cut: {name} from {before} to {after}")
    _print(result, fallbacks)
    if trace is not None:
        trace.write_text(json.dumps(chrome_trace(result)))
        typer.echo(f"trace: {trace} (open it in ui.perfetto.dev)")


def _check_target(trace: Path | None) -> None:
    """A run is not thrown away because its trace cannot be written."""
    if trace is None:
        return
    if trace.is_dir():
        raise UserError(f"--trace {trace} is a folder: name a file")
    if not trace.absolute().parent.is_dir():
        raise UserError(f"--trace: the folder {trace.parent} does not exist")


def _run(
    built: BuiltModel, *, release: str, stock: bool, length: int, batch: int
) -> tuple[Profile, dict[tuple[str, str], int]]:
    import warnings

    import torch

    import hf_adapters
    from hf_adapters.corpus import make_inputs
    from spyre_backend import capabilities
    from spyre_backend.device.counters import fallback_counts, reset_fallback_counts
    from spyre_backend.emulator.profile import profile as measure
    from spyre_backend.errors import DowncastWarning, FallbackWarning
    from spyre_backend.runtime.observed import launches

    inputs = make_inputs(built, batch=batch, lengths=[length])
    with capabilities.use(release), warnings.catch_warnings(), torch.no_grad():
        for noise in (DowncastWarning, FallbackWarning):
            warnings.simplefilter("ignore", noise)
        compiled = hf_adapters.compile(built.model, only=() if stock else None, release=release)
        reset_fallback_counts()
        with launches() as programs:
            compiled(**inputs)
        return measure(programs), fallback_counts()


def _print(result: Profile, fallbacks: dict[tuple[str, str], int]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("operation")
    table.add_column("shape")
    for name in ("cores", "count"):
        table.add_column(name, justify="right")
    table.add_column("bound by")
    for name in ("us", "share", "cycle model us"):
        table.add_column(name, justify="right")
    for row in result.rows[:_ROWS]:
        shape = "x".join(str(extent) for extent in row.shape)
        figures = (f"{row.us:.2f}", f"{row.share:.1%}", f"{row.cycles_us:.2f}")
        table.add_row(row.operation, shape, str(row.cores), str(row.count), row.bound, *figures)
    rest = result.rows[_ROWS:]
    if rest:
        others = (sum(r.us for r in rest), sum(r.share for r in rest), sum(r.cycles_us for r in rest))
        count = str(sum(r.count for r in rest))
        table.add_row(
            f"{len(rest)} others", "", "", count, "", f"{others[0]:.2f}", f"{others[1]:.1%}", f"{others[2]:.2f}"
        )
    console().print(table)
    host = sum(fallbacks.values())
    typer.echo(
        f"\n{len(result.launches)} launches: {result.launch_us:,.1f} us of launching, "
        f"{result.kernel_us:,.1f} us on the cores ({result.utilisation:.1%} of the matrix units' peak), "
        f"{result.cycles_us:,.1f} us by the cycle model"
    )
    typer.echo("not in the table: copies between host and device")
    if host:
        kinds = ", ".join(f"{op} x{count}" for (op, _), count in sorted(fallbacks.items()))
        typer.echo(f"on the CPU, not timed: {kinds}")
