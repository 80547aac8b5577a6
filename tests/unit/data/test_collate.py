"""The collator pads, stacks and concatenates; nothing else."""

from __future__ import annotations

import pickle
from typing import Any, Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from odb.constants import TOTAL_BATCH_SIZE_KEY, TOTAL_TOKENS_KEY

from odb_example.data.collate import Collator, split_batch, unpad

pytestmark = pytest.mark.unit

PAD = 9
Sample = dict[str, Any]


@st.composite
def samples(draw: st.DrawFn) -> Sample:
    """Any finished sample: pad ids and ignored labels may well occur inside it."""
    length = draw(st.integers(1, 12))
    ids = torch.tensor(draw(st.lists(st.integers(0, 12), min_size=length, max_size=length)))
    grids = draw(st.lists(st.tuples(st.just(1), st.integers(1, 3), st.integers(1, 3)), max_size=3))
    sample = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "labels": torch.where(ids % 2 == 0, ids, -100),
        "mm_token_type_ids": ids % 3,
        "odb_n_patches": torch.tensor(sum(h * w for _, h, w in grids)),
        "sample_index": torch.tensor([draw(st.integers(0, 10**6))]),
    }
    if grids:
        patches = int(sample["odb_n_patches"])
        sample["image_grid_thw"] = torch.tensor(grids)
        sample["pixel_values"] = torch.arange(patches * 2, dtype=torch.float32).reshape(patches, 2) + len(ids)
    return sample


sides = st.sampled_from(["right", "left"])


@given(rows=st.lists(samples(), min_size=1, max_size=6), side=sides)
def test_unpadding_gives_every_sample_back_bit_for_bit(rows: list[Sample], side: Literal["right", "left"]) -> None:
    batch = Collator(PAD, side)(rows)
    for number, row in enumerate(rows):
        for name in batch:
            given_back = unpad(batch, number, name)
            if name not in row:
                assert given_back is None
            else:
                assert torch.equal(given_back, row[name])
                assert given_back.dtype == row[name].dtype


@given(rows=st.lists(samples(), min_size=1, max_size=6), side=sides)
def test_padding_is_told_by_position_and_lies_on_the_asked_side(
    rows: list[Sample], side: Literal["right", "left"]
) -> None:
    batch = Collator(PAD, side)(rows)
    width = max(len(row["input_ids"]) for row in rows)
    for number, row in enumerate(rows):
        length = len(row["input_ids"])
        padding = slice(length, None) if side == "right" else slice(0, width - length)
        for name, fill in (("input_ids", PAD), ("attention_mask", 0), ("labels", -100), ("mm_token_type_ids", 0)):
            assert batch[name].shape == (len(rows), width)
            assert (batch[name][number][padding] == fill).all()


@given(rows=st.lists(samples(), min_size=1, max_size=4))
def test_a_batch_is_a_plain_dict_whose_rows_come_first(rows: list[Sample]) -> None:
    batch = Collator(PAD)(rows)
    assert type(batch) is dict  # ODB loses its place on subclasses
    assert next(iter(batch)) == "input_ids"  # ODB counts rows by the first tensor
    assert batch["sample_index"].tolist() == [int(row["sample_index"]) for row in rows]


def one(**further: Any) -> Sample:
    ids = torch.tensor([1, 2])
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids, **further}


def test_step_metadata_of_odb_is_carried_over() -> None:
    step = {TOTAL_BATCH_SIZE_KEY: 7, TOTAL_TOKENS_KEY: 90}
    batch = Collator(PAD)([one(**step), one(**step)])
    assert {name: batch[name] for name in step} == step


def test_what_the_model_takes_is_parted_from_what_travels_beside() -> None:
    sample = one(
        odb_n_patches=torch.tensor(1),
        sample_index=torch.tensor([3]),
        pixel_values=torch.ones(1, 4),
        image_grid_thw=torch.tensor([[1, 1, 1]]),
    )
    batch = Collator(PAD)([{**sample, TOTAL_BATCH_SIZE_KEY: 1}])
    inputs, beside = split_batch(batch)
    assert set(inputs) == {"input_ids", "attention_mask", "labels", "pixel_values", "image_grid_thw"}
    assert set(beside) == {"odb_n_patches", "sample_index", TOTAL_BATCH_SIZE_KEY}
    assert {**inputs, **beside}.keys() == batch.keys()


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], "no samples"),
        ([one(mm_token_type_ids=torch.zeros(5))], "mm_token_type_ids"),
        ([one(mm_token_type_ids=torch.zeros(2)), one()], "mm_token_type_ids"),
        ([one(note="words")], "note"),
    ],
)
def test_what_cannot_be_batched_is_named(rows: list[Sample], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Collator(PAD)(rows)


def test_the_collator_can_be_pickled() -> None:
    collator = Collator(PAD, "left")
    assert pickle.loads(pickle.dumps(collator)) == collator
