"""Collators that compute, pad wrongly, or lose what they should carry."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from transformers import BatchFeature

from odb_example.conformance.faults.fault import fault
from odb_example.conformance.faults.samples import changed, label_visual_tokens
from odb_example.conformance.pipeline import Batch, Pipeline, Sample
from odb_example.data.collate import Collator

IGNORED = -100


def then(collate: Any, change: Callable[[dict[str, Any]], Batch], samples: Sequence[Sample]) -> Batch:
    """``change`` applied to the batch that ``collate`` makes."""
    return change(dict(collate(samples)))


def _changed(pipeline: Pipeline, change: Callable[[dict[str, Any]], Batch]) -> Pipeline:
    return replace(pipeline, collate=partial(then, pipeline.part("collate"), change))


@fault(caught_by="collator_only_pads", mentions="masked in the collator")
def labels_are_masked_in_the_collator(pipeline: Pipeline) -> Pipeline:
    """Samples are labelled on visual tokens, the collator masks them: the public example's own way."""
    visual = pipeline.visual_token_ids[0]
    labelled = changed(pipeline, partial(label_visual_tokens, visual))
    return replace(labelled, collate=partial(then, pipeline.part("collate"), partial(_mask_visual, visual)))


def _mask_visual(visual: int, batch: dict[str, Any]) -> Batch:
    return {**batch, "labels": batch["labels"].masked_fill(batch["input_ids"] == visual, IGNORED)}


@fault(caught_by="padding_is_what_it_should_be", mentions="padded on the left side")
def padding_on_the_wrong_side(pipeline: Pipeline) -> Pipeline:
    """Training batches are padded on the left."""
    return replace(pipeline, collate=Collator(pipeline.pad_id or 0, "left"))


@fault(caught_by="padding_is_known_by_place", mentions="recognised by its id")
def padding_is_known_by_its_id(pipeline: Pipeline) -> Pipeline:
    """Labels are masked where the id is the pad id: with pad = eos, answers lose their end."""
    return _changed(pipeline, partial(_mask_pad_id, pipeline.part("pad_id")))


def _mask_pad_id(pad: int, batch: dict[str, Any]) -> Batch:
    return {**batch, "labels": batch["labels"].masked_fill(batch["input_ids"] == pad, IGNORED)}


@fault(caught_by="padding_is_known_by_place", mentions="`attention_mask`")
def attention_is_made_from_ids(pipeline: Pipeline) -> Pipeline:
    """The attention mask is `input_ids != pad_id`: a real end token that doubles as padding is not attended."""
    return _changed(pipeline, partial(_attend_ids, pipeline.part("pad_id")))


def _attend_ids(pad: int, batch: dict[str, Any]) -> Batch:
    return {**batch, "attention_mask": (batch["input_ids"] != pad).long()}


@fault(caught_by="padding_is_what_it_should_be", mentions="padding is attended")
def padding_is_attended(pipeline: Pipeline) -> Pipeline:
    """The attention mask is all ones."""
    return _changed(pipeline, _attend_all)


def _attend_all(batch: dict[str, Any]) -> Batch:
    return {**batch, "attention_mask": torch.ones_like(batch["attention_mask"])}


@fault(caught_by="padding_is_what_it_should_be", mentions="padding has labels")
def padding_has_labels(pipeline: Pipeline) -> Pipeline:
    """Labels are padded with the pad id, not with the ignored label."""
    return replace(pipeline, collate=Collator(pipeline.pad_id or 0, ignore_index=pipeline.pad_id or 0))


@fault(caught_by="padding_is_what_it_should_be", mentions="another token")
def padded_with_the_end_token(pipeline: Pipeline) -> Pipeline:
    """Ids are padded with the end token."""
    return replace(pipeline, collate=Collator(pipeline.tokenizer.eos_token_id))


@fault(caught_by="padding_is_what_it_should_be", mentions="rounded up to a multiple")
def width_is_rounded_up(pipeline: Pipeline) -> Pipeline:
    """Batches are padded to a multiple of 64, which no budget has counted."""
    return _changed(pipeline, partial(_widen, pipeline.part("pad_id")))


def _widen(pad: int, batch: dict[str, Any]) -> Batch:
    more = -batch["input_ids"].shape[1] % 64
    fill = {"input_ids": pad, "labels": IGNORED}
    return {
        name: torch.nn.functional.pad(value, (0, more), value=fill.get(name, 0))
        if name in ("input_ids", "labels", "attention_mask", "mm_token_type_ids")
        else value
        for name, value in batch.items()
    }


@fault(caught_by="batch_is_a_plain_dict", mentions="BatchFeature")
def batch_is_a_batch_feature(pipeline: Pipeline) -> Pipeline:
    """The collator returns the processor's BatchFeature: ODB then neither scales nor counts."""
    return _changed(pipeline, BatchFeature)


