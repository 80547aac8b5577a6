"""Intervals against published examples and against brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odb_example.report import statistics

pytestmark = pytest.mark.unit


def test_paired_proportions_repeat_newcombes_published_example() -> None:
    # Newcombe 1998, Statistics in Medicine 17:2635, table II: cells 36, 12, 2, 0 give 0.0569 to 0.3404 by method 10.
    estimate = statistics.paired_proportions(both=36, only_first=2, only_second=12, neither=0)
    assert estimate.value == pytest.approx(0.2)
    assert (round(estimate.low or 0, 4), round(estimate.high or 0, 4)) == (0.0569, 0.3404)


def test_paired_proportions_turn_around_with_the_runs() -> None:
    one = statistics.paired_proportions(40, 9, 3, 38)
    other = statistics.paired_proportions(40, 3, 9, 38)
    assert (one.value, one.low, one.high) == pytest.approx((-other.value, -(other.high or 0), -(other.low or 0)))


def test_paired_interval_of_equal_runs_holds_zero_and_no_rows_of_one_kind_break_it() -> None:
    for cells in ((10, 0, 0, 10), (20, 0, 0, 0), (0, 0, 0, 20), (0, 10, 10, 0)):
        estimate = statistics.paired_proportions(*cells)
        assert estimate.low is not None
        assert estimate.high is not None
        assert estimate.low <= 0 <= estimate.high


def test_mean_interval_is_students() -> None:
    # Four values, t(0.975, 3) = 3.182446.
    estimate = statistics.mean([1.0, 2.0, 3.0, 6.0])
    half = 3.182446 * np.std([1, 2, 3, 6], ddof=1) / 2
    assert estimate.value == 3.0
    assert estimate.low == pytest.approx(3.0 - half, rel=1e-6)
    assert estimate.high == pytest.approx(3.0 + half, rel=1e-6)


def test_one_value_has_no_interval() -> None:
    assert statistics.mean([1.5]).low is None
    assert statistics.ratio_of_sums([2.0], [4.0]).high is None


def test_ratio_interval_agrees_with_a_bootstrap_over_samples() -> None:
    generator = np.random.default_rng(5)
    tokens = generator.integers(3, 400, size=400).astype(float)
    nats = tokens * generator.lognormal(0, 0.4, size=400)
    estimate = statistics.ratio_of_sums(nats, tokens)
    drawn = generator.integers(0, 400, size=(4000, 400))
    low, high = np.quantile(nats[drawn].sum(1) / tokens[drawn].sum(1), [0.025, 0.975])
    assert estimate.value == pytest.approx(nats.sum() / tokens.sum())
    assert estimate.low == pytest.approx(low, abs=0.15 * (high - low))
    assert estimate.high == pytest.approx(high, abs=0.15 * (high - low))


def test_throughput_ratio_of_steady_runs_is_narrow_and_of_shaky_ones_wide() -> None:
    generator = np.random.default_rng(1)
    samples = [np.full(300, 2.0), np.full(100, 12.0)]
    widths = []
    for spread in (0.01, 0.5):
        seconds = [
            np.full(300, 0.2) * generator.lognormal(0, spread, 300),
            np.full(100, 0.6) * generator.lognormal(0, spread, 100),
        ]
        low, high = statistics.throughput_ratio(samples, seconds, [0.0, 0.0])
        assert low < (100 * 12 / seconds[1].sum()) / (600 / seconds[0].sum()) < high
        widths.append(high - low)
    assert widths[0] * 10 < widths[1]


def test_throughput_ratio_counts_the_seconds_outside_steps() -> None:
    samples, seconds = [np.full(50, 2.0)] * 2, [np.full(50, 1.0)] * 2
    low, high = statistics.throughput_ratio(samples, seconds, [50.0, 0.0])
    assert (low, high) == pytest.approx((2.0, 2.0))


@given(st.lists(st.floats(0.5, 2.0), min_size=3, max_size=6), st.floats(-0.5, 0.5))
def test_seeds_that_match_are_compared_in_pairs(values: list[float], shift: float) -> None:
    moved = [value + shift for value in values]
    paired = statistics.mean_over_seeds(values, moved, matched=True)
    assert paired.value == pytest.approx(shift, abs=1e-9)
    assert (paired.high or 0) - (paired.low or 0) == pytest.approx(0, abs=1e-6)


def test_seeds_that_do_not_match_are_compared_by_welch() -> None:
    # By hand: means 2 and 4, variances of means 1/3 and 1, freedom (4/3)^2 / ((1/9)/2 + 1/1) = 1.6842.
    estimate = statistics.mean_over_seeds([1.0, 2.0, 3.0], [3.0, 5.0], matched=False)
    assert estimate.value == 2.0
    assert estimate.method == "Welch's t over seeds"
    half = (estimate.high or 0) - estimate.value
    assert half / math.sqrt(4 / 3) == pytest.approx(5.19, abs=0.05)  # t(0.975, 1.684)
