"""What a step holds, counted before it is trained on."""

from __future__ import annotations

import pytest
import torch

from odb_example.train.counts import StepCounts, count_batch, merged

pytestmark = pytest.mark.unit


def _batch(lengths: list[int], indices: list[int], image: bool = True) -> dict[str, torch.Tensor]:
    width = max(lengths)
    mask = torch.tensor([[1] * length + [0] * (width - length) for length in lengths])
    labels = torch.where(mask.bool(), torch.ones_like(mask), -100)
    labels[torch.tensor(indices) < 0] = -100
    batch = {"attention_mask": mask, "labels": labels, "sample_index": torch.tensor(indices)}
    return {**batch, "pixel_values": torch.zeros(4, 4)} if image else batch


def test_a_batch_is_counted_in_samples_tokens_and_padding() -> None:
    assert count_batch(_batch([5, 3], [10, 11])) == StepCounts(
        samples=2, labelled_samples=2, label_tokens=6, input_tokens=8, padded_tokens=10, groups=1,
        largest_batch_tokens=10,
    )  # fmt: skip


def test_a_weightless_row_is_no_sample_and_its_tokens_are_padding() -> None:
    counts = count_batch(_batch([5, 3], [10, -1], image=False))
    assert (counts.samples, counts.repeated, counts.input_tokens, counts.padded_tokens) == (1, 1, 5, 10)
    assert counts.text_only == 1


def test_a_weightless_batch_is_idle_and_nothing_else() -> None:
    assert count_batch(_batch([5], [-1])) == StepCounts(idle=1)


def test_counts_add_up_and_the_largest_batch_stays_the_largest() -> None:
    counts = merged(map(count_batch, [_batch([5, 3], [1, 2]), _batch([4], [3]), _batch([9], [-1])]))
    assert (counts.samples, counts.groups, counts.idle) == (3, 2, 1)
    assert (counts.padded_tokens, counts.largest_batch_tokens) == (14, 10)
