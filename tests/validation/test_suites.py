"""The validator against patches whose quality is known: every wrong one rejected, every right one accepted."""

from __future__ import annotations

import pytest

from hf_adapters.validate import validate
from hf_adapters.validation.runners import Simulated
from hf_adapters.validation.types import Validation
from tests.validation import structures
from tests.validation.dishonest import DISHONEST, special_casing
from tests.validation.honest import HONEST, Rewrite
from tests.validation.mutations import NUMERIC, Mutation

QUICK = ("bert", "qwen3", "encoder")
OTHERS = ("minilm", "distilbert", "xlm-roberta", "modernbert", "gpt2")


def _judge(name: str, patch: Mutation | Rewrite, **options: object) -> Validation:
    return validate(structures.build(name), reference="inline", runner=Simulated(), patch=patch, **options)  # type: ignore[arg-type]


def _cases(names: tuple[str, ...]) -> list[object]:
    built = {name: structures.build(name) for name in names}
    return [
        pytest.param(name, mutation, id=f"{name}-{mutation.number}-{mutation.name}")
        for name, model in built.items()
        for mutation in NUMERIC
        if mutation.concerns(model)
    ]


def _assert_rejected(found: Validation) -> None:
    assert found.verdict == "mismatch", found.reason
    assert not found.accepted
    assert found.failed_checks


@pytest.mark.parametrize(("name", "mutation"), _cases(QUICK))
def test_wrong_numbers_are_rejected(name: str, mutation: Mutation) -> None:
    _assert_rejected(_judge(name, mutation))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "mutation"), _cases(OTHERS))
def test_wrong_numbers_are_rejected_on_more_structures(name: str, mutation: Mutation) -> None:
    _assert_rejected(_judge(name, mutation))


@pytest.mark.weights
@pytest.mark.slow
@pytest.mark.parametrize("mutation", NUMERIC, ids=lambda m: f"{m.number}-{m.name}")
def test_wrong_numbers_are_rejected_on_real_weights(mutation: Mutation) -> None:
    model = structures.SentenceEncoder(structures.real_minilm())
    if not mutation.concerns(model):
        pytest.skip(f"all-MiniLM-L6-v2 has nothing that '{mutation.name}' changes")
    _assert_rejected(validate(model, reference="inline", runner=Simulated(), patch=mutation, weights="real"))


def test_every_numbered_mutation_is_tried_somewhere() -> None:
    models = [structures.build(name) for name in QUICK]
    tried = {mutation.number for mutation in NUMERIC if any(mutation.concerns(model) for model in models)}
    assert tried == set(range(1, 14))


@pytest.mark.parametrize("mutation", DISHONEST, ids=lambda m: f"{m.number}-{m.name}")
def test_dishonest_runs_are_rejected(mutation: Mutation) -> None:
    found = validate(structures.build("bert"), reference="process", runner=Simulated(), patch=mutation)
    _assert_rejected(found)
    assert found.reference == "process"


def test_special_casing_known_inputs_does_not_help_with_a_seed_it_does_not_know() -> None:
    from hf_adapters.validation.inputs import spec_of, standard_sets, structure_seed

    model = structures.build("bert")
    known = standard_sets(spec_of(model), structure_seed(model))[0].kwargs["input_ids"]
    _assert_rejected(_judge("bert", special_casing(known), seed=987654321))


@pytest.mark.parametrize(
    ("name", "rewrite"),
    [pytest.param(name, rewrite, id=f"{name}-{rewrite.name}") for rewrite in HONEST for name in rewrite.structures],
)
def test_right_rewrites_are_accepted(name: str, rewrite: Rewrite) -> None:
    found = _judge(name, rewrite)
    assert found.verdict == "adapted", found.failed_checks
    assert found.equivalence_error is not None
    assert found.equivalence_error <= 1e-9
    assert found.multiple is not None
    assert found.multiple < 2.5, "a right rewrite should stay well inside the accepted multiple"


@pytest.mark.parametrize("name", sorted(structures.STRUCTURES))
def test_the_catalogue_is_accepted(name: str) -> None:
    found = validate(structures.build(name), reference="inline", runner=Simulated())
    assert found.accepted, found.failed_checks


@pytest.mark.parametrize("release", ["2026.07", "2026.09"])
def test_the_stock_model_is_its_own_noise(release: str) -> None:
    found = validate(structures.build("bert"), reference="inline", runner=Simulated(), try_native=True, release=release)
    assert found.verdict == "native"
    assert found.multiple == pytest.approx(1.0)
    assert found.release == release
