"""`hf-adapters explain`: what the compiler does with a model, stage by stage."""

from __future__ import annotations

from typing import Annotated

import typer

from hf_adapters.commands._common import Release, friendly, release_name


@friendly
def explain(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Hub id, local folder, or profile id.")],
    stage: Annotated[str | None, typer.Option("--stage", metavar="NAME", help="Print this stage only.")] = None,
    backend_release: Release = None,
) -> None:
    """Compile a model for the device and print the result of every stage, in pipeline order.

    Example: hf-adapters explain bert.tiny/v30522 --stage layouts
    """
