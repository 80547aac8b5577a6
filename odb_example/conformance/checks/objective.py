"""The loss of an optimizer step is the stated mean over all of it, however it is parted into batches and ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from odb_example.conformance import reference
from odb_example.conformance.check import needs
from odb_example.conformance.checks.collate import unpad
from odb_example.conformance.expect import expect, expect_close, is_close, nearest_cause
from odb_example.conformance.pipeline import BESIDE_FIELDS, Pipeline, Sample, StepTotals

Parting = tuple[int, list[list[int]]]  # world size, and the batches of a step as positions in `_chosen`


@needs("sample", "collate", "model")
def padding_changes_no_loss(pipeline: Pipeline) -> None:
    """The loss of a row in a padded batch is the loss of its sample alone."""
    samples = _chosen(pipeline)
    batch = pipeline.batch(samples)
    other = _other_row(pipeline, samples, ("input_ids",))
    expect(not other, claim="the loss of a row in a batch is not that of its sample", likely=other)
    with torch.no_grad():
        inputs = {name: value for name, value in batch.items() if name not in BESIDE_FIELDS}
        logits = pipeline.network(**inputs).logits.float()
        for row, sample in enumerate(samples):
            alone = reference.token_losses(pipeline.network, sample, pipeline.ignore_index).mean()
            length = len(sample["labels"])
            own = logits[row, :length] if pipeline.padding_side == "right" else logits[row, -length:]
            came = torch.nn.functional.cross_entropy(own[:-1], sample["labels"][1:], ignore_index=pipeline.ignore_index)
            expect_close(
                came.item(),
                alone.item(),
                relative=1e-4,
                claim=f"the loss of row {row} of {len(samples)} depends on what it is batched with",
                likely="padding is attended, positions count it, or images went to other rows",
            )


@needs("sample", "collate", "model", "loss")
def loss_is_the_stated_mean(pipeline: Pipeline) -> None:
    """The shares of a step's batches add up to the exact mean, for every parting into ranks and batches."""
    samples = _chosen(pipeline)
    losses = _losses(pipeline, samples)
    for world, parts in _partings(len(samples)):
        expected = _mean([row for part in parts for row in (losses[at] for at in part)], pipeline.objective)
        with torch.no_grad():
            came = sum(float(share) for share in _shares(pipeline, samples, world, parts))
        if not is_close(came, expected):
            expect_close(
                came,
                expected,
                claim=f"the loss of a step is not the mean over its {pipeline.objective}s ({_words(world, parts)})",
                likely=_other_row(pipeline, samples, ("input_ids", "labels"))
                or nearest_cause(came, _known_mistakes(pipeline, samples, losses, world, parts), "")
                or _from_single_samples(pipeline, samples, losses),
            )


@needs("sample", "collate", "model", "loss")
def gradient_is_that_of_the_mean(pipeline: Pipeline) -> None:
    """The gradients of a step's batches add up to the gradient of the exact mean over the union, to 1e-4."""
    samples = _chosen(pipeline)
    losses = _losses(pipeline, samples)
    weights = [weight for weight in pipeline.network.parameters() if weight.requires_grad]
    expected = pipeline.once(
        ("gradient",),
        ("sample", "model", "objective"),
        lambda: _gradient(
            weights,
            [reference.objective(pipeline.network, samples, pipeline.objective, pipeline.ignore_index)],
        ),
    )
    for world, parts in _partings(len(samples))[1:]:
        shares = _shares(pipeline, samples, world, parts)
        came = _gradient(weights, shares)
        error = float((came - expected).norm() / expected.norm())
        ratio = float(came.norm() / expected.norm())
        direction = min(1.0, float(torch.dot(came, expected) / (came.norm() * expected.norm())))
        loss = sum(float(share.detach()) for share in shares)
        right = _mean([losses[at] for part in parts for at in part], pipeline.objective)
        expect(
            error < 1e-4,
            claim=f"the gradient of a step is {error:.2%} off that of the mean over its {pipeline.objective}s "
            f"({_words(world, parts)})",
            expected="relative error below 0.01%",
            came=f"{ratio:.4f} times as long, cosine {direction:.6f}",
            likely="the loss of the same step is wrong too: see loss_is_the_stated_mean"
            if not is_close(loss, right)
            else f"every weight is scaled by {ratio:.4f}: the loss that is reported is not the one that is "
            "differentiated"
            if direction > 1 - 1e-6
            else "the loss is right: part of the graph is cut off (detach, no_grad), or another loss is differentiated",
        )


