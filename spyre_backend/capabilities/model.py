"""What one torch-spyre release can lower, as typed data.

Every value comes from the release's TOML file; nothing about a release is decided in code. The dataclasses only give
the tables names, types and the few look-ups that every stage of the compiler needs (which operator entry applies to
an aten overload, which rule a dtype breaks, which device operation performs a cast).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch

Support = Literal["native", "decomposed", "fallback", "unsupported"]
"""How an operator runs: one device operation, several, on the CPU (counted), or not at all."""

SUPPORT: tuple[Support, ...] = ("native", "decomposed", "fallback", "unsupported")


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Hard limits of the card and of its compiler ("Fixed constants", D1.2, D1.4).

    Names in `_bytes` are bytes; 0 means that no limit is stated.
    """

    stick_bytes: int
    num_cores: int
    lx_bytes: int
    lx_usable_bytes: int
    lx_reserved_bytes: int
    lx_backend_fraction: float
    span_limit_bytes: int
    span_nominal_bytes: int
    loop_count_max: int
    segment_bytes: int
    num_segments: int
    pool_bytes_max: int
    dram_bytes: int
    dma_burst_bytes: int
    external_tensors_max: int
    dma_maps_max: int
    topk_max_k: int
    conv_kernel_max: int
    tensor_rank_max: int
    matmul_min_out_features: int
    gather_split_max: int
    elems_per_stick: Mapping[str, int]

    def sticks_of(self, dtype: str) -> int:
        """Elements of `dtype` (e.g. "float16") in one stick as the device stores it; `KeyError` for a refused dtype."""
        return self.elems_per_stick[dtype]


