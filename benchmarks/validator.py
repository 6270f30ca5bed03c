"""False accepts and false rejects of the validator, over patches of known quality.

    python -m benchmarks.validator                # the small structures
    python -m benchmarks.validator --corpus 5     # and the five most downloaded structures of the corpus, cut to size
    python -m benchmarks.validator --real         # and all-MiniLM-L6-v2 with its real weights

Candidates run in the device's number format on the CPU, so that a hundred validations take minutes and not hours.
Exit code 1 when a wrong patch was accepted.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from torch import nn

from hf_adapters.validate import validate
from hf_adapters.validation.runners import Simulated
from hf_adapters.validation.types import Validation
from tests.validation import structures
from tests.validation.dishonest import DISHONEST
from tests.validation.honest import HONEST
from tests.validation.mutations import NUMERIC, Mutation

SUITE = ("bert", "minilm", "qwen3", "distilbert", "xlm-roberta", "modernbert", "gpt2", "encoder")
CORPUS_ELEMENTS = 20_000_000
"""Elements to which corpus structures are cut: two layers of a BERT-base."""

Builder = Callable[[], nn.Module]


def corpus_structures(count: int) -> Iterator[tuple[str, Builder]]:
    """The structures of the bundled corpus that stand for the most downloads."""
    from hf_adapters.corpus import build_model, load_profiles, load_ranking, structural_signature

    profiles = load_profiles()
    downloads: Counter[str] = Counter()
    for row in load_ranking(10_000).rows:
        if row.profile_id is not None:
            downloads[row.profile_id] += row.downloads
    seen: set[str] = set()
    for profile_id, _ in downloads.most_common():
        signature = structural_signature(profiles[profile_id])
        if signature not in seen and len(seen) < count:
            seen.add(signature)
            yield profile_id, lambda p=profiles[profile_id]: build_model(p, max_elements=CORPUS_ELEMENTS).model


def judge(model: nn.Module, patch: object | None) -> Validation:
    """One validation in this process."""
    return validate(model, reference="inline", runner=Simulated(), patch=patch)  # type: ignore[arg-type]


class Tally:
    """Counts and names of what went wrong."""

    def __init__(self) -> None:
        self.wrong = self.right = 0
        self.false_accepts: list[str] = []
        self.false_rejects: list[str] = []

    def mutations(self, name: str, build: Builder, mutations: Sequence[Mutation]) -> None:
        """Every wrong patch that concerns the structure."""
        model = build()
        for mutation in mutations:
            if mutation.concerns(model):
                self.wrong += 1
                if judge(model, mutation).accepted:
                    self.false_accepts.append(f"{name}: {mutation.number} {mutation.name}")

    def rewrites(self) -> None:
        """Every right patch on the structures it is for."""
        for rewrite in HONEST:
            for name in rewrite.structures:
                self.expect_accepted(f"{name}: {rewrite.name}", judge(structures.build(name), rewrite))

    def expect_accepted(self, name: str, found: Validation) -> None:
        """Count one right patch."""
        self.right += 1
        if not found.accepted:
            self.false_rejects.append(f"{name}: {found.reason}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suites and print the two figures; 1 when a wrong patch was accepted."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.validator", description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", type=int, default=0, metavar="N", help="also the N most downloaded structures")
    parser.add_argument("--real", action="store_true", help="also all-MiniLM-L6-v2 with real weights")
    options = parser.parse_args(arguments)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    started, tally = time.perf_counter(), Tally()
    subjects: list[tuple[str, Builder]] = [(name, lambda n=name: structures.build(n)) for name in SUITE]
    subjects += corpus_structures(options.corpus)
    if options.real:
        subjects.append(("all-MiniLM-L6-v2", lambda: structures.SentenceEncoder(structures.real_minilm())))
    for name, build in subjects:
        tally.mutations(name, build, NUMERIC)
        tally.expect_accepted(f"{name}: catalogue of adapters", judge(build(), None))
    # A stock value within the reach of the patch is what the reference process prevents: number 19 is tested there.
    tally.mutations("bert", lambda: structures.build("bert"), [m for m in DISHONEST if m.number not in (17, 19)])
    tally.rewrites()
    for line in tally.false_accepts:
        print(f"  accepted, and wrong: {line}")
    for line in tally.false_rejects:
        print(f"  rejected, and right: {line}")
    print(
        f"validator: {len(tally.false_accepts)} false accepts of {tally.wrong} wrong patches, "
        f"{len(tally.false_rejects)} false rejects of {tally.right} right ones, "
        f"{len(subjects)} structures, {time.perf_counter() - started:.0f} s"
    )
    return 1 if tally.false_accepts else 0


if __name__ == "__main__":
    raise SystemExit(main())