@needs("sample", "collate", "model", "loss")
def rows_without_labels_weigh_nothing(pipeline: Pipeline) -> None:
    """A batch without labels adds 0 to the loss and nothing to the gradient: no NaN, no effect."""
    assert pipeline.loss is not None
    samples = _chosen(pipeline)[:3]
    blank = [{**sample, "labels": torch.full_like(sample["labels"], pipeline.ignore_index)} for sample in samples]
    totals = _totals(pipeline, samples, batches=2, world=1)
    share = pipeline.loss(pipeline.network, pipeline.batch(blank), totals)
    expect(
        bool(share == 0),
        claim="a batch without labels has a loss of its own",
        expected="0",
        came=share.item(),
        likely="a mean over no labels is NaN; one such batch makes every weight NaN"
        if bool(share.isnan())
        else "padding or prompt is counted as a label",
    )
    if share.requires_grad:
        weights = [weight for weight in pipeline.network.parameters() if weight.requires_grad]
        length = float(_gradient(weights, [share]).norm())
        expect(
            length == 0,
            claim="a batch without labels moves the weights",
            expected="gradient 0",
            came=length,
            likely="0 / 0 in the backward pass; divide by the step's total, never by this batch's count",
        )


def _other_row(pipeline: Pipeline, samples: Sequence[Sample], fields: Sequence[str]) -> str:
    """Whether the collator is to blame, not the loss: the first row that is not its sample's."""
    batch = pipeline.batch(samples)
    for row, sample in enumerate(samples):
        for field in fields:
            came = unpad(batch, row, field, len(sample[field]), pipeline.padding_side)
            if not torch.equal(came, sample[field]):
                return f"`{field}` of row {row} is not its sample's: the collator is wrong, see collator_only_pads"
    own = sum(int((sample["labels"] != pipeline.ignore_index).sum()) for sample in samples)
    if "labels" in fields and int((batch["labels"] != pipeline.ignore_index).sum()) > own:
        return "padding has labels: the collator is wrong, see padding_is_what_it_should_be"
    return ""


def _from_single_samples(pipeline: Pipeline, samples: Sequence[Sample], losses: list[torch.Tensor]) -> str:
    """What is wrong where no known mistake fits, from what the loss makes of each sample in a step of its own."""
    with torch.no_grad():
        alone = [float(_shares(pipeline, [sample], 1, [[0]])[0]) for sample in samples]
    ratios = [came / float(row.mean()) for came, row in zip(alone, losses, strict=True)]
    if not all(0 < ratio < math.inf for ratio in ratios):
        return f"a sample in a step of its own has the loss {alone[0]:.4g}: nothing can be learnt from that"
    if all(is_close(ratio, 1.0) for ratio in ratios):
        return "the weights of batches or tokens are not their share of the step's total"
    if all(is_close(ratio, ratios[0]) for ratio in ratios):
        return f"a constant factor: every step is {ratios[0]:.4f} times its mean, a sample alone too"
    more = [len(row) / ratio - len(row) for ratio, row in zip(ratios, losses, strict=True)]
    if round(more[0]) and all(abs(one - round(more[0])) < 0.01 for one in more):
        return f"the sum is divided by the number of label tokens {round(more[0]):+d}"
    return (
        "a sample alone has another loss than the model's cross-entropy on its labels: label smoothing, weights of "
        "tokens, a penalty, or logits that stand beside the wrong labels"
    )


def _known_mistakes(
    pipeline: Pipeline, samples: Sequence[Sample], losses: list[torch.Tensor], world: int, parts: list[list[int]]
) -> dict[str, float]:
    """What the common mistakes would yield on these very numbers."""
    token = pipeline.objective == "token"
    step = [losses[at] for part in parts for at in part]
    right = _mean(step, pipeline.objective)
    means = [_mean([losses[at] for at in part], "token") for part in parts]
    sums = sum(float(row.sum()) for row in step)
    rows = sum(len(part) for part in parts)
    tokens = [sum(len(samples[at]["input_ids"]) for at in part) for part in parts]
    padded = sum(max(len(samples[at]["input_ids"]) for at in part) * len(part) for part in parts)
    unshifted = sum(int((samples[at]["labels"] != pipeline.ignore_index).sum()) for part in parts for at in part)
    by_tokens = sum(mean * count / sum(tokens) for mean, count in zip(means, tokens, strict=True))
    by_rows = sum(mean * len(part) / rows for mean, part in zip(means, parts, strict=True))
    own_place, two_ahead = (_losses(pipeline, samples, ahead=ahead) for ahead in (0, 2))
    causes = {
        "batch means are averaged: a batch with three labels weighs as much as one with three hundred": sum(means)
        / len(means),
        "batch means are added up, not averaged over the step's batches": sum(means),
        "batches are weighed by their input tokens while their mean runs over labels (ODB's `exact`); weigh by label "
        "tokens": by_tokens,
        "batches are weighed by their rows while their mean runs over labels (ODB's `approx`)": by_rows,
        "the sum is divided by all tokens, prompts among them": sums / sum(tokens),
        "the sum is divided by padded tokens": sums / padded,
        "the sum is divided by the number of rows": sum(
            float(losses[at].sum()) / len(part) for part in parts for at in part
        ),
        "the sum is divided by nothing": sums,
        "each position is asked for the label at its own place, not for the next: shift labels by one": _mean(
            own_place, pipeline.objective
        ),
        "labels are shifted twice: each position is asked for the label after the next": _mean(
            two_ahead, pipeline.objective
        ),
        "labels are counted before the shift by one, the first of a row too": sums / max(unshifted, 1),
        f"this is the mean over the other unit: {pipeline.objective} was stated": _mean(
            step, "sample" if token else "token"
        ),
    }
    if world > 1:
        causes |= {
            "the loss is multiplied by the world size": right * world,
            "the loss is divided by the world size on top of the step's total": right / world,
        }
    if len(parts) > 1:
        causes |= {
            "the loss is divided by the number of batches on top of the step's total": right / len(parts),
            "the loss is multiplied by the number of batches": right * len(parts),
        }
    for part in parts:
        for row, at in enumerate(part):
            share = float(losses[at].sum()) / sum(map(len, step)) if token else float(losses[at].mean()) / rows
            causes[f"row {row} of a batch of {len(part)} is left out"] = right - share
            causes[f"row {row} of a batch of {len(part)} counts twice"] = right + share
    # A mistake that yields the right number on these batches explains nothing here.
    return {cause: value for cause, value in causes.items() if not is_close(value, right, relative=1e-4)}


