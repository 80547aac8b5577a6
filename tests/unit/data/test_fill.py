"""The expectation of ODB's batches against ODB's own grouping."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from odb.grouping import grouping_data

from odb_example.data.fill import expected_fill, group_lengths

pytestmark = pytest.mark.unit

lengths = st.lists(st.integers(1, 300), min_size=1, max_size=60)


@given(lengths=lengths, budget=st.integers(1, 1000))
def test_groups_are_those_of_odb(lengths: list[int], budget: int) -> None:
    buffer = [[{"input_ids": torch.zeros(length)}] for length in lengths]
    theirs, overflow, _, _ = grouping_data(buffer, budget, None, idx_budget=len(lengths))
    assert not overflow
    expected = sorted(sorted(len(sample["input_ids"]) for sample in group) for group in theirs)
    assert sorted(sorted(group) for group in group_lengths(lengths, budget)) == expected


@given(lengths=lengths, budget=st.integers(1, 1000), buffer=st.integers(1, 80), warm_up=st.booleans())
def test_every_sample_travels_once_and_within_the_budget(
    lengths: list[int], budget: int, buffer: int, warm_up: bool
) -> None:
    fill = expected_fill(lengths, token_budget=budget, buffer_size=buffer, warm_up=warm_up)
    assert fill.rows * fill.batches == pytest.approx(len(lengths))
    assert 0 < fill.fill <= 1
    assert 0 <= fill.padding < 1


def test_a_known_buffer_is_filled_as_by_hand() -> None:
    # 40 alone; then 100 // 40 = 2 rows: 30, 30; then 100 // 30 = 3 rows: 10, 10.
    assert group_lengths([10, 30, 40, 10, 30], 100) == [[40], [30, 30], [10, 10]]
    fill = expected_fill([10, 30, 40, 10, 30], token_budget=100, buffer_size=5, warm_up=False)
    assert (fill.batches, fill.fill, fill.padding) == (3, pytest.approx(0.4), 0)


def test_warm_up_and_a_small_buffer_fill_less() -> None:
    stream = [5 + place * 37 % 90 for place in range(2000)]
    settings = {"token_budget": 400, "buffer_size": 200}
    assert expected_fill(stream, **settings).fill < expected_fill(stream, **settings, warm_up=False).fill
    small = expected_fill(stream, token_budget=400, buffer_size=8, warm_up=False)
    assert small.fill < expected_fill(stream, **settings, warm_up=False).fill