@dataclass(frozen=True, kw_only=True, slots=True)
class Numerics:
    """How the device computes (D1.5, D6.5).

    Each value's source and the reports that disagree with it stand beside it in the TOML file.
    """

    fp16_to_dl16_rounding: Literal["rne", "half-up", "truncate"]
    saturate_fp16_carry: bool
    minus_inf_code: int
    minus_inf_value: float
    dl16_max: float
    dl16_min: float
    dl16_fraction_bits: int
    dl16_nan_code: int
    halve_subnormals: bool
    exp_floor: float
    exp_floor_threshold: float
    exp_fp32_saturation: float
    merged_nan_reads_as: Literal["nan", "inf"]
    reduction_accumulation: Literal["blocked", "sequential", "fp32"]
    reduction_block: int
    reduction_group: int
    matmul_accumulation: Literal["blocked", "sequential", "fp32"]
    matmul_block: int
    constant_inf: Literal["nan", "keep"]
    max_identity: float
    exp_padding: float
    layer_norm_variance: Literal["exx2", "centred"]
    silu_minus_inf: float
    gelu_ignores_approximate: bool
    gelu_formula: Literal["erf", "tanh"]
    int64_arithmetic: Literal["fp32", "int32"]
    int64_exact_bound: int
    bf16_to_host: Literal["rne", "truncate"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SilentBug:
    """A bug that gives wrong numbers without an error (D2.8, D6.7); off unless a release or a setting switches it on.

    `emulated` is False for bugs that are only described: `missing` says what would be needed.
    """

    name: str
    issue: str
    trigger: str
    effect: str
    state: str
    source: str
    enabled: bool = False
    emulated: bool = True
    missing: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Named switches where the sources conflict or changed during the period, and the silent bugs."""

    matmul_pads_k: bool
    rope_half_by_slices: Literal["reject", "silent"]
    cat_mid_stick: bool
    pad_partial_stick: Literal["reject", "allow"]
    restickify_padding: Literal["zero", "garbage"]
    graph_input_mid_stick: bool
    launch_honours_storage_offset: bool
    zero_size_copy: Literal["no-op", "error"]
    conv2d_direct: bool
    norm_accepts_views: bool
    ignore_span_overflow_hints: bool
    silent_bugs: Mapping[str, SilentBug]

    def bug(self, name: str) -> bool:
        """Whether the silent bug `name` is emulated; `KeyError` when no such bug is described."""
        return self.silent_bugs[name].enabled


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """One device rule that an operation can break.

    `message` is the device's own text where a source gives one; `{name}` marks the parts that differ from case to case.
    """

    id: str
    title: str
    message: str
    source: str
    hint: str

    def render(self, **values: object) -> str:
        """Fill in the placeholders that `values` names; other braces stay as the device prints them."""
        return re.sub(r"\{([a-z_]+)\}", lambda m: str(values.get(m.group(1), m.group(0))), self.message)


@dataclass(frozen=True, kw_only=True, slots=True)
class OperatorEntry:
    """How an aten operator runs (D5).

    `device_op` is the function name on the device for the dtype tables of D1.6, `predicate` names the check that
    decides a partly supported operator, `params` holds that check's numbers, `rule` is what is reported when the
    operator or its predicate refuses.
    """

    name: str
    compiled: Support
    eager: Support
    rule: str = "op-unsupported"
    predicate: str | None = None
    device_op: str | None = None
    source: str = "D5"
    hint: str | None = None
    assumed: bool = False
    params: Mapping[str, Any] = field(default_factory=dict)

    def support(self, *, eager: bool = False) -> Support:
        """Return the column of D5 that applies: E for eager calls, C otherwise."""
        return self.eager if eager else self.compiled


@dataclass(frozen=True, kw_only=True, slots=True)
class DType:
    """A torch dtype on the device (D1.6); `device` is "" when the device refuses it."""

    name: str
    host_format: str
    device_format: str
    stick_elems: int
    refused: bool
    note: str


@dataclass(frozen=True, kw_only=True, slots=True)
class DTypes:
    """Dtype rules of D1.6: storage formats, which device operations take fp32 or integers, and the cast table."""

    formats: Mapping[str, DType]
    fp32_ops: frozenset[str]
    int32_ops: frozenset[str]
    int64_ops: frozenset[str]
    bool_ops: frozenset[str]
    casts: Mapping[tuple[str, str], str]

    def cast(self, source: str, target: str) -> str | None:
        """Device operation that casts `source` to `target` ("float16", ...); None when only the CPU can do it."""
        return "identity" if source == target else self.casts.get((source, target))

    def rule_for(self, device_op: str, dtype: str) -> str | None:
        """Rule id that `device_op` breaks on an operand of `dtype`, or None when it is legal.

        fp16 and bf16 run everywhere; fp32 only the operations of `SPYRE_FP32_OPS`; int32 natively only add and mul;
        int64 only the operations that run through fp32; bool only what works as fp16 arithmetic (D1.6, D5.2).
        """
        known = self.formats.get(dtype)
        if known is None or known.refused:
            return "dtype-unsupported"
        if dtype in ("float16", "bfloat16") or device_op in ("identity", "ReStickifyOpHBM", "to_dtype"):
            return None
        by_dtype = {"float32": self.fp32_ops, "int32": self.int32_ops, "int64": self.int64_ops, "bool": self.bool_ops}
        if device_op in by_dtype.get(dtype, frozenset()):
            return None
        if device_op.startswith("batchmatmul"):
            return "matmul-dtype"
        return "dtype-fp32-op" if dtype == "float32" else "dtype-unsupported"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Capabilities:
    """Everything the project knows about one torch-spyre release."""

    release: str
    title: str
    limits: Limits
    numerics: Numerics
    dtypes: DTypes
    settings: Settings
    rules: Mapping[str, Rule]
    operators: Mapping[str, OperatorEntry]
    default_compiled: Support
    default_eager: Support
    default_rule: str
    fingerprint: str

    def rule(self, rule_id: str) -> Rule:
        """Look up a rule; an unknown id is a mistake in our code and raises `KeyError` with the known ids."""
        try:
            return self.rules[rule_id]
        except KeyError:
            raise KeyError(
                f"release {self.release} has no device rule {rule_id!r}; known rules: {', '.join(sorted(self.rules))}"
            ) from None

    def operator(self, target: torch._ops.OpOverload | str) -> OperatorEntry | None:
        """Find the entry for an aten overload; None when D5 does not name the operator.

        Accepts an `OpOverload` or its name ("aten.pow.Tensor_Scalar", "aten::pow.Tensor_Scalar", "aten.pow").
        In-place and `out=` variants use the entry of their functional form, and an overload without its own entry
        uses that of its packet.
        """
        for name in _candidates(str(target)):
            entry = self.operators.get(name)
            if entry is not None:
                return entry
        return None

    def operator_overloads(self) -> list[torch._ops.OpOverload]:
        """List the torch overloads that the operator entries name; a packet stands for all of its overloads."""
        import torch
        import torch._inductor.inductor_prims

        found: list[torch._ops.OpOverload] = []
        for name in self.operators:
            namespace, packet_name, *overload = name.split(".")
            packet = getattr(getattr(torch.ops, namespace), packet_name)
            found += [getattr(packet, o) for o in overload or packet.overloads()]
        return found

    def policy(self, target: torch._ops.OpOverload | str) -> OperatorEntry:
        """Like `operator`, but an operator that D5 does not name gets the default policy instead of None."""
        entry = self.operator(target)
        if entry is not None:
            return entry
        return OperatorEntry(
            name=str(target).replace("::", "."),
            compiled=self.default_compiled,
            eager=self.default_eager,
            rule=self.default_rule,
            source="not named in D5",
            assumed=True,
        )


def _candidates(name: str) -> list[str]:
    """Keys under which an overload may be listed, most specific first."""
    namespace, _, rest = name.replace("::", ".").partition(".")
    packet, _, overload = rest.partition(".")
    functional = packet if packet.startswith("__") else packet.rstrip("_") or packet
    overloads = [overload, re.sub(r"(?:^|_)out$", "", overload) or "default"] if overload else []
    keys = [f"{namespace}.{p}.{o}" for p in (packet, functional) for o in overloads]
    keys += [f"{namespace}.{packet}", f"{namespace}.{functional}"]
    return list(dict.fromkeys(keys))