def _chosen(pipeline: Pipeline) -> list[Sample]:
    """Seven samples whose numbers of labels lie far apart, some with images and some without where there are such."""

    def choose() -> list[Sample]:
        counted = [
            (reference.predicted(sample, pipeline.ignore_index), number)
            for number, sample in enumerate(pipeline.samples)
        ]
        labelled = sorted(pair for pair in counted if pair[0])
        places = sorted({round(part * (len(labelled) - 1) / 6) for part in range(7)})
        return [pipeline.samples[labelled[place][1]] for place in places]

    return pipeline.once(("chosen",), ("sample",), choose)


def _losses(pipeline: Pipeline, samples: Sequence[Sample], *, ahead: int = 1) -> list[torch.Tensor]:
    """Losses of each sample's labels; ``ahead`` as in `reference.token_losses`."""

    def measure() -> list[torch.Tensor]:
        with torch.no_grad():
            return [
                reference.token_losses(pipeline.network, sample, pipeline.ignore_index, ahead=ahead)
                for sample in samples
            ]

    return pipeline.once(("losses", ahead), ("sample", "model"), measure)


def _partings(count: int) -> list[Parting]:
    every = list(range(count))
    half = count // 2
    return [
        (1, [every]),
        (2, [every[:1], every[1:]]),
        (1, [[at] for at in every]),
        (2, [every[:2], every[2:3], every[3:half], every[half:]] if half > 3 else [every[:half], every[half:]]),
    ]


def _shares(pipeline: Pipeline, samples: Sequence[Sample], world: int, parts: list[list[int]]) -> list[torch.Tensor]:
    assert pipeline.loss is not None
    totals = _totals(pipeline, [samples[at] for part in parts for at in part], batches=len(parts), world=world)
    return [pipeline.loss(pipeline.network, pipeline.batch([samples[at] for at in part]), totals) for part in parts]


def _totals(pipeline: Pipeline, samples: Sequence[Sample], *, batches: int, world: int) -> StepTotals:
    counts = [reference.predicted(sample, pipeline.ignore_index) for sample in samples]
    return StepTotals(
        label_tokens=sum(counts),
        samples=sum(count > 0 for count in counts),
        input_tokens=sum(len(sample["input_ids"]) for sample in samples),
        batches=batches,
        world_size=world,
    )


def _mean(losses: Sequence[torch.Tensor], objective: str) -> float:
    if objective == "token":
        return float(torch.cat(list(losses)).double().mean())
    return float(torch.stack([row.double().mean() for row in losses]).mean())


def _gradient(weights: list[torch.nn.Parameter], shares: Sequence[torch.Tensor]) -> torch.Tensor:
    """Gradient of the sum of ``shares``, every weight in one vector; leaves ``.grad`` untouched."""
    total = torch.stack([share.reshape(()) for share in shares]).sum()
    grads = torch.autograd.grad(total, weights, allow_unused=True, retain_graph=True)
    return torch.cat(
        [
            (torch.zeros_like(weight) if grad is None else grad).flatten()
            for weight, grad in zip(weights, grads, strict=True)
        ]
    )


def _words(world: int, parts: list[list[int]]) -> str:
    return f"{world} rank{'s' if world > 1 else ''}, batches of {', '.join(str(len(part)) for part in parts)} rows"
