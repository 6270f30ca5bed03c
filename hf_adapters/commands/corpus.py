"""`hf-adapters corpus`"""

import typer

app = typer.Typer()


@app.command()
def info() -> None:
    """x"""
