"""Scores and validation loss are those of one item at a time, whatever they were batched with."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from odb_example.conformance import reference
from odb_example.conformance.check import needs
from odb_example.conformance.expect import ConformanceError, expect, expect_close, expect_equal, nearest_cause
from odb_example.conformance.pipeline import Choice, Pipeline, Scored, ValidationLoss
from odb_example.conformance.probes import picture

TOLERANCE = 2e-4
"""Nats. Padding changes the order of float32 sums, which is worth some 1e-6 on a tiny model."""


def items(pipeline: Pipeline) -> list[Choice]:
    """Items of unlike lengths and numbers of options, some with pictures where the pipeline takes them."""
    from PIL import Image

    drawn = [Image.fromarray(picture(64 + 32 * number, 96, seed=number)) for number in range(3)]
    shown = drawn if pipeline.takes_images else []
    return [
        Choice(
            question="Which digit is this?", options=("0 or 1", "2, 3 or 4", "5 to 7", "8 or 9"), images=(*shown[:1],)
        ),
        Choice(question="Is it?", options=("Yes", "No")),
        Choice(question="Which of these is written on the wall? " * 6, options=("a", "b", "c"), images=(*shown,)),
        Choice(question="Which?", options=("one", "two", "three", "four", "five")),
        Choice(question="Which digit is shown here? " * 3, options=("7", "1"), images=(*shown[1:2],)),
    ]


@needs("score", "model", "processor")
def scores_are_those_of_the_protocol(pipeline: Pipeline) -> None:
    """Each letter's score is its first token's log-probability right after the rendered prompt, one item at a time."""
    for number, item in enumerate(items(pipeline)):
        came = _scored(pipeline, [item])[0].scores
        truth = reference.next_token_scores(pipeline, reference.choice_inputs(pipeline, item))
        for letter, one in reference.letter_ids(pipeline).items():
            if letter in came:
                expect_close(
                    came[letter],
                    float(truth[one]),
                    absolute=TOLERANCE,
                    claim=f"the score of {letter} in item {number} is not the protocol's",
                    likely=_score_cause(pipeline, item, letter, came[letter]),
                )
        missing = sorted(set(reference.LETTERS[: len(item.options)]) - set(came))
        expect(
            not missing,
            claim=f"item {number} has {len(item.options)} options and no score for {', '.join(missing)}",
            likely="a fixed set of letters is scored",
        )


@needs("score")
def scores_do_not_depend_on_company(pipeline: Pipeline) -> None:
    """An item's scores are the same alone, in a batch, and in a batch in another order."""
    asked = items(pipeline)
    alone = [_scored(pipeline, [item])[0] for item in asked]
    together = _scored(pipeline, asked)
    reversed_ = list(reversed(_scored(pipeline, list(reversed(asked)))))
    for words, scored in (("in a batch", together), ("in a batch in reverse order", reversed_)):
        for number, (came, expected) in enumerate(zip(scored, alone, strict=True)):
            for letter, value in expected.scores.items():
                expect_close(
                    came.scores[letter],
                    value,
                    absolute=TOLERANCE,
                    claim=f"item {number} scores {letter} differently {words} than alone",
                    likely=_company_cause(scored, alone),
                )


@needs("score")
def prediction_is_the_best_valid_letter(pipeline: Pipeline) -> None:
    """The prediction is the best of the letters that have an option; the earlier of a tie."""
    asked = items(pipeline)
    for number, (item, came) in enumerate(zip(asked, _scored(pipeline, asked), strict=True)):
        valid = reference.LETTERS[: len(item.options)]
        best = reference.best_letter(dict(came.scores), valid)
        expect_equal(
            came.prediction,
            best,
            claim=f"item {number} predicts {came.prediction}, its scores say {best} among {', '.join(valid)}",
            likely="letters without an option take part"
            if came.prediction not in valid
            else "the prediction is taken from other scores than those written down",
        )


@needs("validation_loss", "sample", "model")
def validation_loss_is_true(pipeline: Pipeline) -> None:
    """Both means are those of one sample at a time, over every held-out sample."""
    indices = _held_out(pipeline)
    losses = _single_losses(pipeline, indices)
    came = _validation(pipeline, indices, 512)
    labels = [len(row) for row in losses]
    sample_mean = float(torch.stack([row.mean() for row in losses]).mean())
    token_mean = float(torch.cat(losses).mean())
    expect_equal(
        came.label_tokens,
        sum(labels),
        claim=f"{came.label_tokens} label tokens are reported, the samples have {sum(labels)}",
        likely="the last, partial batch is dropped"
        if came.label_tokens in {sum(labels[:end]) for end in range(1, len(labels))}
        else "labels are counted before the shift by one, or padding among them",
    )
    for name, value, right, other in (
        ("sample mean", came.sample_mean, sample_mean, token_mean),
        ("token mean", came.token_mean, token_mean, sample_mean),
    ):
        causes = {"sample mean and token mean are exchanged, or both are the same mean": other}
        causes |= {
            f"it is multiplied by {n}: a training-time scale is applied in evaluation": right * n for n in (2, 4, 8)
        }
        expect_close(
            value,
            right,
            relative=1e-4,
            claim=f"the {name} of the validation loss is wrong",
            likely=nearest_cause(value, causes, "batch means are averaged: what a batch holds decides the loss"),
        )


