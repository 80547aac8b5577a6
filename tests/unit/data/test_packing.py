from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odb_example.data.packing import Order, pack, padded_tokens

pytestmark = pytest.mark.unit

lengths_lists = st.lists(st.integers(1, 400), max_size=60)
orders = st.sampled_from(["shortest_first", "longest_first"])


@given(lengths_lists, st.integers(1, 800), orders)
def test_every_position_stands_in_one_group(lengths: list[int], budget: int, order: Order) -> None:
    groups = pack(lengths, budget, order=order)
    assert sorted(position for group in groups for position in group) == list(range(len(lengths)))
    assert all(groups)


@given(lengths_lists, st.integers(1, 800), orders)
def test_a_group_of_several_fits_the_budget(lengths: list[int], budget: int, order: Order) -> None:
    for group in pack(lengths, budget, order=order):
        assert len(group) == 1 or padded_tokens(lengths, group) <= budget


@given(lengths_lists, st.integers(1, 800), orders)
def test_no_two_neighbouring_groups_would_fit_into_one(lengths: list[int], budget: int, order: Order) -> None:
    groups = pack(lengths, budget, order=order)
    for left, right in pairwise(groups):
        assert padded_tokens(lengths, left + right[:1]) > budget


def test_longest_first_meets_the_largest_sample_first() -> None:
    assert pack([3, 9, 1, 9], 18, order="longest_first") == [[3, 1], [0, 2]]
    assert pack([3, 9, 1, 9], 18, order="shortest_first") == [[2, 0], [1, 3]]
