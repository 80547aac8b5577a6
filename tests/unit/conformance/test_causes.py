"""Causes are not guessed: of one fault, no check that sees it blames what is right."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from odb_example.conformance.examples import text_only
from odb_example.conformance.pipeline import Batch, Pipeline, Sample
from odb_example.conformance.run import run_checks

pytestmark = pytest.mark.unit

RIGHT = text_only.build()
FALSE_CAUSES = {
    "collator": ("recognised by its id", "padding is attended", "sorted or filtered", "weights of batches", "multiple"),
    "loss": ("is differentiated", "batch means", "weights of batches", "the collator"),
    "sample": ("tokenised apart", "question is labelled", "searching for their text", "template is written by hand"),
    "loader": ("to fill the last step", "drop_last", "groups are counted per rank"),
}
"""By the part that is wrong: words that would send a person elsewhere."""


def _collate(change: Callable[[Sequence[Sample]], Batch]) -> Pipeline:
    return replace(RIGHT, collate=change)


def _loss(share: Callable[[torch.Tensor, Batch, Any], torch.Tensor]) -> Pipeline:
    """``share`` of the losses of the batch's labels, (labels,)."""

    def loss(model: Any, batch: Batch, totals: Any) -> torch.Tensor:
        logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, :-1]
        targets = batch["labels"][:, 1:].flatten()
        losses = F.cross_entropy(logits.flatten(0, 1), targets, reduction="none")[targets != -100]
        return share(losses, batch, totals)

    return replace(RIGHT, loss=loss)


def _sample(change: Callable[[int], Sample]) -> Pipeline:
    return replace(RIGHT, sample=change)


def _pad_left(samples: Sequence[Sample]) -> Batch:
    width = max(len(sample["input_ids"]) for sample in samples)
    fills = {"input_ids": RIGHT.pad_id or 0, "attention_mask": 0, "labels": -100}
    rows = {
        name: torch.stack([F.pad(one[name], (width - len(one[name]), 0), value=fill) for one in samples])
        for name, fill in fills.items()
    }
    return rows | {"sample_index": torch.cat([one["sample_index"] for one in samples])}


def _cut(samples: Sequence[Sample]) -> Batch:
    return {name: value[:, :40] if value.dim() == 2 else value for name, value in RIGHT.batch(samples).items()}


def _sort(samples: Sequence[Sample]) -> Batch:
    longest_first = sorted(samples, key=lambda sample: -len(sample["input_ids"]))
    return RIGHT.batch(longest_first) | {"sample_index": RIGHT.batch(samples)["sample_index"]}


def _gap(index: int) -> Sample:
    sample = text_only.sample(index)
    sample["labels"][-3] = -100
    return sample


def _early(index: int) -> Sample:
    sample = text_only.sample(index)
    return sample | {"labels": torch.where(sample["labels"].roll(-1) != -100, sample["input_ids"].roll(-1), -100)}


def _neighbour(index: int) -> Sample:
    return text_only.sample((index - 1) % len(text_only.RECORDS)) | {"sample_index": torch.tensor([index])}


def _order(seed_of_rank: Callable[[int], int], swap: int | None = None) -> Callable[..., Any]:
    def loader(kind: str, *, rank: int, world_size: int) -> list[Batch]:
        generator = torch.Generator().manual_seed(seed_of_rank(rank))
        order = torch.randperm(len(text_only.RECORDS), generator=generator).tolist()
        order = [order[0] if index == swap else index for index in order][rank::world_size]
        return [
            RIGHT.batch([text_only.sample(index) for index in order[start : start + 4]])
            for start in range(0, len(order), 4)
        ]

    return loader


WRONG: dict[str, tuple[str, Pipeline, str]] = {
    "left padding": ("collator", _collate(_pad_left), "say so with Pipeline(padding_side='left')"),
    "rows cut": ("collator", _collate(_cut), "the row was cut"),
    "rows sorted": ("collator", _collate(_sort), "rows are sorted, what stands beside them is not"),
    "one label more counted": ("loss", _loss(lambda own, _, step: own.sum() / (step.label_tokens + 1)), "tokens +1"),
    "a permille": ("loss", _loss(lambda own, _, step: own.sum() * 1.001 / step.label_tokens), "1.0010 times"),
    "by rows": ("loss", _loss(lambda own, batch, _: own.sum() / len(batch["labels"])), "by the number of rows"),
    "a penalty": ("loss", _loss(lambda own, _, step: (own**2 + own).sum() / step.label_tokens), "a penalty"),
    "no number": ("loss", _loss(lambda own, *_: own.sum() * float("nan")), "has the loss nan"),
    "nothing": ("loss", _loss(lambda own, *_: own.sum() * 0), "has the loss 0"),
    "labels early": ("sample", _sample(_early), "one place too early"),
    "a gap": ("sample", _sample(_gap), "have a gap"),
    "the neighbour": ("sample", _sample(_neighbour), "the index is off by -1"),
    "apart": ("loader", replace(RIGHT, loader=_order(lambda rank: rank)), "seed the shuffle alike on every rank"),
    "for another": ("loader", replace(RIGHT, loader=_order(lambda _: 1, swap=7)), "in the place of another"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_fault_is_named_and_nothing_else_is_blamed(name: str) -> None:
    part, wrong, named = WRONG[name]
    words = [result.words for result in run_checks(wrong) if result.bad]
    assert any(named in message for message in words), words
    blamed = [(false, message) for message in words for false in FALSE_CAUSES[part] if false in message]
    assert not blamed


def test_a_loader_that_never_ends_is_named() -> None:
    def endless(kind: str, *, rank: int, world_size: int) -> Any:
        return itertools.cycle([RIGHT.batch(RIGHT.samples[:1])])

    failed = {result.check.name: result.words for result in run_checks(replace(RIGHT, loader=endless)) if result.bad}
    assert (
        "the standard loader does not end: more than 144 batches in an epoch of 22" in failed["every_sample_comes_once"]
    )
