"""`hf-adapters review`: people decide about drafted adapters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hf_adapters.commands._common import DEFAULT_DATABASE, Database, friendly, need_agents, open_store
from hf_adapters.commands.agent import Case, Repository, resume_case, reviewer_name

if TYPE_CHECKING:
    from hf_adapters.store.agents import AgentStore

app = typer.Typer(
    help="Decide about drafted adapters, with the evidence in front of you.",
    no_args_is_help=True,
    epilog="Example: hf-adapters review list",
)

Reviewer = Annotated[str | None, typer.Option("--reviewer", metavar="NAME", help="Your name; the user's by default.")]


@app.command("list", epilog="Example: hf-adapters review list")
@friendly
def list_(db: Database = DEFAULT_DATABASE) -> None:
    """List the cases that wait for a decision."""
    need_agents()
    from hf_adapters.agents import review
    from hf_adapters.store.agents import AgentStore

    with open_store(db) as store:
        found = review.waiting(AgentStore(store))
    for case in found:
        typer.echo(f"{case.id}: {case.label} [{case.rule or 'no rule'}] in {case.module_path or 'the model'}")
    if not found:
        typer.echo("nothing waits for a decision")


@app.command("show", epilog="Example: hf-adapters review show 7")
@friendly
def show(
    case_id: Case,
    as_json: Annotated[bool, typer.Option("--json", help="Print the evidence as JSON.")] = False,
    db: Database = DEFAULT_DATABASE,
) -> None:
    """Print a draft and the evidence for it."""
    import json

    need_agents()
    from hf_adapters.agents import review
    from hf_adapters.agents.evidence import message
    from hf_adapters.store.agents import AgentStore

    with open_store(db) as store:
        agents = AgentStore(store)
        found = review.show(agents, case_id)
        text = message(agents, case_id) if found["source"] else "No draft yet."
    if as_json:
        typer.echo(json.dumps(found, indent=2, default=str))
        return
    typer.echo(f"case {case_id}: {found['structure']}, {found['state']}\n\n{text}\n")
    for rejected in found["rejected"]:
        typer.echo(f"Attempt {rejected['attempt']} was rejected at {rejected['stage']}: {rejected['reason']}")
    if found["notes"]:
        typer.echo(f"\nNotes of the drafter (not checked): {found['notes']}\n")
    for part in found["parts"]:
        typer.echo(f"# --- {part['adapter']}, for another place of the model\n{part['source']}")
    typer.echo(found["source"])


@app.command("approve", epilog="Example: hf-adapters review approve 7 --repo .")
@friendly
def approve(
    case_id: Case,
    text: Annotated[str, typer.Option("--comment", metavar="TEXT", help="Kept with the decision.")] = "",
    reviewer: Reviewer = None,
    repo: Repository = None,
    db: Database = DEFAULT_DATABASE,
) -> None:
    """Accept a draft: it lands with its test on a new branch, the evidence in the message."""
    need_agents()
    from hf_adapters.agents import review

    _decide(
        db, case_id, lambda agents: review.approve(agents, case_id, reviewer=reviewer_name(reviewer), text=text), repo
    )


@app.command("reject", epilog="Example: hf-adapters review reject 7 --reason 'name the constant'")
@friendly
def reject(
    case_id: Case,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Told to the next attempt.")],
    reviewer: Reviewer = None,
    repo: Repository = None,
    db: Database = DEFAULT_DATABASE,
) -> None:
    """Refuse a draft; the next attempt is told why."""
    need_agents()
    from hf_adapters.agents import review

    _decide(
        db, case_id, lambda agents: review.reject(agents, case_id, reviewer=reviewer_name(reviewer), text=reason), repo
    )


@app.command("comment", epilog="Example: hf-adapters review comment 7 --text 'why float32?'")
@friendly
def comment(
    case_id: Case,
    text: Annotated[str, typer.Option("--text", metavar="TEXT", help="The remark.")],
    reviewer: Reviewer = None,
    db: Database = DEFAULT_DATABASE,
) -> None:
    """Remark on a case without deciding it."""
    need_agents()
    from hf_adapters.agents import review
    from hf_adapters.store.agents import AgentStore

    with open_store(db) as store:
        review.comment(AgentStore(store), case_id, reviewer=reviewer_name(reviewer), text=text)


def _decide(db: str, case_id: int, decide: Callable[[AgentStore], None], repo: Path | None) -> None:
    from hf_adapters.store.agents import AgentStore

    with open_store(db) as store:
        decide(AgentStore(store))
        typer.echo(f"recorded; case {case_id} goes on")
        case = resume_case(store, db, case_id, repo=repo)
    typer.echo(f"case {case.id}: {case.state}: {case.reason}")
