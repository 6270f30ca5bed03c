"""`hf-adapters agent`: let agents draft adapters for failing structures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hf_adapters.commands._common import (
    DEFAULT_DATABASE,
    Database,
    Release,
    UserError,
    console,
    friendly,
    need_agents,
    open_store,
    release_name,
)

if TYPE_CHECKING:
    from hf_adapters.agents.bounds import Bounds
    from hf_adapters.agents.workshop import Workshop
    from hf_adapters.store.agent_records import StoredAttempt, StoredCase
    from hf_adapters.store.store import Store

app = typer.Typer(
    help="Let agents draft adapters for failing structures; people decide (see: hf-adapters review).",
    no_args_is_help=True,
    epilog="Example: hf-adapters agent run --top-blocking 3",
)

Case = Annotated[int, typer.Argument(metavar="ID", help="Number of the case.")]
Drafter = Annotated[str, typer.Option("--drafter", metavar="NAME", help="rewrite (offline) or openai (any endpoint).")]
Model = Annotated[str | None, typer.Option("--model", metavar="NAME", help="Model that the drafter openai asks.")]
Repository = Annotated[
    Path | None, typer.Option("--repo", metavar="DIR", help="Git repository in which approved adapters land.")
]
Unsafe = Annotated[
    bool, typer.Option("--unsafe-no-sandbox", help="Run drafts without bubblewrap; every verdict records it.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print results only.")]


@app.command("run", epilog="Example: hf-adapters agent run --top-blocking 3 --budget-usd 5")
@friendly
def run(
    structure: Annotated[
        str | None, typer.Option("--structure", metavar="S", help="Signature, profile id or model id to work on.")
    ] = None,
    top_blocking: Annotated[
        int,
        typer.Option("--top-blocking", metavar="N", min=1, help="Work on the N failing structures that block most."),
    ] = 1,
    drafter: Drafter = "rewrite",
    model: Model = None,
    max_attempts: Annotated[int, typer.Option("--max-attempts", metavar="K", min=1, help="Drafts of one case.")] = 5,
    budget_usd: Annotated[
        float, typer.Option("--budget-usd", metavar="X", min=0, help="US dollars of one case.")
    ] = 10.0,
    budget_tokens: Annotated[
        int, typer.Option("--budget-tokens", metavar="N", min=1, help="Tokens of a case.")
    ] = 2_000_000,
    budget_hours: Annotated[
        float, typer.Option("--budget-hours", metavar="H", min=0, help="Wall-clock hours of one case.")
    ] = 4.0,
    repo: Repository = None,
    unsafe_no_sandbox: Unsafe = False,
    quiet: Quiet = False,
    db: Database = DEFAULT_DATABASE,
    backend_release: Release = None,
) -> None:
    """Work on failing structures until each waits for a reviewer or is given up.

    Exit code 0: every case waits or landed; 1: a case was given up.
    """
    need_agents()
    from hf_adapters.agents.bounds import Bounds
    from hf_adapters.agents.run import start

    bounds = Bounds(attempts=max_attempts, usd=budget_usd, tokens=budget_tokens, seconds=budget_hours * 3600)
    release = release_name(backend_release)
    cases = []
    with open_store(db) as store:
        shop = _workshop(
            store, release, drafter, model=model, bounds=bounds, repo=repo, unsafe=unsafe_no_sandbox, quiet=quiet, db=db
        )
        shop.sandbox.check()
        for _ in range(1 if structure else top_blocking):
            case = _advance(shop, db, start(shop, release=release, wanted=structure))
            cases.append(case)
            typer.echo(_line(case))
            if case.state == "not-failing" and structure is None:
                break
    raise typer.Exit(1 if any(case.state == "given-up" for case in cases) else 0)


@app.command("resume", epilog="Example: hf-adapters agent resume 7")
@friendly
def resume(
    case_id: Case,
    model: Model = None,
    repo: Repository = None,
    quiet: Quiet = False,
    db: Database = DEFAULT_DATABASE,
) -> None:
    """Go on with a case that was interrupted or has been decided, from the step it was in."""
    with open_store(db) as store:
        case = resume_case(store, db, case_id, model=model, repo=repo, quiet=quiet)
    typer.echo(_line(case))
    raise typer.Exit(1 if case.state == "given-up" else 0)


@app.command("show", epilog="Example: hf-adapters agent show 7")
@friendly
def show(
    case_id: Annotated[
        int | None, typer.Argument(metavar="[ID]", help="Number of the case; all cases without.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything that is stored, as JSON.")] = False,
    db: Database = DEFAULT_DATABASE,
) -> None:
    """Print cases, or one case with its attempts: how far each came, why it ended, what it cost."""
    import json
    from dataclasses import asdict

    from hf_adapters.store.agents import AgentStore

    with open_store(db) as store:
        agents = AgentStore(store)
        if case_id is None:
            for case in agents.cases():
                typer.echo(_line(case))
            return
        case, attempts, reviews = agents.case(case_id), agents.attempts(case_id), agents.reviews(case_id)
    if as_json:
        rows = {
            "case": asdict(case),
            "attempts": [asdict(a) for a in attempts],
            "reviews": [asdict(r) for r in reviews],
        }
        typer.echo(json.dumps(rows, indent=2, default=str))
        return
    typer.echo(_line(case))
    for attempt in attempts:
        typer.echo(_attempt_line(attempt))
    for found in reviews:
        typer.echo(f"  {found.decision} of attempt {found.attempt} by {found.reviewer}: {found.text or '-'}")


@app.command("graph", epilog="Example: hf-adapters agent graph")
@friendly
def graph() -> None:
    """Print the workflow as a Mermaid diagram."""
    need_agents()
    from hf_adapters.agents.graph import mermaid

    typer.echo(mermaid())


def resume_case(
    store: Store, db: str, case_id: int, *, model: str | None = None, repo: Path | None = None, quiet: bool = False
) -> StoredCase:
    """Go on with a case, with the options that it was started with."""
    need_agents()
    from hf_adapters.agents.bounds import Bounds
    from hf_adapters.store.agents import AgentStore

    case = AgentStore(store).case(case_id)
    options = case.options
    drafter = "rewrite" if case.drafter == "rewrite" else "openai"
    shop = _workshop(
        store,
        case.release,
        drafter,
        model=model or (case.drafter if drafter == "openai" else None),
        bounds=Bounds.from_json(options["bounds"]),
        repo=repo,
        unsafe=bool(options.get("unsafe")),
        quiet=quiet,
        db=db,
    )
    return _advance(shop, db, case_id)


def _advance(shop: Workshop, db: str, case_id: int) -> StoredCase:
    from hf_adapters.agents.checkpoints import open_checkpointer
    from hf_adapters.agents.run import advance

    with open_checkpointer(db) as checkpointer, _told(case_id):
        return advance(shop, checkpointer, case_id)


@contextmanager
def _told(case_id: int) -> Iterator[None]:
    """Ctrl-C loses nothing: say how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"interrupted; go on with: hf-adapters agent resume {case_id}", err=True)
        raise


