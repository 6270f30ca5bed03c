"""The `hf-adapters` command: parses, calls the library, prints. Heavy imports wait until a command needs them."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from hf_adapters.commands import (
    adapters,
    agent,
    check,
    corpus,
    db,
    diagnose,
    explain,
    profile,
    releases,
    report,
    review,
    show,
    sweep,
)

app = typer.Typer(
    name="hf-adapters",
    help="Run unmodified Hugging Face embedding models on IBM Spyre, and prove it.",
    epilog="Start with: hf-adapters sweep --top 100, then: hf-adapters report",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("sweep")(sweep.sweep)
app.command("check")(check.check)
app.command("show")(show.show)
app.command("diagnose")(diagnose.diagnose)
app.command("explain")(explain.explain)
app.command("profile")(profile.profile)
app.command("report")(report.report)
app.command("releases")(releases.releases)
app.add_typer(corpus.app, name="corpus")
app.add_typer(db.app, name="db")
app.add_typer(adapters.app, name="adapters")
app.add_typer(agent.app, name="agent")
app.add_typer(review.app, name="review")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0 done (and accepted), 1 not accepted, 2 a mistake of the user's.

    Args:
        arguments: command line without the program's name; those of the process by default.
    """
    command = typer.main.get_command(app)
    try:
        code = command.main(
            args=None if arguments is None else list(arguments), prog_name="hf-adapters", standalone_mode=False
        )
    except typer.TyperException as error:
        return _report_usage(error)
    except (typer.Abort, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
        return 130
    return code if isinstance(code, int) else 0


def _report_usage(error: typer.TyperException) -> int:
    message = getattr(error, "format_message", lambda: str(error))()
    if not message:  # a group called without a command: its help was printed instead
        return 2
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "hf-adapters"
    one_line = " ".join(message.split())
    print(f"error: {one_line} (see {path} --help)", file=sys.stderr)
    return int(getattr(error, "exit_code", 2))


if __name__ == "__main__":
    sys.exit(main())
