"""Training runs whose records are nearly true."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from odb_example.conformance.faults.fault import fault
from odb_example.conformance.pipeline import Pipeline, TrainedStep, TrainingRun


def _changed(pipeline: Pipeline, change: Callable[[TrainingRun], TrainingRun]) -> Pipeline:
    return replace(pipeline, run=partial(_then, pipeline.part("run"), change))


def _then(run: Callable[[], TrainingRun], change: Callable[[TrainingRun], TrainingRun]) -> TrainingRun:
    return change(run())


def _steps(run: TrainingRun, change: Callable[[TrainedStep], TrainedStep]) -> TrainingRun:
    return replace(run, steps=[change(step) for step in run.steps])


@fault(caught_by="run_counts_its_samples", mentions="steps x batch x ranks")
def short_batches_count_as_full(pipeline: Pipeline) -> Pipeline:
    """Emitted samples are steps x batch x ranks: the public example's own count."""
    return _changed(pipeline, _full_batches)


def _full_batches(run: TrainingRun) -> TrainingRun:
    emitted = len(run.steps) * max(len(step.samples) for step in run.steps)
    return replace(run, emitted_samples=emitted, samples_per_second=emitted / run.seconds)


@fault(caught_by="run_counts_its_samples", mentions="throughput")
def throughput_counts_steps(pipeline: Pipeline) -> Pipeline:
    """Throughput is optimizer steps over time."""
    return _changed(pipeline, _steps_per_second)


def _steps_per_second(run: TrainingRun) -> TrainingRun:
    return replace(run, samples_per_second=len(run.steps) / run.seconds)


@fault(caught_by="run_trains_each_sample_once_an_epoch", mentions="was trained on 3 times in 2 epochs")
def a_sample_is_trained_on_once_more(pipeline: Pipeline) -> Pipeline:
    """The last, short batch is filled up with a sample that was trained on already."""
    return _changed(pipeline, _one_more)


def _one_more(run: TrainingRun) -> TrainingRun:
    last = run.steps[-1]
    return replace(run, steps=[*run.steps[:-1], replace(last, samples=(*last.samples, run.steps[0].samples[0]))])


@fault(caught_by="run_trains_each_sample_once_an_epoch", mentions="held-out")
def a_held_out_sample_is_trained_on(pipeline: Pipeline) -> Pipeline:
    """A sample that was not given is trained on in place of another."""
    return _changed(pipeline, _foreign)


def _foreign(run: TrainingRun) -> TrainingRun:
    first = run.steps[0]
    stranger = max(run.given) + 1
    return replace(run, steps=[replace(first, samples=(stranger, *first.samples[1:])), *run.steps[1:]])


@fault(caught_by="run_counts_its_tokens", mentions="counted as labels")
def input_tokens_count_as_labels(pipeline: Pipeline) -> Pipeline:
    """Label tokens are the step's input tokens."""
    return _changed(pipeline, partial(_steps, change=_inputs_as_labels))


def _inputs_as_labels(step: TrainedStep) -> TrainedStep:
    return replace(step, label_tokens=step.input_tokens)


@fault(caught_by="run_counts_its_tokens", mentions="padding is counted")
def padding_counts_as_input(pipeline: Pipeline) -> Pipeline:
    """Input tokens are the padded ones, so that padding looks like nothing."""
    return _changed(pipeline, partial(_steps, change=_padding_as_input))


def _padding_as_input(step: TrainedStep) -> TrainedStep:
    return replace(step, input_tokens=step.padded_tokens)


@fault(caught_by="learning_rate_follows_its_schedule", mentions="rises again")
def learning_rate_comes_back_up(pipeline: Pipeline) -> Pipeline:
    """The cosine is half as long as the run: the rate reaches 0 and rises again."""
    return _changed(pipeline, _cosine_twice)


def _cosine_twice(run: TrainingRun) -> TrainingRun:
    half = len(run.steps) // 2
    rates = [step.learning_rate for step in run.steps]
    falling = rates[run.warmup_steps :: 2]
    bent = [*rates[: run.warmup_steps], *falling, *reversed(falling)][: len(rates)]
    bent += [bent[-1]] * (len(rates) - len(bent))
    assert half
    return replace(run, steps=[replace(step, learning_rate=rate) for step, rate in zip(run.steps, bent, strict=True)])


@fault(caught_by="learning_rate_follows_its_schedule", mentions="ends with a high learning rate")
def schedule_is_too_long(pipeline: Pipeline) -> Pipeline:
    """The schedule counts per-rank batches: the run ends half-way down it."""
    return _changed(pipeline, _long_schedule)


def _long_schedule(run: TrainingRun) -> TrainingRun:
    top = max(step.learning_rate for step in run.steps)
    return _steps(run, partial(_half_way, top))


def _half_way(top: float, step: TrainedStep) -> TrainedStep:
    return replace(step, learning_rate=(top + step.learning_rate) / 2)


@fault(caught_by="reported_loss_is_true", mentions="multiplied by 2")
def reported_loss_is_scaled(pipeline: Pipeline) -> Pipeline:
    """The loss is logged as it was scaled for DDP: twice too high on two ranks."""
    return _changed(pipeline, partial(_steps, change=_doubled))


def _doubled(step: TrainedStep) -> TrainedStep:
    return replace(step, loss=2 * step.loss)
