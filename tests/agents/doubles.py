"""A drafter that answers from a list, and quick stand-ins for what takes minutes on the emulator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from hf_adapters.agents.acceptance.candidate import Outcome
from hf_adapters.agents.portfolio import ListPortfolio
from hf_adapters.agents.protocol import Cost, Draft, DraftTask, Failure, NoDraft
from hf_adapters.agents.steps import finding, proving
from hf_adapters.agents.subject import Subject
from hf_adapters.agents.workshop import Workshop
from hf_adapters.diagnose import Diagnosis
from hf_adapters.store import Store
from hf_adapters.store.agents import AgentStore
from hf_adapters.validation.types import Validation

RELEASE = "2026.07"
TINY = {
    "vocab_size": 97,
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "intermediate_size": 64,
    "max_position_embeddings": 96,
}


@dataclass
class Scripted:
    """Answers with the drafts given, one for each attempt."""

    drafts: Sequence[str]
    name: str = "scripted"
    tasks: list[DraftTask] = field(default_factory=list)
    cost: Cost = field(default_factory=lambda: Cost(tokens_in=100, tokens_out=20, usd=0.01))

    def draft(self, task: DraftTask) -> Draft:
        self.tasks.append(task)
        if task.attempt > len(self.drafts):
            raise NoDraft("the script has ended")
        return Draft(source=self.drafts[task.attempt - 1], notes=f"draft {task.attempt}", cost=self.cost)


def build_tiny(activation: str = "gelu_new", outlier: float = 0.0) -> Any:
    """One BERT layer; the width is one stick, so nothing has to be padded. One weight of the token embeddings, which
    are normalised afterwards, is `outlier`."""
    import transformers

    torch.manual_seed(3)
    config = transformers.BertConfig(**TINY, num_attention_heads=1, hidden_act=activation, initializer_range=0.1)
    model = transformers.BertModel(config).eval()
    with torch.no_grad():
        model.embeddings.word_embeddings.weight[5, 3] = outlier
    return model


def tiny(
    activation: str = "gelu_new",
    *,
    without: tuple[str, ...] = ("small_powers",),
    outlier: float = 0.0,
    **values: Any,
) -> Subject:
    """A subject that fails because an adapter is left out."""
    return Subject(
        key=f"tiny-{activation}", label=f"tiny {activation}", release=RELEASE, kind="builder",
        builder="tests.agents.doubles:build_tiny", arguments={"activation": activation, "outlier": outlier},
        without=without, **values,
    )  # fmt: skip


def two_places() -> Subject:
    """A subject that fails at two places because an adapter is left out."""
    return Subject(
        key="two-places", label="two places", release=RELEASE, kind="builder",
        builder="tests.agents.models:build_two_places", without=("small_powers",),
    )  # fmt: skip


DIAGNOSIS = Diagnosis(
    kind="refused",
    message="pow(x, 3) is not lowered",
    module_path="encoder.layer.0.intermediate.intermediate_act_fn (NewGELUActivation)",
    op="aten.pow.Tensor_Scalar",
    rule="pow-scalar-exponent",
    shapes=((2, 64),),
    dtypes=("torch.float16",),
)

ELSEWHERE = replace(
    DIAGNOSIS,
    message="pow(x, 2) is not lowered",
    module_path="encoder.layer.1.intermediate.intermediate_act_fn (ReLUSquaredActivation)",
)
"""What the device refuses next."""


def outcome(accepted: bool = True, *, applies: bool = True, verdict: str | None = None, reason: str = "") -> Outcome:
    """What `examine` would have said."""
    found = Validation(
        verdict=verdict or ("adapted" if accepted else "mismatch"), reason="r", adapters={"gelu_cube": "h"}
    )  # type: ignore[arg-type]
    return Outcome(
        subject="x", accepted=accepted, applies=applies, reason=reason or "within 1.0 noise floors", validation=found,
        sites=("a: b -> c",), simulated_us=10.0,
    )  # fmt: skip


def fake_emulator(monkeypatch: Any, examined: Any = None, *, elsewhere: Diagnosis | None = None) -> list[str]:
    """Replace what runs models; the labels of the subjects that were examined are appended to the result.

    Args:
        monkeypatch: pytest's.
        examined: the outcome for a subject; accepted when None.
        elsewhere: what the device refuses as long as there is one draft only.
    """
    seen: list[str] = []

    def examine(source: str, adapter: Any, subject: Subject, sandbox: Any, **options: Any) -> Outcome:
        seen.append(subject.label)
        if elsewhere is not None and options.get("causes") and not options.get("beside"):
            return replace(outcome(False, verdict="uncovered", reason="fails elsewhere"), remaining=elsewhere)
        return outcome() if examined is None else examined(subject)

    def localise(subject: Subject, model: Any, diagnosis: Diagnosis, folder: Any) -> Failure:
        path = (diagnosis.module_path or "").partition(" ")[0]
        return Failure(diagnosis=diagnosis, path=path, module="m:C", source="class C: ...", first_line=1, operands=())

    monkeypatch.setattr(finding, "find_failure", lambda subject, model: DIAGNOSIS)
    monkeypatch.setattr(finding, "localise", localise)
    monkeypatch.setattr(proving, "examine", examine)
    monkeypatch.setattr(proving, "concerned", lambda source, adapter, subjects, *_: list(subjects))
    return seen


def workshop(store: Store, drafter: Any, *subjects: Subject, **values: Any) -> Workshop:
    """A workshop over a list of subjects."""
    portfolio = values.pop("portfolio", None) or ListPortfolio(subjects=subjects or (tiny(),))
    return Workshop(agents=AgentStore(store), portfolio=portfolio, drafter=drafter, **values)


def make_repository(folder: Path) -> Path:
    """A git repository with one commit."""
    import subprocess

    folder.mkdir()
    (folder / "README.md").write_text("x\n", encoding="utf-8")
    identity = ["-c", "user.email=t@example.org", "-c", "user.name=t"]
    for command in (["init", "-q", "-b", "main"], ["add", "."], [*identity, "commit", "-qm", "first"]):
        subprocess.run(["git", "-C", str(folder), *command], check=True, capture_output=True)
    return folder