@needs("validation_loss")
def validation_loss_does_not_depend_on_batches(pipeline: Pipeline) -> None:
    """Any token budget and any order give the same sums over the same counts."""
    indices = _held_out(pipeline)
    base = _validation(pipeline, indices, 512)
    for words, other in (
        ("at four times the token budget", _validation(pipeline, indices, 2048)),
        ("one sample a batch", _validation(pipeline, indices, 1)),
        ("in reverse order", _validation(pipeline, indices[::-1], 512)),
    ):
        for name in ("sample_mean", "token_mean", "label_tokens"):
            expect_close(
                getattr(other, name),
                getattr(base, name),
                relative=1e-5,
                claim=f"`{name}` of the validation loss differs {words}",
                likely="means of batches are averaged; add up sums and counts, divide once at the end",
            )


def _scored(pipeline: Pipeline, asked: Sequence[Choice]) -> Sequence[Scored]:
    assert pipeline.score is not None
    key = ("score", tuple((item.question, item.options, len(item.images)) for item in asked))
    scored = pipeline.once(key, ("score",), lambda: list(pipeline.score(asked)))  # type: ignore[misc]
    if len(scored) != len(asked):
        raise ConformanceError(
            f"{len(asked)} items were asked, {len(scored)} came back",
            likely="the last, partial batch is dropped",
        )
    return scored


def _score_cause(pipeline: Pipeline, item: Choice, letter: str, value: float) -> str:
    """Compare with what the usual mistakes yield for this item."""
    inputs = reference.choice_inputs(pipeline, item)
    truth = reference.next_token_scores(pipeline, inputs)
    plain, spaced = reference.letter_ids(pipeline), reference.letter_ids(pipeline, leading=" ")
    earlier = reference.next_token_scores(pipeline, inputs, position=-2)
    bare = reference.next_token_scores(pipeline, reference.choice_inputs(pipeline, item, generation_prompt=False))
    valid = reference.LETTERS[: len(item.options)]
    over_letters = torch.logsumexp(truth[[plain[one] for one in valid]], dim=0)
    over_all = torch.logsumexp(truth[[plain[one] for one in reference.LETTERS]], dim=0)
    lowered = pipeline.tokenizer.encode(letter.lower(), add_special_tokens=False)[0]
    bracketed = pipeline.tokenizer.encode(f"({letter}", add_special_tokens=False)[0]
    causes = {
        "the letter is scored with its leading space, which the prompt does not leave room for": truth[spaced[letter]],
        "the position before the last is read": earlier[plain[letter]],
        "the prompt lacks the words that ask for an answer (add_generation_prompt)": bare[plain[letter]],
        "probabilities are taken over the letters only, not over the vocabulary": truth[plain[letter]] - over_letters,
        "probabilities are taken over the letters A-H only, not over the vocabulary": truth[plain[letter]] - over_all,
        "it is a probability, not a log-probability": truth[plain[letter]].exp(),
        "the lower-case letter is scored": truth[lowered],
        "the letter is scored with its bracket": truth[bracketed],
    }
    if len(item.images) > 1:
        swapped = Choice(question=item.question, options=item.options, images=item.images[::-1])
        other = reference.next_token_scores(pipeline, reference.choice_inputs(pipeline, swapped))
        causes["the images come in another order"] = other[plain[letter]]
    return nearest_cause(
        value, {words: float(score) for words, score in causes.items()},
        "another prompt: question, `(A) option` lines and the suffix stand as the protocol has them, images first",
    )  # fmt: skip


def _company_cause(scored: Sequence[Scored], alone: Sequence[Scored]) -> str:
    values = sorted(round(value, 3) for one in scored for value in one.scores.values())
    if values == sorted(round(value, 3) for one in alone for value in one.scores.values()):
        return "results are not put back into the order of the items"
    return "the batch is padded on the right and the last position of short rows is padding; pad on the left"


def _held_out(pipeline: Pipeline) -> list[int]:
    """Samples of unlike lengths; more than fit into one batch."""
    return list(pipeline.indices[:: max(1, len(pipeline.indices) // 12)])


def _single_losses(pipeline: Pipeline, indices: Sequence[int]) -> list[torch.Tensor]:
    known = dict(pipeline.numbered)
    with torch.no_grad():
        rows = [reference.token_losses(pipeline.network, known[index], pipeline.ignore_index) for index in indices]
    return [row.double() for row in rows if len(row)]


def _validation(pipeline: Pipeline, indices: Sequence[int], token_budget: int) -> ValidationLoss:
    assert pipeline.validation_loss is not None
    key = ("validation", tuple(indices), token_budget)
    return pipeline.once(key, ("validation_loss",), lambda: pipeline.validation_loss(indices, token_budget))  # type: ignore[misc]