@fault(caught_by="collator_carries_odb_keys", mentions="drops ODB's")
def odb_keys_are_dropped(pipeline: Pipeline) -> Pipeline:
    """What ODB wrote into the samples does not arrive in the batch."""
    return _changed(pipeline, partial(_without, ("total_batch_size", "odb_total_tokens")))


@fault(caught_by="collator_carries_odb_keys", mentions="changed ODB's")
def odb_totals_are_summed(pipeline: Pipeline) -> Pipeline:
    """ODB's total is added up over the rows, each of which carries the whole of it."""
    return _changed(pipeline, _sum_totals)


def _sum_totals(batch: dict[str, Any]) -> Batch:
    rows = len(batch["input_ids"])
    return {name: value * rows if name == "total_batch_size" else value for name, value in batch.items()}


@fault(caught_by="collator_keeps_images_with_their_rows", mentions="drops `sample_index`")
def identities_are_dropped(pipeline: Pipeline) -> Pipeline:
    """`sample_index` does not arrive: nobody knows what was trained on."""
    return _changed(pipeline, partial(_without, ("sample_index",)))


def _without(names: tuple[str, ...], batch: dict[str, Any]) -> Batch:
    return {name: value for name, value in batch.items() if name not in names}


@fault(caught_by="collator_keeps_images_with_their_rows", mentions="another order than the rows")
def pictures_go_to_other_rows(pipeline: Pipeline) -> Pipeline:
    """Pictures are collected in order of size, rows are not."""
    return _changed(pipeline, _sort_pictures)


def _sort_pictures(batch: dict[str, Any]) -> Batch:
    if "image_grid_thw" not in batch:
        return batch
    grids = batch["image_grid_thw"]
    order = grids.prod(dim=1).argsort(stable=True).tolist()
    parts = batch["pixel_values"].split(grids.prod(dim=1).tolist())
    return {**batch, "image_grid_thw": grids[order], "pixel_values": torch.cat([parts[at] for at in order])}


@fault(caught_by="collator_only_pads", mentions="truncation belongs to the dataset item")
def rows_are_cut_in_the_collator(pipeline: Pipeline) -> Pipeline:
    """Batches are cut at 128 tokens, after lengths were used."""
    return _changed(pipeline, _cut)


def _cut(batch: dict[str, Any]) -> Batch:
    cut = ("input_ids", "labels", "attention_mask", "mm_token_type_ids")
    return {name: value[:, :128] if name in cut else value for name, value in batch.items()}


@fault(caught_by="collator_only_pads", mentions="`labels` of sample")
def last_label_of_the_longest_row_is_lost(pipeline: Pipeline) -> Pipeline:
    """Labels are padded two columns short: the longest row of a batch loses its end token's."""
    return _changed(pipeline, _short_labels)


def _short_labels(batch: dict[str, Any]) -> Batch:
    labels = batch["labels"].clone()
    labels[:, -2:] = IGNORED
    return {**batch, "labels": labels}


@fault(caught_by="collator_only_pads", mentions="`input_ids` of sample")
def rows_are_sorted_by_length(pipeline: Pipeline) -> Pipeline:
    """Rows are sorted by length within the batch, what stands beside them is not."""
    return replace(pipeline, collate=partial(_sorted_rows, pipeline.part("collate")))


def _sorted_rows(collate: Any, samples: Sequence[Sample]) -> Batch:
    order = sorted(range(len(samples)), key=lambda at: -len(samples[at]["input_ids"]))
    batch = dict(collate(samples))
    fields = [name for name in ("input_ids", "labels", "attention_mask", "mm_token_type_ids") if name in batch]
    return batch | {name: batch[name][order] for name in fields}


@fault(caught_by="collator_leaves_samples_alone", mentions="in place")
def samples_are_written_into(pipeline: Pipeline) -> Pipeline:
    """The collator masks a label in the sample's own tensor: cached items differ from the second epoch on."""
    return replace(pipeline, collate=partial(_mask_in_place, pipeline.part("collate")))


def _mask_in_place(collate: Any, samples: Sequence[Sample]) -> Batch:
    batch: Batch = collate(samples)
    for sample in samples:
        sample["labels"][-2:] = IGNORED
    return batch


@fault(caught_by="parts_survive_pickling", mentions="`collate` cannot be pickled")
def collator_is_a_local_function(pipeline: Pipeline) -> Pipeline:
    """The collator is a closure: fine under fork, dead under spawn."""
    collate = pipeline.collate
    assert collate is not None
    return replace(pipeline, collate=lambda samples: collate(samples))
