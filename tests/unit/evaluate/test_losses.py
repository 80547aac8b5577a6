"""Validation figures from per-sample rows."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odb_example.evaluate.losses import bucket, bucket_name, summarize_losses
from odb_example.schema import LABEL_TOKENS_PER_SAMPLE

pytestmark = pytest.mark.unit


def row(nll: float, tokens: int, *, source: str = "a", length: int = 10) -> dict[str, Any]:
    return {"id": f"{nll}/{tokens}", "source": source, "index": 0, "length": length, "nll_sum": nll,
            "label_tokens": tokens}  # fmt: skip


def test_the_sample_mean_weighs_samples_and_the_token_mean_weighs_tokens() -> None:
    figures = summarize_losses([row(2.0, 1), row(10.0, 10), row(45.0, 30)])
    assert figures["eval_loss"] == pytest.approx((2 + 1 + 1.5) / 3)
    assert figures["mean_batch_loss"] == figures["eval_loss"]
    assert figures["token_weighted_eval_loss"] == pytest.approx(57 / 41)
    assert (figures["eval_samples"], figures["label_tokens"]) == (3, 41)


def test_label_tokens_a_sample_are_described_as_the_reference_does() -> None:
    counts = [3, 6, 6, 196, 200, 644, 2507]
    spread = summarize_losses([row(1.0, count) for count in counts])["label_tokens_per_sample"]
    assert spread == {"min": 3, "p10": 6, "p50": 196, "p90": 644, "max": 2507, "mean": sum(counts) / 7}
    assert spread.keys() == LABEL_TOKENS_PER_SAMPLE.keys()


@given(
    st.lists(st.tuples(st.floats(0, 1e4, allow_nan=False), st.integers(1, 3000)), min_size=1, max_size=40),
    st.randoms(use_true_random=False),
)
def test_no_order_of_rows_changes_a_digit(pairs: list[tuple[float, int]], shuffle: random.Random) -> None:
    rows = [row(nll, tokens, source="ab"[tokens % 2], length=tokens) for nll, tokens in pairs]
    mixed = list(rows)
    shuffle.shuffle(mixed)
    assert summarize_losses(mixed) == summarize_losses(rows)


def test_sources_and_length_buckets_partition_the_samples() -> None:
    rows = [row(1.0, 1, source="b", length=64), row(2.0, 1, source="a", length=65), row(3.0, 1, length=20000)]
    figures = summarize_losses(rows)
    assert [(name, part["samples"]) for name, part in figures["by_source"].items()] == [("a", 2), ("b", 1)]
    assert list(figures["by_length"]) == ["<=64", "<=128", ">16384"]


def test_a_bucket_ends_at_its_name() -> None:
    assert [bucket_name(bucket(length)) for length in (1, 64, 65, 16384, 16385)] == [
        "<=64", "<=64", "<=128", "<=16384", ">16384",
    ]  # fmt: skip
