"""Splits follow the public rule and never share a record."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odb_example.data.splits import SplitMode, make_split
from odb_example.errors import UserError

pytestmark = pytest.mark.unit


@given(st.integers(2, 400), st.floats(0.001, 500), st.integers(0, 2**32 - 1))
def test_the_held_out_share_is_a_partition_in_permutation_order(records: int, val_size: float, seed: int) -> None:
    split = make_split(records, mode="lf_val_size", val_size=val_size, split_seed=seed)
    order = np.random.default_rng(seed).permutation(records)
    assert np.concatenate([split.evaluation, split.train]).tolist() == order.tolist()
    assert 1 <= len(split.evaluation) <= records - 1
    asked = int(val_size) if val_size > 1 else int(records * val_size)
    assert len(split.evaluation) == min(max(asked, 1), records - 1)


def test_the_public_run_is_split_as_its_record_says() -> None:
    split = make_split(206_526, mode="lf_val_size", val_size=0.05, split_seed=42)
    assert (len(split.train), len(split.evaluation)) == (196_200, 10_326)
    assert split.train.dtype == split.evaluation.dtype == np.int64


@pytest.mark.parametrize(("val_size", "held_out"), [(1.5, 1), (3, 3), (0.9999, 9), (1.0, 9), (100, 9)])
def test_above_one_val_size_is_a_count(val_size: float, held_out: int) -> None:
    assert len(make_split(10, mode="lf_val_size", val_size=val_size, split_seed=0).evaluation) == held_out


def test_prefix_takes_the_first_records_and_holds_none_out() -> None:
    split = make_split(10, mode="prefix", val_size=0.05, split_seed=42, train_size=4)
    assert split.train.tolist() == [0, 1, 2, 3]
    assert split.describe()["eval_indices_preview"] is None


def test_tail_holds_out_everything_from_its_start() -> None:
    split = make_split(10, mode="tail", val_size=0.05, split_seed=42, val_start=7)
    assert split.train.tolist() == list(range(7))
    assert split.evaluation.tolist() == [7, 8, 9]


def test_a_training_cap_keeps_the_first_of_the_permutation() -> None:
    whole = make_split(50, mode="lf_val_size", val_size=0.2, split_seed=1)
    capped = make_split(50, mode="lf_val_size", val_size=0.2, split_seed=1, train_size=7)
    assert capped.train.tolist() == whole.train[:7].tolist()
    assert capped.evaluation.tolist() == whole.evaluation.tolist()


def test_the_description_carries_the_summary_fields_and_ten_indices() -> None:
    split = make_split(40, mode="lf_val_size", val_size=0.5, split_seed=3, train_size=20)
    described = split.describe()
    assert described == {
        "split_mode": "lf_val_size",
        "train_size_arg": 20,
        "val_size": 0.5,
        "split_seed": 3,
        "val_start": None,
        "train_indices_preview": split.train[:10].tolist(),
        "eval_indices_preview": split.evaluation[:10].tolist(),
    }
    assert all(type(index) is int for index in described["train_indices_preview"])


@pytest.mark.parametrize(
    ("records", "mode", "changes", "words"),
    [
        (0, "prefix", {}, "without records"),
        (1, "lf_val_size", {}, "one record"),
        (10, "lf_val_size", {"val_size": 0.0}, "holds nothing out"),
        (10, "lf_val_size", {"val_size": float("nan")}, "holds nothing out"),
        (10, "prefix", {"train_size": 11}, "more than the 10"),
        (10, "prefix", {"train_size": -1}, "negative"),
        (10, "lf_val_size", {"train_size": 10}, "more than the 9"),
        (10, "tail", {}, "starts at None"),
        (10, "tail", {"val_start": 10}, "starts at 10"),
        (10, "tail", {"val_start": 0}, "starts at 0"),
        (10, "random", {}, "is unknown"),
    ],
)
def test_sizes_that_cannot_be_are_refused(records: int, mode: SplitMode, changes: dict[str, float], words: str) -> None:
    arguments = {"val_size": 0.05, "split_seed": 42} | changes
    with pytest.raises(UserError, match=words):
        make_split(records, mode=mode, **arguments)  # type: ignore[arg-type]
