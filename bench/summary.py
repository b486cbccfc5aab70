"""The arithmetic of the report: percentiles, medians and ratios. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence


def percentile(values: Sequence[float], q: float) -> float:
    """Nearest rank: the smallest value that at least a share `q` of all values does not exceed."""
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    return ordered[max(math.ceil(q * len(ordered)), 1) - 1]


def median(values: Sequence[float]) -> float:
    """The middle value, or the mean of the two middle ones."""
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def best(values: Sequence[float], *, higher_is_better: bool) -> float:
    return max(values) if higher_is_better else min(values)


def ratio(ours: float | None, theirs: float | None) -> float | None:
    """ours / theirs, or None where one of them was not measured."""
    if ours is None or theirs is None or theirs == 0:
        return None
    return ours / theirs
