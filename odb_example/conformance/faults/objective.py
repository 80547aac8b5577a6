"""Losses that are nearly the mean over the step."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from odb_example.conformance.faults.fault import fault
from odb_example.conformance.pipeline import BESIDE_FIELDS, Batch, Pipeline, StepTotals
from odb_example.data.collate import Collator

Model = torch.nn.Module


def _with(pipeline: Pipeline, loss: Any) -> Pipeline:
    return replace(pipeline, loss=loss)


def row_losses(model: Model, batch: Batch) -> list[torch.Tensor]:
    """Losses of each row's labels."""
    inputs = {name: value for name, value in batch.items() if name not in BESIDE_FIELDS}
    logits = model(**inputs).logits[:, :-1].float()
    targets = batch["labels"][:, 1:]
    losses = F.cross_entropy(logits.transpose(1, 2), targets, reduction="none", ignore_index=-100)
    return [row[target != -100] for row, target in zip(losses, targets, strict=True)]


def _batch_mean(model: Model, batch: Batch) -> torch.Tensor:
    return torch.cat(row_losses(model, batch)).mean()


@fault(caught_by="loss_is_the_stated_mean", mentions="multiplied by the world size")
def loss_times_world_size(pipeline: Pipeline) -> Pipeline:
    """The loss is multiplied by the world size: the public example's standard baseline."""
    return _with(pipeline, partial(_times_world, pipeline.part("loss")))


def _times_world(loss: Any, model: Model, batch: Batch, totals: StepTotals) -> torch.Tensor:
    return torch.as_tensor(loss(model, batch, totals) * totals.world_size)


@fault(caught_by="loss_is_the_stated_mean", mentions="ODB's `exact`")
def odb_exact_weights_on_masked_labels(pipeline: Pipeline) -> Pipeline:
    """A batch's mean over labels is weighed by its share of input tokens: ODB's `exact`."""
    return _with(pipeline, _odb_exact)


def _odb_exact(model: Model, batch: Batch, totals: StepTotals) -> torch.Tensor:
    return _batch_mean(model, batch) * (batch["attention_mask"].sum() / totals.input_tokens)


@fault(caught_by="loss_is_the_stated_mean", mentions="ODB's `approx`")
def odb_approx_weights(pipeline: Pipeline) -> Pipeline:
    """A batch's mean over labels is weighed by its share of samples: ODB's `approx`."""
    return _with(pipeline, _odb_approx)


def _odb_approx(model: Model, batch: Batch, totals: StepTotals) -> torch.Tensor:
    return _batch_mean(model, batch) * (len(batch["labels"]) / totals.samples)


@fault(caught_by="loss_is_the_stated_mean", mentions="batch means are averaged")
def batch_means_are_averaged(pipeline: Pipeline) -> Pipeline:
    """Each batch's mean counts the same, as DDP averages it."""
    return _with(pipeline, _mean_of_means)


def _mean_of_means(model: Model, batch: Batch, totals: StepTotals) -> torch.Tensor:
    return _batch_mean(model, batch) / totals.batches


@fault(caught_by="loss_is_the_stated_mean", mentions="added up")
def batch_means_are_added_up(pipeline: Pipeline) -> Pipeline:
    """Accumulated batch means are not divided by their number."""
    return _with(pipeline, _sum_of_means)


def _sum_of_means(model: Model, batch: Batch, totals: StepTotals) -> torch.Tensor:
    del totals
    return _batch_mean(model, batch)


@fault(caught_by="loss_is_the_stated_mean", mentions="other unit")
def samples_weigh_the_same(pipeline: Pipeline) -> Pipeline:
    """The mean over samples is taken where the mean over tokens is stated."""
    return _with(pipeline, _sample_mean)


def _sample_mean(model: Model, batch: Batch, totals: StepTotals) -> torch.Tensor:
    means = [row.mean() for row in row_losses(model, batch) if len(row)]
    return torch.stack(means).sum() / totals.samples


