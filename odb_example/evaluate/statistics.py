"""What results carry: an interval for a share, McNemar's test, quantiles as published figures have them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scipy import special  # not scipy.stats: it takes a second to import


def wilson_interval(correct: int, total: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval of a share, both ends in [0, 1] (Wilson 1927).

    Raises:
        ValueError: no trials, or more successes than trials.
    """
    if not 0 <= correct <= total or total == 0:
        raise ValueError(f"no share: {correct} of {total}")
    z = float(special.ndtri((1 + confidence) / 2))
    share, denominator = correct / total, 1 + z * z / total
    centre = (share + z * z / (2 * total)) / denominator
    half = z * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total)) / denominator
    return centre - half if correct else 0.0, centre + half if correct < total else 1.0  # exact where rounding is not


def mcnemar(only_first: int, only_second: int) -> float:
    """Two-sided exact p-value of McNemar's test (McNemar 1947), from the rows that only one of two runs gets right."""
    tail = float(special.bdtr(min(only_first, only_second), only_first + only_second, 0.5))
    return min(1.0, 2 * tail)


def quantile(values: Sequence[float], share: float) -> float:
    """The value at ``round((n - 1) * share)`` of the sorted values: no interpolation, as published figures have it."""
    ordered = sorted(values)
    return ordered[round((len(ordered) - 1) * share)]
