"""What results carry: an interval for a share, McNemar's test, quantiles as published figures have them."""

from __future__ import annotations

from collections.abc import Sequence

from scipy.stats import binomtest


def wilson_interval(correct: int, total: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval of a share, both ends in [0, 1] (Wilson 1927).

    Raises:
        ValueError: no trials, or more successes than trials.
    """
    if not 0 <= correct <= total or total == 0:
        raise ValueError(f"no share: {correct} of {total}")
    interval = binomtest(correct, total).proportion_ci(confidence, method="wilson")
    return float(interval.low), float(interval.high)


def mcnemar(only_first: int, only_second: int) -> float:
    """Two-sided exact p-value of McNemar's test (McNemar 1947), from the rows that only one of two runs gets right."""
    discordant = only_first + only_second
    return 1.0 if discordant == 0 else float(binomtest(only_first, discordant, 0.5).pvalue)


def quantile(values: Sequence[float], share: float) -> float:
    """The value at ``round((n - 1) * share)`` of the sorted values: no interpolation, as published figures have it."""
    ordered = sorted(values)
    return ordered[round((len(ordered) - 1) * share)]
