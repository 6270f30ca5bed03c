"""`hf-adapters releases`: the torch-spyre releases that can be emulated."""

from __future__ import annotations

import typer

from hf_adapters.commands._common import friendly, release_name


@friendly
def releases() -> None:
    """List the torch-spyre releases that can be emulated; * marks the one used by default.

    Example: hf-adapters releases
    """
    from spyre_backend import capabilities

    default = release_name(None)
    for name in capabilities.available():
        loaded = capabilities.load(name)
        mark = "*" if name == default else " "
        typer.echo(f"{mark} {name}  fingerprint {loaded.fingerprint[:12]}")