@fault(caught_by="loss_is_the_stated_mean", mentions="on top of the step's total")
def divided_by_accumulation_again(pipeline: Pipeline) -> Pipeline:
    """The loss is divided by the number of batches on top of the step's total."""
    return _with(pipeline, partial(_divided_again, pipeline.part("loss")))


def _divided_again(loss: Any, model: Model, batch: Batch, totals: StepTotals) -> torch.Tensor:
    return torch.as_tensor(loss(model, batch, totals) / totals.batches)


@fault(caught_by="loss_is_the_stated_mean", mentions="prompts among them")
def divided_by_all_tokens(pipeline: Pipeline) -> Pipeline:
    """The sum over labels is divided by all tokens of the step."""
    return _with(pipeline, _over_all_tokens)


def _over_all_tokens(model: Model, batch: Batch, totals: StepTotals) -> torch.Tensor:
    return torch.cat(row_losses(model, batch)).sum() / totals.input_tokens


@fault(caught_by="loss_is_the_stated_mean", mentions=("1.00%", "constant factor", "1.0100 times"))
def weights_are_one_per_cent_off(pipeline: Pipeline) -> Pipeline:
    """Every batch weighs 1% too much."""
    return _with(pipeline, partial(_one_per_cent, pipeline.part("loss")))


def _one_per_cent(loss: Any, model: Model, batch: Batch, totals: StepTotals) -> torch.Tensor:
    return torch.as_tensor(loss(model, batch, totals) * 1.01)


@fault(caught_by="loss_is_the_stated_mean", mentions="not their share")
def last_row_weighs_less(pipeline: Pipeline) -> Pipeline:
    """The last row of a batch with several is weighed by 0.98."""
    return _with(pipeline, _light_last_row)


def _light_last_row(model: Model, batch: Batch, totals: StepTotals) -> torch.Tensor:
    sums = [row.sum() for row in row_losses(model, batch)]
    return (torch.stack(sums).sum() - (0.02 * sums[-1] if len(sums) > 1 else 0)) / totals.label_tokens


@fault(caught_by="loss_is_the_stated_mean", mentions="at its own place")
def labels_are_not_shifted(pipeline: Pipeline) -> Pipeline:
    """Each position is asked for its own token, not for the next."""
    return _with(pipeline, _unshifted)


def _unshifted(model: Model, batch: Batch, totals: StepTotals) -> torch.Tensor:
    inputs = {name: value for name, value in batch.items() if name not in BESIDE_FIELDS}
    logits = model(**inputs).logits.float()
    return F.cross_entropy(logits.transpose(1, 2), batch["labels"], reduction="sum", ignore_index=-100) / (
        totals.label_tokens
    )


@fault(caught_by="loss_is_the_stated_mean", mentions="label smoothing")
def labels_are_smoothed(pipeline: Pipeline) -> Pipeline:
    """Label smoothing of 0.01 is left on."""
    return _with(pipeline, _smoothed)


def _smoothed(model: Model, batch: Batch, totals: StepTotals) -> torch.Tensor:
    inputs = {name: value for name, value in batch.items() if name not in BESIDE_FIELDS}
    logits = model(**inputs).logits[:, :-1].float().transpose(1, 2)
    targets = batch["labels"][:, 1:]
    return F.cross_entropy(logits, targets, reduction="sum", ignore_index=-100, label_smoothing=0.01) / (
        totals.label_tokens
    )


@fault(caught_by="loss_is_the_stated_mean", mentions="shifted twice")
def labels_are_shifted_twice(pipeline: Pipeline) -> Pipeline:
    """Each position is asked for the token after the next."""
    return _with(pipeline, _shifted_twice)


def _shifted_twice(model: Model, batch: Batch, totals: StepTotals) -> torch.Tensor:
    further = batch["labels"].roll(-1, dims=1)
    further[:, -1] = -100
    return torch.cat(row_losses(model, {**batch, "labels": further})).sum() / totals.label_tokens


