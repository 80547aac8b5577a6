"""A collator pads and stacks; it computes nothing that a sample did not hold."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from odb_example.conformance.check import needs
from odb_example.conformance.expect import expect, expect_equal, identical
from odb_example.conformance.pipeline import SEQUENCE_FIELDS, Batch, Pipeline, Sample

_SIDE = "the row is padded on the {came}, {stated} is stated: pad there, or say so with Pipeline(padding_side={came!r})"
ODB_KEYS = ("total_batch_size", "odb_total_tokens")


@needs("sample", "collate")
def collator_only_pads(pipeline: Pipeline) -> None:
    """Un-padding a batch gives every sample back, bit for bit."""
    for rows in _groups(pipeline):
        samples = [pipeline.samples[row] for row in rows]
        batch = pipeline.batch(samples)
        for row, index in enumerate(pipeline.indices[row] for row in rows):
            for field, sample_value in samples[row].items():
                if field in SEQUENCE_FIELDS:
                    came = unpad(batch, row, field, len(samples[row]["input_ids"]), pipeline.padding_side)
                    if not identical(came, sample_value):
                        expect_equal(
                            came, sample_value, unit="token",
                            claim=f"collator changed `{field}` of sample {pipeline.named(index)}",
                            likely=_changed(pipeline, batch, row, field, samples),
                        )  # fmt: skip


@needs("sample", "collate")
def collator_keeps_images_with_their_rows(pipeline: Pipeline) -> None:
    """Pixels, grids and indices of a batch are those of its rows, one after the other."""
    for rows in _groups(pipeline):
        samples = [pipeline.samples[row] for row in rows]
        batch = pipeline.batch(samples)
        for field in ("pixel_values", "image_grid_thw", "sample_index"):
            parts = [sample[field] for sample in samples if field in sample]
            if not parts:
                continue
            expect(
                field in batch,
                claim=f"the collator drops `{field}`",
                came=sorted(batch),
                likely="only known names are carried over; `sample_index` says what was trained on",
            )
            expect_equal(
                batch[field],
                torch.cat(parts),
                claim=f"`{field}` of a batch of {len(rows)} rows is not that of its rows in order",
                likely="images are collected in another order than the rows, or one is left out: the model then reads "
                "another row's picture",
            )


@needs("sample", "collate")
def padding_is_what_it_should_be(pipeline: Pipeline) -> None:
    """Padding stands on the stated side with pad id, attention 0 and no label, up to the longest row and no further."""
    for rows in _groups(pipeline):
        samples = [pipeline.samples[row] for row in rows]
        batch = pipeline.batch(samples)
        longest = max(len(sample["input_ids"]) for sample in samples)
        width = batch["input_ids"].shape[1]
        expect_equal(
            width,
            longest,
            claim=f"a batch whose longest sample has {longest} tokens is {width} wide",
            likely="the width is rounded up to a multiple; the token budget is overrun by what was not counted"
            if width > longest
            else "rows are cut in the collator; truncation belongs to the dataset item, before lengths are used",
        )
        for row, sample in enumerate(samples):
            length = len(sample["input_ids"])
            padding = slice(length, None) if pipeline.padding_side == "right" else slice(0, width - length)
            shown = torch.zeros(width, dtype=torch.int64)
            shown[slice(0, length) if pipeline.padding_side == "right" else slice(width - length, None)] = 1
            mask = batch["attention_mask"][row]
            if length < width and not torch.equal(mask, shown):
                other = torch.equal(mask, shown.flip(0))
                side = {"right": "left", "left": "right"}[pipeline.padding_side]
                expect_equal(
                    mask,
                    shown,
                    unit="token",
                    claim=f"row {row} is padded on the {side} side"
                    if other
                    else f"attention of row {row} is not its {length} tokens",
                    likely=_SIDE.format(came=side, stated=pipeline.padding_side)
                    if other
                    else "what stands behind them is no padding: see collator_only_pads"
                    if bool((batch["input_ids"][row, padding] != pipeline.pad_id).all())
                    else "padding is attended: the model reads it as text",
                )
            for field, value, words in (
                ("input_ids", pipeline.pad_id, "the pad id"),
                ("labels", pipeline.ignore_index, "the ignored label"),
            ):
                if value is not None and length < width:
                    expect_equal(
                        batch[field][row, padding].to(torch.int64),
                        torch.full((width - length,), value, dtype=torch.int64),
                        unit="padding token",
                        claim=f"padding of `{field}` is not {words}",
                        likely="padding has labels: the model is trained to write it"
                        if field == "labels"
                        else "another token, the end token perhaps, is used to pad",
                    )


@needs("sample", "collate", "pad_id")
def padding_is_known_by_place(pipeline: Pipeline) -> None:
    """A real token that happens to be the pad id keeps its attention and its label."""
    assert pipeline.pad_id is not None
    longest = max(pipeline.samples, key=lambda sample: len(sample["input_ids"]))
    for index, sample in pipeline.numbered:
        if len(sample["input_ids"]) == len(longest["input_ids"]):
            continue
        place = int((sample["labels"] != pipeline.ignore_index).nonzero()[-1])
        ids, labels = sample["input_ids"].clone(), sample["labels"].clone()
        ids[place] = labels[place] = pipeline.pad_id
        odd = {**sample, "input_ids": ids, "labels": labels}
        plain, batch = pipeline.batch([sample, longest]), pipeline.batch([odd, longest])
        for field in ("input_ids", "labels", "attention_mask"):
            expect_equal(
                unpad(plain, 0, field, len(ids), pipeline.padding_side),
                sample[field],
                unit="token",
                claim=f"the `{field}` of sample {pipeline.named(index)} are changed, whatever its ids are",
                likely="the collator does more than pad: see collator_only_pads",
            )
            expect_equal(
                unpad(batch, 0, field, len(ids), pipeline.padding_side),
                odd[field],
                unit="token",
                claim=f"a real end token whose id is the pad id lost its `{field}` (sample {pipeline.named(index)})",
                likely="padding is recognised by its id; where pad and end token share one, answers never end",
            )
        return


@needs("sample", "collate")
def collator_leaves_samples_alone(pipeline: Pipeline) -> None:
    """Collating changes no sample: the same items may be cached and batched again."""
    samples = [{field: value.clone() for field, value in sample.items()} for sample in pipeline.samples]
    assert pipeline.collate is not None
    pipeline.collate(samples)
    for sample, (index, original) in zip(samples, pipeline.numbered, strict=True):
        expect_equal(
            sorted(sample),
            sorted(original),
            claim=f"collating took fields out of sample {pipeline.named(index)}",
            likely="fields are popped from the item itself; copy it first",
        )
        for field in original:
            expect_equal(
                sample[field],
                original[field],
                claim=f"collating wrote into `{field}` of sample {pipeline.named(index)}",
                likely="tensors are changed in place; a second epoch over cached items sees other samples",
            )


@needs("sample", "collate")
def batch_is_a_plain_dict(pipeline: Pipeline) -> None:
    """A batch is a dict and no subclass: ODB writes its step data only into those."""
    batch = pipeline.batch(pipeline.samples[:2])
    expect(
        type(batch) is dict,
        claim=f"the collator gives a {type(batch).__name__}",
        expected="dict",
        likely="BatchFeature or BatchEncoding is returned; ODB then scales no loss and ends no epoch in time",
    )


@needs("sample", "collate", "process_kinds")
def collator_carries_odb_keys(pipeline: Pipeline) -> None:
    """What ODB writes into the samples of a group arrives in the batch."""
    samples = [{**sample, **dict.fromkeys(ODB_KEYS, 17)} for sample in pipeline.samples[:3]]
    batch = pipeline.batch(samples)  # type: ignore[arg-type]
    for key in ODB_KEYS:
        expect(
            key in batch or "odb_step_info" in batch,
            claim=f"the collator drops ODB's `{key}`",
            came=sorted(batch),
            likely="only known names are carried over; without it a run takes two epochs for one",
        )
        if key in batch:
            value = batch[key]
            expect_equal(
                int(value if isinstance(value, int) else torch.as_tensor(value).flatten()[0]),
                17,
                claim=f"the collator changed ODB's `{key}`",
                likely="it is summed over the rows; every row of a group carries the same number",
            )


def unpad(batch: Batch, row: int, field: str, length: int, side: str) -> torch.Tensor:
    """A row of a padded batch without its padding: shape (length,)."""
    value: torch.Tensor = batch[field][row]
    return value[:length] if side == "right" else value[len(value) - length :]


def _groups(pipeline: Pipeline) -> list[list[int]]:
    count = len(pipeline.samples)
    order = np.random.default_rng(0).permutation(count).tolist()
    return [[0], order[:2], order[:5], order[5:12], list(range(count))] if count > 12 else [[0], order]


def _changed(pipeline: Pipeline, batch: Batch, row: int, field: str, samples: Sequence[Sample]) -> str:
    sample, side = samples[row], pipeline.padding_side
    length = len(sample["input_ids"])
    came = unpad(batch, row, field, length, side)
    other_side = "left" if side == "right" else "right"
    if torch.equal(unpad(batch, row, field, length, other_side), sample[field]):
        return _SIDE.format(came=other_side, stated=side)
    if len(came) != len(sample[field]):
        return "the row was cut; truncation belongs to the dataset item, before lengths are used"
    if torch.equal(came.roll(1), sample[field]) or torch.equal(came.roll(-1), sample[field]):
        return "the row is shifted by one"
    for other in samples:
        if torch.equal(unpad(batch, row, field, len(other["input_ids"]), side), other[field]):
            return "the row holds another sample of the batch: rows are sorted, what stands beside them is not"
    if field == "labels":
        dropped = (came != sample[field]).nonzero().flatten()
        if bool((came[dropped] == pipeline.ignore_index).all()):
            return (
                "labels are masked in the collator; a label mask belongs to the dataset item, where lengths are known"
            )
    return "a token, label or mask is computed in the collator; move it into the dataset item"
