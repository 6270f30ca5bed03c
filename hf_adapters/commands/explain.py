"""`hf-adapters explain`: what the compiler does with a model, stage by stage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from hf_adapters.commands._common import Release, UserError, friendly, release_name

if TYPE_CHECKING:
    from hf_adapters.corpus.build import BuiltModel

#: Parameters beyond which depth is cut: equal layers compile to equal programs, so a few of them tell everything.
_MAX_ELEMENTS = 50_000_000
_LENGTHS = (24, 17)
_SHORT_NAMES = {"division": "work-division", "bundle": "bundling", "layouts": "stick-layouts"}


@friendly
def explain(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Hub id, local folder, or profile id.")],
    stage: Annotated[
        str | None, typer.Option("--stage", metavar="NAME", help="Print this stage only, such as stick-layouts.")
    ] = None,
    stock: Annotated[bool, typer.Option("--stock", help="Compile the model unpatched.")] = False,
    backend_release: Release = None,
) -> None:
    """Compile a model for the device and print the result of every stage, in pipeline order.

    Stages: decompositions, post-grad, lowering, stick-layouts, restickify, work-division (or division), scratchpad,
    bundling (or bundle) and program.

    Example: hf-adapters explain bert.tiny/v30522 --stage stick-layouts
    """
    from spyre_backend.compiler.stages import STAGES

    stage = _SHORT_NAMES.get(stage or "", stage)
    if stage is not None and stage not in STAGES:
        raise UserError(f"there is no stage {stage!r}: choose one of {', '.join(STAGES)}")
    release = release_name(backend_release)
    from hf_adapters.corpus import load_model, resolve
    from hf_adapters.sweep.surroundings import check_caches

    check_caches()
    built = load_model(resolve(model), max_elements=_MAX_ELEMENTS, release=release)
    stages, refused = _compile(built, release=release, stock=stock)
    for name, text in stages:
        if stage is None or name == stage:
            typer.echo(f"== {name}\n{text.rstrip()}\n")
    if refused is not None:
        typer.echo(f"not compiled: {refused}", err=True)
        raise typer.Exit(1)


def _compile(built: BuiltModel, *, release: str, stock: bool) -> tuple[list[tuple[str, str]], str | None]:
    """Stages that one call compiles, and why the device refused the rest (None: it did not)."""
    import warnings

    import hf_adapters
    from hf_adapters.corpus import make_inputs
    from spyre_backend import capabilities
    from spyre_backend.compiler import explain_model
    from spyre_backend.errors import DowncastWarning, FallbackWarning, SpyreUnsupported

    inputs = make_inputs(built, lengths=_LENGTHS)
    with capabilities.use(release), warnings.catch_warnings():
        for noise in (DowncastWarning, FallbackWarning):
            warnings.simplefilter("ignore", noise)
        compiled = hf_adapters.compile(built.model, only=() if stock else None, release=release)
        try:
            return explain_model(compiled, inputs), None
        except SpyreUnsupported as error:
            partial: list[tuple[str, str]] = getattr(error, "partial", [])
            return partial, str(error)
