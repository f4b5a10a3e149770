"""Scores as text."""

import math
from collections.abc import Sequence


def decimals(*scores: float) -> int:
    """Decimals that give the largest score three significant digits; at least one."""
    largest = max((abs(score) for score in scores if math.isfinite(score)), default=0.0)
    return max(1, 2 - math.floor(math.log10(largest))) if largest else 1


def with_interval(mean: float, interval: Sequence[float] | None, digits: int | None = None) -> str:
    """'MEAN (LOW to HIGH)', or only the mean; the number of digits defaults to `decimals`."""
    digits = decimals(mean) if digits is None else digits
    if interval is None:
        return f"{mean:.{digits}f}"
    return f"{mean:.{digits}f} ({interval[0]:.{digits}f} to {interval[1]:.{digits}f})"
