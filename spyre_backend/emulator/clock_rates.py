"""The formulas of the clock (D7.2 to D7.6), each a pure function of shapes and cores.

Bandwidths are bytes per nanosecond (GB/s); times are nanoseconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from spyre_backend.emulator import clock_constants as k

TRANSCENDENTAL = frozenset(
    {"exp", "log", "tanh", "sqrt", "rsqrt", "sigmoid", "silu", "gelu", "softplus", "layernormscale"}
)
"""Pointwise functions of the special-function unit at a quarter of the rate (D1.3, D7.7): those with an exponential,
logarithm or root inside."""


def log2_positive(x: float) -> float:
    """max(0, log2 x); 0 for x <= 0."""
    return max(0.0, math.log2(x)) if x > 0 else 0.0


def _clamp(x: float, low: float, high: float) -> float:
    return min(max(x, low), high)


def by_cores(table: Mapping[int, float], cores: int) -> float:
    """A table over core counts, linear between its columns."""
    columns = sorted(table)
    cores = int(_clamp(cores, columns[0], columns[-1]))
    low = max(c for c in columns if c <= cores)
    high = min(c for c in columns if c >= cores)
    if low == high:
        return table[low]
    return table[low] + (table[high] - table[low]) * (cores - low) / (high - low)


def core_scaling(cores: int) -> float:
    """Share of the device's bandwidth that `cores` cores reach (D7.4: 0.11 with one, all of it with 32)."""
    return by_cores(k.CORE_SCALING, cores)


def capped_scaling(cores: int) -> float:
    """The same for plain operations: only the 40 GB/s of each core bound them (D7.3, D7.9 row 7)."""
    return min(1.0, k.CORE_BANDWIDTH * cores / k.HBM_BANDWIDTH)


def broadcast_bandwidth(rows: int, columns: int, *, row_vector: bool) -> float:
    """Bandwidth of a pointwise operation with a broadcast operand (D7.2), of all bytes read and written.

    Args:
        rows: extent of the iteration space without its last dim.
        columns: its last dim.
        row_vector: the operand varies along the last dim; otherwise it is a column or one element.
    """
    rows_log, columns_log = math.log2(max(rows, 1)), math.log2(max(columns, 1))
    if rows >= k.BROADCAST_TALL:
        start, slope_c, slope_r, low, high = k.BROADCAST_TALL_ROW if row_vector else k.BROADCAST_TALL_COLUMN
        return _clamp(start + slope_c * columns_log + slope_r * rows_log, low, high)
    if columns <= k.BROADCAST_WIDE:
        surface = k.BROADCAST_LOW_ROW if row_vector else k.BROADCAST_LOW_COLUMN
        start, slope, square, slope_c, low, high = surface
        return _clamp(start + slope * rows_log + square * rows_log**2 + slope_c * columns_log, low, high)
    floor, plateau, left, right = k.BROADCAST_WIDE_ROW if row_vector else k.BROADCAST_WIDE_COLUMN
    distance = rows_log - math.log2(columns / k.LANES)
    return min(plateau, floor + (right * distance if distance > 0 else -left * distance))


def cat_bandwidth(rows: int, columns: int, *, along_columns: bool) -> float:
    """Bandwidth of a cat into a tensor of `rows` by `columns` (D7.3)."""
    sticks = math.log2(max(columns / k.LANES, 1))
    if along_columns:
        start, slope, floor = k.CAT_COLUMNS
        return max(floor, start + slope * sticks)
    start, slope, slope_r, floor = k.CAT_ROWS
    return _clamp(start + slope * sticks + slope_r * math.log2(max(rows, 1)), floor, k.HBM_BANDWIDTH)


def transpose_bandwidth(outer: int, rows: int, columns: int) -> float:
    """Bandwidth of a transpose of two outer dims (D7.3): `outer` is M, `rows` all dims but the last."""
    start, slope, slope_r, floor = k.TRANSPOSE
    usual = start + slope * math.log2(max(columns / k.LANES, 1)) + slope_r * math.log2(max(rows, 1))
    usual = _clamp(usual, floor, k.HBM_BANDWIDTH)
    extent, less, lowest = k.TRANSPOSE_SHORT
    halvings = log2_positive(extent / max(outer, 1))
    return max(lowest, usual - less * halvings) if halvings else usual


def restickify_ns(num_bytes: int, run_bytes: int, cores: int) -> float:
    """Time of a restickify of `num_bytes` one way, in DMA requests of `run_bytes` (D7.3)."""
    byte = num_bytes / k.HBM_BANDWIDTH
    requests = num_bytes / _clamp(run_bytes, *k.RESTICKIFY_RUN)
    request_ns = requests * by_cores(k.RESTICKIFY_REQUEST, cores)
    bound = max(byte + max(byte, request_ns), num_bytes / (cores * k.CORE_BANDWIDTH))
    return 2 * num_bytes / k.RESTICKIFY + max(0.0, bound - 2 * byte)


def inner_reduction_bandwidth(rows: int) -> float:
    """Bandwidth of a standalone reduction along the stick, on all cores (D7.4)."""
    start, height, scale = k.INNER_REDUCTION
    return min(k.HBM_BANDWIDTH, start + height * math.exp(-rows / scale))


def matmul_peak(batch: int, cores: int, *, rows_by_stick: bool, shared: bool) -> float:
    """MACs per ns of one core on large blocks (D7.5).

    Args:
        batch: B, the batch extent that lies between the rows and the stick.
        cores: cores used.
        rows_by_stick: consecutive rows lie beside each other in device memory (2-D, or a good 3-D layout).
        shared: the second operand has no batch (3-D by 2-D).
    """
    if rows_by_stick:
        return k.MATMUL_PEAK
    few, limit = k.MATMUL_BATCH_FEW
    slow, from_batch, from_cores = k.BMM_DEFAULT
    if not shared and batch >= from_batch and cores >= from_cores:
        return slow
    return few if batch <= limit else k.MATMUL_BATCH_MANY


def matmul_ns(macs: float, cores: int, peak: float, block: tuple[float, float], batch_split: int, rows: int) -> float:
    """Compute time of a matmul (D7.5): `block` is the output rows and columns of one core, `rows` M before division."""
    fit, exponent = k.MATMUL_ROWS
    fill: float = min(1.0, (max(block[0], 1) / fit) ** exponent)
    area, long_rate, long_unit, short_rate, short_unit = k.SPLIT_PENALTY
    longer, shorter = max(block), min(block)
    rate = long_rate * log2_positive(longer / long_unit) + short_rate * log2_positive(shorter / short_unit)
    penalty = max(0.0, longer * shorter - area) * rate
    step, least = k.BATCH_STEP
    steps = math.log2(batch_split) if rows >= least else 0.0
    return macs / cores / (peak * fill) + penalty + step * steps


def relayout_ns(per_core_bytes: float, split: int, runs: float) -> float:
    """Time of a relayout over the ring (D7.6): each core's part goes to (or comes from) `split` cores in `runs` pieces.

    The formula was fitted for 2 to 8 ways; beyond it the nearest end stands.
    """
    split = int(_clamp(split, *k.RELAYOUT_SPLIT))
    start, slope = k.RELAYOUT_RUN
    return runs * (start + slope * math.log2(split)) + per_core_bytes * split / k.RELAYOUT_RATE
