"""Which adapters of the catalogue the drafter `rewrite` finds again: `python -m benchmarks.rewrite [NAME ...]`.

Each is left out of the catalogue, and the drafter is given nothing but a small model that fails without it. A draft
counts when it passes the screen and its own examples in float64, and the model then runs on the emulated device within
the noise floor; with `--sandbox` it is judged in the sandbox by another process, as the agents' workflow does.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from dataclasses import dataclass

from benchmarks.rewrite_models import CASES
from benchmarks.rewrite_trial import DirectWorkbench
from hf_adapters.agents.localise import find_failure, localise
from hf_adapters.agents.protocol import Cost, DraftTask, NoDraft, Rejection, Workbench
from hf_adapters.agents.rewrite import RewriteDrafter
from hf_adapters.agents.sandbox.run import Sandbox
from hf_adapters.agents.subject import Subject
from hf_adapters.agents.workbench import SubjectWorkbench


@dataclass(frozen=True, kw_only=True)
class Result:
    """What came of one adapter that was left out."""

    adapter: str
    model: str
    found: bool
    attempts: int
    seconds: float
    reason: str


def rediscover(adapter: str, model: str, *, attempts: int, seconds: float, sandbox: bool, verbose: bool) -> Result:
    """Draft until a draft passes, at most `attempts` times."""
    subject = Subject(
        key=f"{adapter}-{model}", label=f"{model} without {adapter}", release="2026.07", kind="builder",
        builder="benchmarks.rewrite_models:build", arguments={"name": model}, without=(adapter,),
    )  # fmt: skip
    built = subject.build()
    diagnosis = find_failure(subject, built)
    started = time.monotonic()
    if diagnosis.kind != "refused":
        reason = f"not refused without it: {diagnosis.message}"
        return Result(adapter=adapter, model=model, found=False, attempts=0, seconds=0.0, reason=reason)
    failure = localise(subject, built, diagnosis)
    workbench: Workbench = (
        SubjectWorkbench(subject=subject, model=built, sandbox=Sandbox()) if sandbox else DirectWorkbench(subject)
    )
    rejections: list[Rejection] = []
    for attempt in range(1, attempts + 1):
        task = DraftTask(
            subject=subject, failure=failure, rejections=tuple(rejections), attempt=attempt,
            allowance=Cost(seconds=seconds), workbench=workbench,
        )  # fmt: skip
        try:
            draft = RewriteDrafter(trials=0).draft(task)
        except NoDraft as error:
            reason = str(error) if not rejections else rejections[-1].reason
            return _result(adapter, model, False, attempt, started, reason)
        if verbose:
            print(draft.source)
        trial = workbench.try_out(draft.source)
        if trial.stage == "passed":
            return _result(adapter, model, True, attempt, started, trial.reason)
        rejections.append(Rejection(attempt=attempt, stage="validate", reason=trial.reason, source=draft.source))
    return _result(adapter, model, False, attempts, started, rejections[-1].reason)


def _result(adapter: str, model: str, found: bool, attempts: int, started: float, reason: str) -> Result:
    seconds = time.monotonic() - started
    return Result(adapter=adapter, model=model, found=found, attempts=attempts, seconds=seconds, reason=reason)


def main(argv: list[str] | None = None) -> int:
    """Print one line for each adapter; 0 when every one that was asked for was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="adapters to leave out; all that have a failing model by default")
    parser.add_argument("--attempts", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=240.0, help="allowance of one attempt")
    parser.add_argument("--sandbox", action="store_true", help="judge as the workflow does, which takes minutes each")
    parser.add_argument("--verbose", action="store_true", help="print the drafts")
    options = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    results = []
    for adapter, model in CASES:
        if options.names and adapter not in options.names and f"{adapter}:{model}" not in options.names:
            continue
        result = rediscover(
            adapter, model, attempts=options.attempts, seconds=options.seconds, sandbox=options.sandbox,
            verbose=options.verbose,
        )  # fmt: skip
        results.append(result)
        mark = "found" if result.found else "-----"
        reason = result.reason.splitlines()[0][:90] if result.reason else ""
        print(
            f"{mark}  {adapter:24} {model:16} {result.attempts} attempts {result.seconds:7.1f} s  {reason}", flush=True
        )
    again = {r.adapter for r in results if r.found}
    print(f"{len(again)} adapters found again: {', '.join(sorted(again)) or 'none'}")
    return 0 if again == {r.adapter for r in results} else 1


if __name__ == "__main__":
    sys.exit(main())
