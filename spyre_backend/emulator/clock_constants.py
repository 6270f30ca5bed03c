"""Every number of the clock, with its unit, its source and how sure it is (D7).

Nothing else in the clock or in the cycle model holds a number about the card.  Marks: "stated" (a source gives the
number), "inferred" (derived from sources), "uncertain" (sources conflict or were read once).  ``docs/device.md`` is
generated from :data:`FACTS`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

Mark = Literal["stated", "inferred", "uncertain"]
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Fact:
    """A constant: its value, the unit, where it comes from and how sure that is."""

    name: str
    value: Any
    unit: str
    source: str
    mark: Mark
    meaning: str


FACTS: Final[dict[str, Fact]] = {}


def _fact(name: str, value: Value, unit: str, source: str, meaning: str, mark: Mark = "stated") -> Value:
    FACTS[name] = Fact(name, value, unit, source, mark, meaning)
    return value


# Core
CORES: Final = _fact("CORES", 32, "cores", "D1.1", "cores of a card")
CLOCK_GHZ: Final = _fact("CLOCK_GHZ", 1.5, "GHz", "D1.3", "clock of a core", "inferred")
LANES: Final = _fact("LANES", 64, "elements/cycle/core", "D1.3", "16-bit lanes of the vector unit")
PEAK_MACS: Final = _fact(
    "PEAK_MACS", 1536.0, "MAC/ns/core", "D1.3", "DL16 peak of the matrix unit: utilisation is counted against it"
)
FUSED_REDUCTION: Final = _fact(
    "FUSED_REDUCTION", 1.5, "elements/ns/core", "D7.4", "rate of a reduction inside a bundle of several operations"
)

# Device memory
HBM_BANDWIDTH: Final = _fact("HBM_BANDWIDTH", 150.0, "B/ns", "D7.1", "measured, one direction, all cores")
HBM_PEAK: Final = _fact(
    "HBM_PEAK", 204.8, "B/ns", "D1.2", "peak of the memory; the split score of matmuls counts by it"
)
TURNAROUND: Final = _fact(
    "TURNAROUND", 0.00574, "ns/B", "D7.1", "on min(read, written): 150 GB/s becomes 105 when both are equal"
)
OVERLAP: Final = _fact("OVERLAP", 1.0, "", "D7.1", "share of min(compute, memory) that is hidden in a bundle")
CORE_SCALING: Final = _fact(
    "CORE_SCALING",
    {1: 0.11, 2: 0.22, 4: 0.43, 8: 0.54, 16: 0.54, 32: 1.0},
    "of the bandwidth",
    "D7.4",
    "what so many cores reach; between the columns by linear interpolation (25 cores: 0.80, D7.5)",
)
CORE_BANDWIDTH: Final = _fact(
    "CORE_BANDWIDTH", 40.0, "B/ns/core", "D7.3", "most that one core moves; stated for restickify"
)

# Pointwise with a broadcast operand: surfaces over lR = log2(rows) and lC = log2(columns)
BROADCAST_TALL: Final = _fact("BROADCAST_TALL", 1024, "rows", "D7.2", "rows from which the tall surfaces hold")
BROADCAST_WIDE: Final = _fact("BROADCAST_WIDE", 4096, "columns", "D7.2", "columns above which a low tensor is wide")
BROADCAST_TALL_ROW: Final = _fact(
    "BROADCAST_TALL_ROW", (183.5, -2.8, -2.6, 100.0, 135.0), "B/ns", "D7.2", "constant, lC, lR, lower and upper clamp"
)
BROADCAST_TALL_COLUMN: Final = _fact(
    "BROADCAST_TALL_COLUMN", (162.0, -1.8, -2.2, 95.0, 130.0), "B/ns", "D7.2", "constant, lC, lR, clamps"
)
BROADCAST_LOW_ROW: Final = _fact(
    "BROADCAST_LOW_ROW", (-350.0, 105.0, -5.5, -2.0, 45.0, 140.0), "B/ns", "D7.2", "constant, lR, lR^2, lC, clamps"
)
BROADCAST_LOW_COLUMN: Final = _fact(
    "BROADCAST_LOW_COLUMN", (-270.0, 70.0, -3.5, 3.0, 45.0, 120.0), "B/ns", "D7.2", "constant, lR, lR^2, lC, clamps"
)
BROADCAST_WIDE_ROW: Final = _fact(
    "BROADCAST_WIDE_ROW", (92.0, 128.0, 32.0, 10.0), "B/ns", "D7.2", "floor at rows = columns/64, plateau, slopes"
)
BROADCAST_WIDE_COLUMN: Final = _fact(
    "BROADCAST_WIDE_COLUMN", (98.0, 120.0, 15.0, 8.0), "B/ns", "D7.2", "floor at rows = columns/64, plateau, slopes"
)

# Data movement: bandwidths count bytes read and written together
RESTICKIFY: Final = _fact("RESTICKIFY", 116.0, "B/ns", "D7.3", "restickify")
RESTICKIFY_RUN: Final = _fact("RESTICKIFY_RUN", (128, 4096), "B", "D7.3", "shortest and longest run of a DMA request")
RESTICKIFY_REQUEST: Final = _fact(
    "RESTICKIFY_REQUEST",
    {1: 8.75, 2: 8.75, 4: 7.5, 8: 7.5, 16: 7.5, 32: 3.75},
    "ns/request",
    "D7.3",
    "cost of a DMA request by cores",
)
CAT_ROWS: Final = _fact(
    "CAT_ROWS", (144.0, -9.6, -2.4, 44.0), "B/ns", "D7.3", "cat on dim 0: constant, lC/64, lR, floor"
)
CAT_COLUMNS: Final = _fact("CAT_COLUMNS", (110.0, -0.8, 90.0), "B/ns", "D7.3", "cat on dim 1: constant, lC/64, floor")
TRANSPOSE: Final = _fact(
    "TRANSPOSE", (140.0, -6.8, -1.2, 83.0), "B/ns", "D7.3", "outer transpose: constant, lC/64, lR, floor"
)
TRANSPOSE_SHORT: Final = _fact(
    "TRANSPOSE_SHORT", (8, 13.0, 40.0), "extent, B/ns, B/ns", "D7.3", "less for each halving of M below, and floor"
)
OUTER_REDUCTION: Final = _fact("OUTER_REDUCTION", 113.0, "B/ns", "D7.4", "reduction over an outer dim")
INNER_REDUCTION: Final = _fact(
    "INNER_REDUCTION",
    (114.0, 61.0, 3700.0),
    "B/ns",
    "D7.4",
    "standalone, over the stick: a + b*exp(-rows/c), at most 150",
)
ROW_STORE: Final = _fact("ROW_STORE", 30.0, "B/ns/core", "D7.3", "indirect row store")

# Matmul
MATMUL_PEAK: Final = _fact("MATMUL_PEAK", 1140.0, "MAC/ns/core", "D7.5", "2-D, and 3-D with rows next to the stick")
MATMUL_BATCH_FEW: Final = _fact(
    "MATMUL_BATCH_FEW", (705.0, 4), "MAC/ns/core", "D7.5", "3-D x 2-D in the default layout, B <= 4"
)
MATMUL_BATCH_MANY: Final = _fact(
    "MATMUL_BATCH_MANY", 470.0, "MAC/ns/core", "D7.5", "3-D x 2-D in the default layout, larger B"
)
BMM_DEFAULT: Final = _fact(
    "BMM_DEFAULT", (160.0, 4, 8), "MAC/ns/core", "D7.5", "bmm in the default layout from this B and this many cores"
)
MATMUL_ROWS: Final = _fact(
    "MATMUL_ROWS", (64, 0.35), "rows, exponent", "D7.5", "fewer rows on a core fill the array less"
)
SPLIT_PENALTY: Final = _fact(
    "SPLIT_PENALTY",
    (131072, 2.62e-3, 8, 2.88e-3, 16),
    "elements, ns, extent, ns, extent",
    "D7.5",
    "per output element of a core beyond the area: a*log2+(long/b) + c*log2+(short/d); D7.5 writes us, which would "
    "make a 512x4096x12800 matmul three times slower than the 66 % utilisation of #2765: read as ns",
    "uncertain",
)
BATCH_STEP: Final = _fact(
    "BATCH_STEP",
    (4000.0, 128),
    "ns, rows",
    "D7.5",
    "each halving of the batch over cores, from these rows on",
    "uncertain",
)

# Relayout over the ring
RELAYOUT_RATE: Final = _fact("RELAYOUT_RATE", 547.0, "B/ns", "D7.6", "bytes of a core times split, over this")
RELAYOUT_RUN: Final = _fact(
    "RELAYOUT_RUN", (-1.14, 3.92), "ns/run", "D7.6", "a + b*log2(split) for each contiguous run"
)
RELAYOUT_SPLIT: Final = _fact("RELAYOUT_SPLIT", (2, 8), "pieces", "D7.6", "range in which the formula was fitted")

# Host: launches and copies, in microseconds
LAUNCH_DIRECT: Final = _fact("LAUNCH_DIRECT", 25.0, "us", "D3.6", "launch without graph (#1823)", "inferred")
LAUNCH_GRAPH: Final = _fact(
    "LAUNCH_GRAPH",
    5090.5,
    "us",
    "D3.6 (#1728)",
    "5.52 ms total less 429.5 us of compute: deserialise 751, prepare 4205",
)
STEP_COPIES: Final = _fact(
    "STEP_COPIES",
    34,
    "copies",
    "D7.9 row 17",
    "copies between host and device in a step of Granite 3.3 8B; no source counts them: chosen to fit the published "
    "gains of direct copies (9.9 % and 13.6 %), which therefore are no test of the clock",
    "inferred",
)
COPY_DIRECT: Final = _fact("COPY_DIRECT", 30.0, "us", "D3.6", "fixed cost of a copy", "inferred")
COPY_GRAPH: Final = _fact(
    "COPY_GRAPH", 3500.0, "us", "D3.6", "copy that builds a graph: middle of 2 to 5 ms", "inferred"
)
PCIE: Final = _fact("PCIE", 12.0, "B/ns", "D3.6", "host to device and back; not published", "inferred")
HOST_STICKIFY: Final = _fact(
    "HOST_STICKIFY", 4.0, "B/ns", "D3.6", "layout and format conversion on the host", "inferred"
)

# Errors of the model (root mean square): the noise that can be switched on
MODEL_ERROR: Final = _fact(
    "MODEL_ERROR",
    {
        "broadcast": 0.050,
        "transport": 0.061,
        "reduction": 0.072,
        "pointwise": 0.085,
        "softmax": 0.211,
        "matmul": 0.298,
        "bmm": 0.265,
    },
    "RMS",
    "D7.1",
    "reported error by kind of operation; of a bmm 26.5 to 40 %",
)
CHAIN_ERROR: Final = _fact(
    "CHAIN_ERROR", (0.05, 0.16), "share", "D7.1", "chains of operations take this much longer; not added"
)

# The independent cycle model (C)
CYCLE_CLOCK: Final = _fact("CYCLE_CLOCK", 1.0, "GHz", "D7.7", "notional clock of the cycle model")
CYCLE_HBM: Final = _fact(
    "CYCLE_HBM", 128.0, "B/ns", "D7.7", "device memory in the cycle model, shared by the active cores"
)
CYCLE_RING: Final = _fact(
    "CYCLE_RING", 64.0, "B/cycle", "D7.7", "ring, one direction; half of the hardware document's rate", "uncertain"
)
CYCLE_LANES: Final = _fact("CYCLE_LANES", 64, "elements/cycle/core", "D7.7", "elementwise rate")
CYCLE_SLOW: Final = _fact(
    "CYCLE_SLOW", 4, "times", "D7.7", "cost of exp, log, tanh, sqrt, rsqrt against other operations"
)
CYCLE_SYSTOLIC: Final = _fact(
    "CYCLE_SYSTOLIC", 1024.0, "FLOP/cycle/core", "D7.7", "matmul; 3 times below D1.3", "uncertain"
)
ALIGNED_SYSTOLIC: Final = _fact(
    "ALIGNED_SYSTOLIC", 2048.0, "FLOP/cycle/core", "D7.7", "aligned with the clock: 2*1536/1.5", "inferred"
)
ALIGNED_SUSTAINED: Final = _fact(
    "ALIGNED_SUSTAINED", 0.742, "share", "D7.7", "sustained part of the matmul peak", "inferred"
)