def _workshop(
    store: Store,
    release: str,
    drafter: str,
    *,
    model: str | None,
    bounds: Bounds,
    repo: Path | None,
    unsafe: bool,
    quiet: bool,
    db: str,
) -> Workshop:
    import warnings

    from hf_adapters.agents.drafters import make
    from hf_adapters.agents.portfolio import StorePortfolio
    from hf_adapters.agents.sandbox.run import Sandbox
    from hf_adapters.agents.workshop import Workshop
    from hf_adapters.store.address import sqlite_file
    from hf_adapters.store.agents import AgentStore
    from spyre_backend.errors import DowncastWarning, FallbackWarning

    for noise in (DowncastWarning, FallbackWarning):
        warnings.simplefilter("ignore", noise)
    file = sqlite_file(db)
    return Workshop(
        agents=AgentStore(store),
        portfolio=StorePortfolio(store=store, release=release, source=store.default_source()),
        drafter=make(drafter, model=model),
        sandbox=Sandbox(unsafe=unsafe),
        bounds=bounds,
        repository=(repo or Path.cwd()).resolve(),
        folder=(file or Path("hf-adapters.db")).with_suffix(".cases").resolve(),
        say=(lambda _: None) if quiet else _say,
    )


def _say(text: str) -> None:
    console().print(text, soft_wrap=True, markup=False)


def _line(case: StoredCase) -> str:
    where = f" [{case.rule}] in {case.module_path or 'the model'}" if case.rule else ""
    text = f"case {case.id}: {case.state}: {case.label or 'nothing picked'}{where}"
    if case.state == "waiting":
        return f"{text}; see: hf-adapters review show {case.id}"
    return text + (f": {case.reason}" if case.reason else "")


def _attempt_line(attempt: StoredAttempt) -> str:
    cost = f"{attempt.tokens_in + attempt.tokens_out:,} tokens, ${attempt.usd:.2f}, {attempt.seconds:.0f} s"
    reason = "\n      ".join(attempt.reason.splitlines()[:10])
    name = attempt.adapter_name or "unnamed"
    return f"  attempt {attempt.number} ({name}): {attempt.outcome} at {attempt.stage}, {cost}\n      {reason}"


def reviewer_name(given: str | None) -> str:
    """Who reviews: the name given, else the user's.

    Raises:
        UserError: there is no name.
    """
    import getpass

    try:
        name = given or getpass.getuser()
    except (OSError, KeyError):
        name = ""
    if not name:
        raise UserError("who reviews? Name yourself with --reviewer")
    return name
