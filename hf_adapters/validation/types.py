"""What a validation says: checks, figures per layer, the judgement, and the record that is stored with a verdict."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, Self

Verdict = Literal["native", "adapted", "fallback", "mismatch", "uncovered", "unbuildable", "crashed", "timed-out"]
Rung = Literal["catalogued", "built", "traced", "lowered", "executed", "accurate", "real-weights", "reviewed"]

LADDER: tuple[Rung, ...] = (
    "catalogued",
    "built",
    "traced",
    "lowered",
    "executed",
    "accurate",
    "real-weights",
    "reviewed",
)
"""How far a model came, lowest first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Thresholds:
    """The limits of acceptance. One set for all models; what adapts to a model is its measured noise floor."""

    floor_multiple: float = 4.0
    """Largest accepted error, in noise floors of the place where it is measured."""
    spearman: float = 0.999
    """Least rank correlation of similarities; where the number format alone keeps less, `floor_multiple` times its
    loss is accepted."""
    equivalence: float = 1e-9
    """Largest relative error in float64 of a replaced module, and of the first layer of the model."""
    equivalence_growth: float = 100.0
    """How much larger the float64 error of the model may be behind one layer than behind the one before it."""
    floor_minimum: float = 2.0**-10
    """Least noise floor: one rounding to DL16's 9 fraction bits (D1.5)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One condition of acceptance."""

    name: str
    passed: bool
    where: str
    """Place or subject, such as `right/encoder.layer.3`."""
    value: float | None
    limit: float | None
    detail: str = ""

    def sentence(self) -> str:
        """The check as one readable line."""
        figures = (
            ""
            if self.value is None
            else f" {self.value:.3g}" + ("" if self.limit is None else f" (limit {self.limit:.3g})")
        )
        return f"{self.name} at {self.where}:{figures} {self.detail}".rstrip().rstrip(":")


@dataclass(frozen=True, kw_only=True, slots=True)
class PlaceFigures:
    """Errors at one layer's output (or at the pooled embedding), over all input sets."""

    place: str
    floor: float
    """Largest relative error of a token in the stock model in DL16."""
    floor_rms: float
    error: float
    """Largest relative error of a token in the candidate."""
    error_rms: float
    cosine_min: float

    @property
    def multiple(self) -> float:
        """Error in noise floors; the larger of the two statistics."""
        return max(self.error / self.floor, self.error_rms / self.floor_rms)


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """Whether a candidate is accepted, and every figure the answer rests on."""

    accepted: bool
    checks: tuple[Check, ...]
    places: tuple[PlaceFigures, ...]
    noise_floor: float
    multiple: float
    cosine_min: float
    cosine_pooled: float
    spearman: float
    spearman_floor: float
    neighbours_kept: int
    neighbours_decided: int
    equivalence_error: float
    """Largest relative error in float64."""

    @property
    def failed(self) -> tuple[Check, ...]:
        """The conditions that do not hold."""
        return tuple(check for check in self.checks if not check.passed)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Rebuild from `dataclasses.asdict`."""
        return cls(
            **{
                **data,
                "checks": tuple(Check(**c) for c in data["checks"]),
                "places": tuple(PlaceFigures(**p) for p in data["places"]),
            }
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Precision:
    """The 16-bit format a model was validated in, and the range pass that it was chosen by."""

    dtype: Literal["float16", "bfloat16"]
    forced: bool
    """Whether the caller chose it."""
    reason: str
    checkpoint: Literal["float16", "bfloat16", "float32", "unknown"] = "unknown"
    """The narrowest format that holds every weight exactly."""
    largest_weight: float = 0.0
    largest_weight_at: str = ""
    largest_value: float = 0.0
    """Largest absolute value that a module took or gave, in float32 on the CPU."""
    largest_value_at: str = ""
    largest_crossing: float = 0.0
    """The same of what goes from the host to the device or back."""
    largest_crossing_at: str = ""
    rounded_share: float = 0.0
    """Share of the weights that `dtype` does not hold exactly."""
    tiny_share: float = 0.0
    """Share of the weights, other than zero, below 2^-14, the smallest normal float16."""

    def sentence(self) -> str:
        """The choice as one readable line."""
        return f"{self.dtype} ({self.reason}); the weights are exact in {self.checkpoint}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Validation:
    """The evidence behind a verdict; plain data, so that it can be stored and sent between processes."""

    verdict: Verdict
    reason: str
    """One sentence: why the verdict is what it is."""
    rule: str | None = None
    op: str | None = None
    module_path: str | None = None
    source_line: str | None = None
    hint: str | None = None
    noise_floor: float | None = None
    """Largest relative token error of the stock model in the device's number format, over all layers."""
    multiple: float | None = None
    """Largest candidate error, in noise floors of its place."""
    floor_multiple: float = 4.0
    """The multiple that was accepted."""
    cosine_min: float | None = None
    cosine_pooled: float | None = None
    spearman: float | None = None
    neighbours_kept: float | None = None
    """Share of the decided nearest neighbours that are kept; 1.0 when none is decided."""
    equivalence_error: float | None = None
    fallbacks: dict[str, int] = field(default_factory=dict)
    """`"<op> (<category>)"` -> calls that ran on the CPU."""
    launches: int | None = None
    simulated_us: float | None = None
    """Time of the candidate's launches on the simulated card, in microseconds."""
    adapters: dict[str, str] = field(default_factory=dict)
    """Adapter -> hash of its source."""
    native_reason: str | None = None
    """Why the stock model was not accepted as it is; None when it was not tried."""
    precision: Precision | None = None
    """The 16-bit format and why it; None in records that are older than the choice."""
    weights: str = "random"
    depth: str = "all layers"
    inputs: str = ""
    seed: int | None = None
    release: str = ""
    reference: str = ""
    """`process` or `inline`: where the reference values were computed and judged."""
    runner: str = ""
    """What executed the candidate; only `device` stands for the device."""
    versions: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    ladder: Rung = "catalogued"
    failed_checks: tuple[str, ...] = ()
    places: tuple[PlaceFigures, ...] = ()

    @property
    def accepted(self) -> bool:
        """Whether the model counts as covered."""
        return self.verdict in ("native", "adapted")

    def to_dict(self) -> dict[str, Any]:
        """JSON-able form; `from_dict` is its inverse."""
        return asdict(self)

    def to_json(self) -> str:
        """One JSON object."""
        return json.dumps(self.to_dict(), sort_keys=True)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Rebuild from `to_dict`; keys that this version does not know are left out, so that old records stay
        readable."""
        known = {f.name for f in fields(cls)}
        kept = {key: value for key, value in data.items() if key in known}
        kept["failed_checks"] = tuple(kept.get("failed_checks", ()))
        kept["places"] = tuple(PlaceFigures(**place) for place in kept.get("places", ()))
        if isinstance(kept.get("precision"), dict):
            kept["precision"] = Precision(**kept["precision"])
        return cls(**kept)
