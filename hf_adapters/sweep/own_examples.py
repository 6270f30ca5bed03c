"""Controls of adapters without which no accepted structure is lost: what is lost is their own example.

Some adapters serve modules that no ranking of models lists, such as a head of the caller's own. Such an adapter is
tried on the small cases of its CPU proof (`Adapter.examples`), compiled for the device with all adapters and with all
but this one. That is evidence of another kind than a model that is lost, and reports keep the two apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from torch import Tensor, nn

    from hf_adapters.protocols import Adapter, Example

Outcome = Literal["lost", "kept", "unusable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleControl:
    """What leaving out an adapter did to one of its own examples.

    Attributes:
        adapter: the adapter that was left out.
        example: name of the example; empty when the adapter has none.
        outcome: "lost" when the device refuses it, or computes it wrong, without the adapter; "kept" when it runs
            without, and right; "unusable" when it does not even do that with all adapters, or fails without a rule.
        rule: the device rule that stopped it; None when the value is wrong or an error has no rule.
        reason: one sentence for people.
    """

    adapter: str
    example: str
    outcome: Outcome
    rule: str | None
    reason: str

    @property
    def lost(self) -> bool:
        """Whether the example runs right with the adapter and does not without it."""
        return self.outcome == "lost"


def example_control(adapter: Adapter, *, release: str) -> ExampleControl:
    """Leave out an adapter on its own examples, in their order, until one is lost.

    Args:
        adapter: of the catalogue.
        release: torch-spyre release to emulate.
    """
    import hf_adapters

    everything = [found.name for found in hf_adapters.catalogue()]
    done = ExampleControl(adapter=adapter.name, example="", outcome="unusable", rule=None, reason="it has no example")
    for example in adapter.examples():
        done = _control(adapter.name, example, everything, release)
        if done.lost:
            break
    return done


def _control(name: str, example: Example, everything: Sequence[str], release: str) -> ExampleControl:
    def found(outcome: Outcome, reason: str, rule: str | None = None) -> ExampleControl:
        return ExampleControl(adapter=name, example=example.name, outcome=outcome, rule=rule, reason=reason)

    output, refused = run_example(example, everything, release)
    if output is None:
        return found("unusable", f"stopped with all adapters: {refused}", getattr(refused, "rule", None))
    error, limit = example_error(example, output)
    if not error <= limit:
        return found("unusable", f"wrong with all adapters: error {error:.3g}, accepted {limit:.3g}")
    output, refused = run_example(example, [other for other in everything if other != name], release)
    if output is None:
        # An error that is no refusal may be a fault of ours, which would not show that the adapter is needed.
        rule = getattr(refused, "rule", None)
        return found("unusable" if rule is None else "lost", str(refused), rule)
    error, limit = example_error(example, output)
    if not error <= limit:
        return found("lost", f"wrong without it: error {error:.3g}, accepted {limit:.3g}")
    return found("kept", "it runs right without the adapter, too")


def run_example(example: Example, names: Sequence[str], release: str) -> tuple[Tensor, None] | tuple[None, Exception]:
    """Compile an example for the device with some adapters and call it.

    Returns:
        Its first tensor on the CPU, or what stopped it: a refusal, or an error of PyTorch's on values of this kind.
    """
    import torch

    import hf_adapters
    from hf_adapters.validation.recording import first_tensor
    from hf_adapters.validation.unsupported import unsupported_in

    model = hf_adapters.compile(example.build(), only=names, release=release)
    try:
        with torch.no_grad():
            output = first_tensor(model(**example.inputs()))
    except Exception as error:
        return None, unsupported_in(error) or error
    finally:
        hf_adapters.decompile(model)
    assert output is not None
    return output.cpu(), None


def example_error(example: Example, output: Tensor) -> tuple[float, float]:
    """The largest relative error of a vector against the stock example in float64, and what is accepted.

    As for models, that is a multiple of the error which the stock example has in the device's number format.
    """
    import torch

    from hf_adapters.validation import metrics
    from hf_adapters.validation.floor import device_format
    from hf_adapters.validation.runners import half_copy
    from hf_adapters.validation.types import Thresholds

    inputs = example.inputs()
    narrow = {k: v.half() if torch.is_tensor(v) and v.is_floating_point() else v for k, v in inputs.items()}
    stock = _stock(example.build(), inputs)
    with device_format():
        in_format = _stock(half_copy(example.build()), narrow)
    thresholds = Thresholds()
    floor = max(float(metrics.vector_errors(in_format, stock, None).amax()), thresholds.floor_minimum)
    return float(metrics.vector_errors(output, stock, None).amax()), thresholds.floor_multiple * floor


def _stock(model: nn.Module, inputs: dict[str, Any]) -> Tensor:
    import torch

    from hf_adapters.validation.recording import first_tensor, to_host

    with torch.no_grad():
        output = first_tensor(model(**inputs))
    assert output is not None
    return to_host(output)
