"""Statistics against values computed elsewhere or by counting."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odb_example.evaluate.statistics import mcnemar, quantile, wilson_interval

pytestmark = pytest.mark.unit


def test_the_wilson_interval_of_the_published_score() -> None:
    low, high = wilson_interval(369, 850)
    assert (round(100 * low, 2), round(100 * high, 2)) == (40.12, 46.77)


@given(total=st.integers(1, 2000), share=st.floats(0, 1))
def test_wilson_ends_solve_the_score_equation(total: int, share: float) -> None:
    correct = round(total * share)
    for end in wilson_interval(correct, total):
        assert 0 <= end <= 1
        if 0 < end < 1:
            z = (correct / total - end) / math.sqrt(end * (1 - end) / total)
            assert abs(z) == pytest.approx(1.959963984540054, rel=1e-6)


@pytest.mark.parametrize(("correct", "total"), [(0, 0), (3, 2), (-1, 4)])
def test_impossible_shares_have_no_interval(correct: int, total: int) -> None:
    with pytest.raises(ValueError, match="no share"):
        wilson_interval(correct, total)


@given(b=st.integers(0, 40), c=st.integers(0, 40))
def test_mcnemar_is_twice_the_smaller_binomial_tail(b: int, c: int) -> None:
    n = b + c
    tail = sum(math.comb(n, k) for k in range(min(b, c) + 1)) / 2**n
    assert mcnemar(b, c) == pytest.approx(min(1.0, 2 * tail), rel=1e-9)


def test_runs_that_agree_everywhere_have_p_one() -> None:
    assert mcnemar(0, 0) == 1.0


def test_quantiles_are_values_at_the_rounded_place() -> None:
    values = [9, 1, 5, 3, 7]
    assert [quantile(values, share) for share in (0, 0.1, 0.5, 0.9, 1)] == [1, 1, 5, 9, 9]
    assert quantile([1, 2], 0.5) == 1  # round(0.5) is 0: halves go to the even place


@given(st.integers(1, 900).flatmap(lambda total: st.tuples(st.integers(0, total), st.just(total))))
def test_both_are_those_of_scipy(counts: tuple[int, int]) -> None:
    from scipy.stats import binomtest  # a second to import

    first, total = counts
    test = binomtest(first, total, 0.5)
    assert mcnemar(first, total - first) == pytest.approx(test.pvalue, rel=1e-9)
    assert wilson_interval(first, total) == pytest.approx(tuple(test.proportion_ci(0.95, method="wilson")), abs=1e-12)
