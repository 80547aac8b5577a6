"""What a training run says of itself is what it did: samples, counts, learning rate, loss, throughput."""

from __future__ import annotations

from collections import Counter

import torch

from odb_example.conformance import reference
from odb_example.conformance.check import NotApplicable, needs
from odb_example.conformance.expect import expect, expect_close, expect_equal, nearest_cause
from odb_example.conformance.pipeline import Pipeline, TrainingRun


def _run(pipeline: Pipeline) -> TrainingRun:
    assert pipeline.run is not None
    return pipeline.once(("run",), ("run",), pipeline.run)


@needs("run")
def run_trains_each_sample_once_an_epoch(pipeline: Pipeline) -> None:
    """Over the run each given sample is trained on once an epoch, and nothing else is."""
    run = _run(pipeline)
    counts = Counter(index for step in run.steps for index in step.samples)
    given = set(run.given)
    for index in sorted(given | set(counts), key=lambda index: (index in given, index)):
        expected = run.epochs if index in given else 0
        expect_equal(
            counts[index],
            expected,
            claim=f"sample {pipeline.named(index)} was trained on {counts[index]} times in {run.epochs} epochs",
            likely="repeated sampler rows are trained on, or the run ended before or after its epochs"
            if expected
            else "a held-out or unknown sample reached training",
        )


@needs("run")
def run_counts_its_samples(pipeline: Pipeline) -> None:
    """Emitted samples are the samples of the steps, and throughput is that number over the run's time."""
    run = _run(pipeline)
    trained = sum(len(step.samples) for step in run.steps)
    largest = max(len(step.samples) for step in run.steps)
    expect_equal(
        run.emitted_samples,
        trained,
        claim=f"{run.emitted_samples} emitted samples are reported, the steps hold {trained}",
        likely="steps x batch x ranks is reported, which counts repeats and a short last batch as full"
        if run.emitted_samples == len(run.steps) * largest
        else "rows without weight are counted, or a step's samples of one rank only",
    )
    expect_close(
        run.samples_per_second,
        trained / run.seconds,
        relative=0.02,
        claim="the reported throughput is not emitted samples over time",
        likely="optimizer steps x ranks, or rows with repeats, are divided by the time",
    )


@needs("run", "sample")
def run_counts_its_tokens(pipeline: Pipeline) -> None:
    """A step's label and input tokens are the sums over its samples; padded tokens are no fewer than input tokens."""
    assert pipeline.sample is not None
    for number, step in enumerate(_run(pipeline).steps):
        samples = [pipeline.sample(index) for index in step.samples]
        labels = sum(reference.predicted(sample, pipeline.ignore_index) for sample in samples)
        lengths = [len(sample["input_ids"]) for sample in samples]
        expect_equal(
            step.label_tokens,
            labels,
            claim=f"step {number} says it has {step.label_tokens} label tokens and has {labels}",
            likely="input or padded tokens are counted as labels"
            if step.label_tokens >= sum(lengths)
            else "labels are counted before the shift by one, or of one rank only",
        )
        expect_equal(
            step.input_tokens,
            sum(lengths),
            claim=f"step {number} says it has {step.input_tokens} input tokens and has {sum(lengths)}",
            likely="padding is counted, or one rank only",
        )
        expect(
            step.padded_tokens >= step.input_tokens,
            claim=f"step {number} has fewer padded than input tokens",
            expected=f"at least {step.input_tokens}",
            came=step.padded_tokens,
            likely="padding is reported per rank while tokens are summed over ranks",
        )


@needs("run")
def learning_rate_follows_its_schedule(pipeline: Pipeline) -> None:
    """After the warm-up the learning rate only falls, and the run ends near 0."""
    run = _run(pipeline)
    rates = [step.learning_rate for step in run.steps]
    for number in range(run.warmup_steps + 1, len(rates)):
        expect(
            rates[number] <= rates[number - 1] * (1 + 1e-9),
            claim=f"the learning rate rises again at step {number} of {len(rates)}",
            expected=f"at most {rates[number - 1]:.3g}",
            came=f"{rates[number]:.3g}",
            likely="the schedule is as long as the steps but advances once a sample (cosine comes back up), or a "
            "resume began it anew",
        )
    expect(
        rates[-1] <= max(rates) * 0.15,
        claim="the run ends with a high learning rate",
        expected="near 0",
        came=f"{rates[-1]:.3g} of {max(rates):.3g}",
        likely="the schedule counts other steps than the run takes (per-rank batches, or steps with repeats)",
    )


@needs("run", "model", "sample")
def reported_loss_is_true(pipeline: Pipeline) -> None:
    """The loss reported for the first step is the objective of the untrained model over that step's samples."""
    assert pipeline.sample is not None
    run = _run(pipeline)
    if not run.steps:
        raise NotApplicable("a run with steps")
    first = run.steps[0]
    samples = [pipeline.sample(index) for index in dict.fromkeys(first.samples)]
    with torch.no_grad():
        right = float(reference.objective(pipeline.network, samples, pipeline.objective, pipeline.ignore_index))
        other = "sample" if pipeline.objective == "token" else "token"
        swapped = float(reference.objective(pipeline.network, samples, other, pipeline.ignore_index))
    causes = {f"it is the mean over {other}s, not over {pipeline.objective}s": swapped}
    causes |= {f"it is multiplied by {n}: the world size, or the accumulation steps": right * n for n in (2, 3, 4, 8)}
    causes |= {f"it is divided by {n}: the world size, or the accumulation steps": right / n for n in (2, 3, 4, 8)}
    expect_close(
        first.loss,
        right,
        relative=1e-3,
        claim="the reported loss of the first step is not its objective",
        likely=nearest_cause(first.loss, causes, "a scaled or partly averaged loss is logged", relative=2e-3),
    )
