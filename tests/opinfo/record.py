"""Writes what the device does now into ``expected_failures.yaml``, keeping the reasons that are there.

    SPYRE_OPINFO=all python -m tests.opinfo.record [NAME ...]

A new entry gets the rule's title as its reason, for a person to make exact.  Wrong values and errors are printed and
not recorded: they are mistakes until a rule or a numeric setting explains them.
"""

from __future__ import annotations

import sys
import warnings

from torch.testing._internal.common_methods_invocations import op_db

from spyre_backend import capabilities
from tests.opinfo import expected
from tests.opinfo.expected import Expected
from tests.opinfo.modules import MODULES, module_outcomes
from tests.opinfo.samples import CORE, MODES, dtypes_of, outcomes


def main(names: list[str]) -> None:
    """Run the operators and modules named (default: all) and rewrite their entries for the samples that were run."""
    warnings.simplefilter("ignore")
    entries = expected.read()
    reasons = {(key[0], e.rule): e.reason for key, samples in entries.items() for e in samples.values()}
    for info in (*(op for op in op_db if op.full_name in CORE), *MODULES):
        name = getattr(info, "full_name", None) or info.name
        run = outcomes if hasattr(info, "full_name") else module_outcomes
        if names and name not in names:
            continue
        for mode in MODES:
            for dtype in dtypes_of(info):
                key = (name, mode, str(dtype).removeprefix("torch."))
                samples = entries.setdefault(key, {})
                for position, outcome in run(info, dtype, mode, "spyre"):
                    kind, _, rule = outcome.kind.partition(":")
                    if kind == "ok":
                        samples.pop(position, None)
                    elif rule:
                        title = capabilities.current().rule(rule).title
                        samples[position] = Expected(rule, reasons.get((name, rule), title))
                    elif position not in samples or kind == "error":
                        print(*key, position, outcome.kind, outcome.detail, flush=True)
        expected.write({key: samples for key, samples in entries.items() if samples})


if __name__ == "__main__":
    main(sys.argv[1:])
