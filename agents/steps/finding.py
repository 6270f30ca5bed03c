"""Pick, reproduce, diagnose."""

from __future__ import annotations

from dataclasses import replace

from hf_adapters.agents.localise import failure_to_json, find_failure, localise
from hf_adapters.agents.protocol import Failure
from hf_adapters.agents.state import CaseState
from hf_adapters.agents.subject import Subject
from hf_adapters.agents.workshop import Workshop
from hf_adapters.diagnose import Diagnosis

_OPEN = ("working", "waiting")


def pick(workshop: Workshop, state: CaseState) -> CaseState:
    """The structure asked for, or the failing one with the highest impact that nobody works on."""
    wanted, case_id = state.get("wanted"), state["case_id"]
    if wanted is not None:
        subject = workshop.portfolio.find(wanted)
    else:
        others = (c for c in workshop.agents.cases() if c.id != case_id)
        taken = {c.subject_key for c in others if c.state in (*_OPEN, "given-up", "failed", "landed")}
        left = [s for s in workshop.portfolio.failing() if s.key not in taken]
        if not left:
            workshop.agents.update_case(case_id, state="not-failing", reason="no failing structure is left to pick")
            return {"ended": "not-failing"}
        subject = left[0]
    workshop.agents.update_case(case_id, subject_key=subject.key, label=subject.label)
    workshop.say(f"picked {subject.label}: {subject.models} models, {subject.downloads:,} downloads")
    return {"subject": subject.to_json(), "attempt": 0}


def reproduce(workshop: Workshop, state: CaseState) -> CaseState:
    """Run the structure as it is now: an adapter may have landed since its verdict."""
    subject = Subject.from_json(state["subject"])
    diagnosis = find_failure(subject, subject.build())
    if diagnosis.kind == "none":
        reason = "it runs right with the adapters there are now"
        workshop.agents.update_case(state["case_id"], state="not-failing", reason=reason)
        workshop.say(f"{subject.label}: {reason}")
        return {"ended": "not-failing"}
    workshop.say(f"reproduced: {diagnosis.kind}: {diagnosis.message}")
    plain = Failure(diagnosis=diagnosis, path="", module="", source="", first_line=None, operands=())
    return {"failure": failure_to_json(plain)}


def diagnose(workshop: Workshop, state: CaseState) -> CaseState:
    """The smallest module that fails, with its source."""
    subject = Subject.from_json(state["subject"])
    model = subject.build()
    diagnosis = _known(state)
    name = "-".join(["case", str(state["case_id"]), *map(str, state.get("parts", [])[-1:])])
    folder = workshop.folder / name if workshop.folder is not None else None
    failure = localise(subject, model, diagnosis, folder)
    # The case is known by the place that failed first.
    if not state.get("parts"):
        workshop.agents.update_case(
            state["case_id"],
            rule=diagnosis.rule,
            op=diagnosis.op,
            module_path=failure.path,
            failure=failure_to_json(failure),
        )
    workshop.say(f"diagnosed: {failure.path or 'the model'} ({failure.module}) [{diagnosis.rule or diagnosis.kind}]")
    return {"failure": failure_to_json(failure), "onward": False}


def _known(state: CaseState) -> Diagnosis:
    said = state["failure"]["diagnosis"]
    found = Diagnosis(**said)
    shapes = tuple(tuple(shape) for shape in said["shapes"])
    return replace(found, shapes=shapes, dtypes=tuple(said["dtypes"]))
