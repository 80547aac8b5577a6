"""Intervals of the figures in a comparison. All are two-sided, 95%.

What they cover is stated by each: the held-out samples of *this* pair of trained models, or the steps of *this* run.
None of them knows what another training seed would have given; only `mean_over_seeds` does, and it needs several
runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from odb_example.evaluate.statistics import wilson_interval

LEVEL = 0.95
BOOTSTRAP_ROUNDS = 2000
MIN_STEPS_FOR_INTERVAL = 20

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure with its interval; ``low`` and ``high`` are None where ``n`` does not allow one."""

    value: float
    low: float | None
    high: float | None
    n: int
    method: str


def mean(values: Sequence[float] | Array) -> Estimate:
    """Mean with Student's t interval; of paired differences it is the paired t interval."""
    array = np.asarray(values, dtype=np.float64)
    n = len(array)
    centre = float(array.mean())
    if n < 2:
        return Estimate(centre, None, None, n, "one value: no interval")
    half = _t(n - 1) * float(array.std(ddof=1)) / math.sqrt(n)
    return Estimate(centre, centre - half, centre + half, n, "Student t over samples")


def ratio_of_sums(numerators: Sequence[float] | Array, denominators: Sequence[float] | Array) -> Estimate:
    """Sum over sum, e.g. nats over label tokens, with the linearised interval of a ratio estimator.

    Residuals ``(y - r x) / mean(x)`` stand for the samples (Cochran, Sampling Techniques, 3rd ed., 6.4). Numerators
    may be
    differences of two models on the same samples: the interval is then paired.
    """
    y, x = np.asarray(numerators, dtype=np.float64), np.asarray(denominators, dtype=np.float64)
    ratio = float(y.sum() / x.sum())
    n = len(y)
    if n < 2:
        return Estimate(ratio, None, None, n, "one value: no interval")
    residuals = (y - ratio * x) / x.mean()
    half = _t(n - 1) * float(residuals.std(ddof=1)) / math.sqrt(n)
    return Estimate(ratio, ratio - half, ratio + half, n, "linearised ratio over samples")


def proportion(correct: int, total: int) -> Estimate:
    """A share with Wilson's interval."""
    low, high = wilson_interval(correct, total, LEVEL)
    return Estimate(correct / total, low, high, total, "Wilson score interval")


def paired_proportions(both: int, only_first: int, only_second: int, neither: int) -> Estimate:
    """Second minus first share on the same rows, with Newcombe's interval for pairs (1998, method 10)."""
    n = both + only_first + only_second + neither
    first, second = both + only_first, both + only_second
    p1, p2 = first / n, second / n
    (l1, u1), (l2, u2) = wilson_interval(first, n, LEVEL), wilson_interval(second, n, LEVEL)
    phi = _phi(both, only_first, only_second, neither)
    low = math.sqrt(max(0.0, (p2 - l2) ** 2 - 2 * phi * (p2 - l2) * (u1 - p1) + (u1 - p1) ** 2))
    high = math.sqrt(max(0.0, (p1 - l1) ** 2 - 2 * phi * (p1 - l1) * (u2 - p2) + (u2 - p2) ** 2))
    return Estimate(p2 - p1, p2 - p1 - low, p2 - p1 + high, n, "Newcombe's interval for paired proportions")


def throughput_ratio(
    samples: Sequence[Array], seconds: Sequence[Array], overheads: Sequence[float], *, seed: int = 0
) -> tuple[float, float]:
    """Interval of (samples/s of run 1) / (samples/s of run 0) by a moving-block bootstrap over steps.

    Args:
        samples, seconds: per run, one entry a step.
        overheads: per run, seconds of the run outside its steps (start-up); kept as they are.

    Blocks of ``n ** (1/3)`` steps keep neighbours together, since speed drifts; every run is drawn on its own. Fewer
    than `MIN_STEPS_FOR_INTERVAL` steps are too few for it.
    """
    generator = np.random.default_rng(seed)
    rates = []
    for emitted, spent, overhead in zip(samples, seconds, overheads, strict=True):
        n = len(emitted)
        block = max(1, round(n ** (1 / 3)))
        blocks = -(-n // block)
        sums = [np.convolve(array, np.ones(block), "valid") for array in (emitted, spent)]
        rounds = min(BOOTSTRAP_ROUNDS, max(200, 20_000_000 // blocks))
        drawn = generator.integers(0, n - block + 1, size=(rounds, blocks))
        scale = n / (blocks * block)
        rates.append(sums[0][drawn].sum(1) * scale / (sums[1][drawn].sum(1) * scale + overhead))
    rounds = min(map(len, rates))
    low, high = np.quantile(rates[1][:rounds] / rates[0][:rounds], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def mean_over_seeds(first: Sequence[float], second: Sequence[float], *, matched: bool) -> Estimate:
    """Second minus first, over training seeds: paired t where the seeds match, else Welch's.

    ``method`` says which. Needs two runs a side.
    """
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    difference = float(b.mean() - a.mean())
    if matched:
        paired = mean(b - a)
        return Estimate(difference, paired.low, paired.high, len(a), "paired t over seeds")
    va, vb = a.var(ddof=1) / len(a), b.var(ddof=1) / len(b)
    if va + vb == 0:
        return Estimate(difference, difference, difference, len(a) + len(b), "Welch's t over seeds")
    welch = float(va + vb) ** 2 / (va**2 / (len(a) - 1) + vb**2 / (len(b) - 1))
    half = _t(welch) * math.sqrt(va + vb)
    return Estimate(difference, difference - half, difference + half, len(a) + len(b), "Welch's t over seeds")


def _phi(a: int, b: int, c: int, d: int) -> float:
    """Newcombe's continuity-corrected correlation of the two outcomes."""
    margins = (a + b) * (c + d) * (a + c) * (b + d)
    if margins == 0:
        return 0.0
    excess = float(a * d - b * c)
    if excess > 0:
        excess = max(excess - (a + b + c + d) / 2, 0)
    return float(excess / math.sqrt(margins))


def _t(freedom: float) -> float:
    return float(special.stdtrit(freedom, (1 + LEVEL) / 2))