@fault(caught_by="loss_is_the_stated_mean", mentions="number of label tokens +1")
def one_label_too_many_is_counted(pipeline: Pipeline) -> Pipeline:
    """The step's total counts one label that is not there."""
    return _with(pipeline, _one_too_many)


def _one_too_many(model: Model, batch: Batch, totals: StepTotals) -> torch.Tensor:
    return torch.cat(row_losses(model, batch)).sum() / (totals.label_tokens + 1)


@fault(caught_by="loss_is_the_stated_mean", mentions="divided by the number of rows")
def divided_by_rows(pipeline: Pipeline) -> Pipeline:
    """The sum over labels is divided by the rows of the batch."""
    return _with(pipeline, _over_rows)


def _over_rows(model: Model, batch: Batch, totals: StepTotals) -> torch.Tensor:
    del totals
    return torch.cat(row_losses(model, batch)).sum() / len(batch["labels"])


@fault(caught_by="loss_is_the_stated_mean", mentions="row 6 of a batch of 7 is left out")
def last_row_is_left_out(pipeline: Pipeline) -> Pipeline:
    """The last row of a batch of three or more is not in the sum."""
    return _with(pipeline, _without_last_row)


def _without_last_row(model: Model, batch: Batch, totals: StepTotals) -> torch.Tensor:
    losses = row_losses(model, batch)
    return torch.cat(losses[:-1] if len(losses) > 2 else losses).sum() / totals.label_tokens


@fault(caught_by="gradient_is_that_of_the_mean", mentions="scaled by 1.01")
def gradient_is_one_per_cent_off(pipeline: Pipeline) -> Pipeline:
    """The loss that is reported is right, the one that is differentiated is 1% larger."""
    return _with(pipeline, partial(_scaled_gradient, pipeline.part("loss")))


def _scaled_gradient(loss: Any, model: Model, batch: Batch, totals: StepTotals) -> torch.Tensor:
    share = torch.as_tensor(loss(model, batch, totals))
    return share + 0.01 * (share - share.detach())


@fault(caught_by="gradient_is_that_of_the_mean", mentions="cut off")
def single_rows_have_no_gradient(pipeline: Pipeline) -> Pipeline:
    """A batch of one row is detached: its loss is reported, and nothing learns from it."""
    return _with(pipeline, partial(_detached, pipeline.part("loss")))


def _detached(loss: Any, model: Model, batch: Batch, totals: StepTotals) -> torch.Tensor:
    share = torch.as_tensor(loss(model, batch, totals))
    return share.detach() if len(batch["labels"]) == 1 else share


@fault(caught_by="rows_without_labels_weigh_nothing", mentions="NaN")
def batch_without_labels_is_nan(pipeline: Pipeline) -> Pipeline:
    """A batch's mean is weighed by its labels: 0 / 0 where it has none."""
    return _with(pipeline, _mean_times_count)


def _mean_times_count(model: Model, batch: Batch, totals: StepTotals) -> torch.Tensor:
    losses = torch.cat(row_losses(model, batch))
    return losses.mean() * len(losses) / totals.label_tokens


@fault(caught_by="padding_changes_no_loss", mentions="padding is attended")
def left_padding_is_attended(pipeline: Pipeline) -> Pipeline:
    """Rows are padded on the left and the model never sees the mask."""
    return replace(
        pipeline,
        padding_side="left",
        collate=Collator(pipeline.pad_id or 0, "left"),
        model=partial(_deaf_model, pipeline.network),
    )


class _DeafToMask(torch.nn.Module):
    def __init__(self, inner: Model) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, attention_mask: torch.Tensor | None = None, **inputs: Any) -> Any:
        shown = None if attention_mask is None else torch.ones_like(attention_mask)
        return self.inner(attention_mask=shown, **inputs)


def _deaf_model(inner: Model) -> Model:
    return _DeafToMask(inner)
