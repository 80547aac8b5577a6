"""The figures of one run and the differences of two: each with interval, sources, and what it stands or falls with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from odb_example.evaluate.folders import BENCHMARK_FOLDER, VALIDATION_FOLDER
from odb_example.evaluate.statistics import mcnemar
from odb_example.report import statistics
from odb_example.report.comparable import MMMU, THROUGHPUT, TRAINING_LOSS, VALIDATION_LOSS
from odb_example.report.runs import Prediction, Run

PROTOCOL_WARNING = (
    "A likelihood score over single-letter answers: comparable with scores of this protocol on the same rows only, and "
    "with no generated-answer score (lmms-eval, VLMEvalKit, the MMMU authors' parser): those differ by up to 8 points "
    "on one model."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number people quote.

    ``about`` is the verdict's figure it stands or falls with; ``sources`` are ``file: field`` and, where it was
    computed, the rows it was computed from; ``method`` says how the interval was made, or why there is none.
    """

    value: float
    unit: str
    about: str
    sources: tuple[str, ...]
    low: float | None = None
    high: float | None = None
    n: int | None = None
    method: str = ""
    p_value: float | None = None


@dataclass(frozen=True, slots=True)
class Flip:
    """One benchmark row on which two runs answer differently."""

    baseline: Prediction
    other: Prediction

    @property
    def change(self) -> str:
        """gained, lost, or changed (wrong both times)."""
        if self.other.correct:
            return "gained"
        return "lost" if self.baseline.correct else "changed"


def figures_of(run: Run) -> dict[str, Figure]:
    """What one run says, by name; a figure that cannot be had is absent."""
    figures: dict[str, Figure] = {}
    for name, unit, about, places in _READ:
        fact = run.find(*places)
        if fact and isinstance(fact.value, (int, float)) and not isinstance(fact.value, bool):
            figures[name] = Figure(value=fact.value, unit=unit, about=about, sources=(fact.source,))
    figures.update(_from_steps(run))
    figures.update(_from_samples(run, figures))
    figures.update(_from_predictions(run, figures))
    return figures


def differences(baseline: Run, other: Run) -> dict[str, Figure]:
    """``other`` against ``baseline``.

    Throughput and run-time ratios, loss and benchmark differences (other minus baseline).
    """
    a, b = figures_of(baseline), figures_of(other)
    found: dict[str, Figure] = {}
    if "samples_per_second" in a and "samples_per_second" in b:
        found["throughput_ratio"] = _throughput_ratio(baseline, other, a, b)
    for name in ("tokens_per_second", "train_runtime_seconds"):
        if name in a and name in b and a[name].value:
            short = {"tokens_per_second": "token_throughput_ratio", "train_runtime_seconds": "runtime_ratio"}[name]
            ratio = b[name].value / a[name].value
            found[short] = Figure(
                value=ratio,
                unit="×",
                about=THROUGHPUT,
                sources=_both(a[name], b[name], baseline, other),
                method="one run each: no interval",
            )
    found.update(_loss_differences(baseline, other, a, b))
    found.update(_benchmark_difference(baseline, other, a, b))
    return found


def flips(baseline: Run, other: Run) -> list[Flip]:
    """Rows both scored and answered differently, in the baseline's order."""
    theirs = {(row.subject, row.sample_id): row for row in other.predictions}
    pairs = ((row, theirs.get((row.subject, row.sample_id))) for row in baseline.predictions)
    return [Flip(mine, its) for mine, its in pairs if its and its.prediction != mine.prediction]


def baselines_of_rows(rows: Sequence[Prediction]) -> Mapping[str, float]:
    """Chance over the valid letters and always-A, as shares of exactly these rows."""
    return {
        "chance": sum(1 / len(row.letters) if row.truth in row.letters else 0 for row in rows) / len(rows),
        "always-A": sum(row.truth == "A" for row in rows) / len(rows),
    }


_READ: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    ("samples_per_second", "emitted samples/s", THROUGHPUT, ("summary.effective_emitted_samples_per_second",)),
    ("tokens_per_second", "input tokens/s", THROUGHPUT, ("summary.tokens_per_second",)),
    ("train_runtime_seconds", "s", THROUGHPUT, ("summary.trainer_metrics.train_runtime", "summary.runtime_seconds")),
    ("emitted_samples", "samples", THROUGHPUT, ("summary.emitted_samples",)),
    ("steps", "optimizer steps", THROUGHPUT, ("summary.global_step",)),
    ("samples_per_step", "samples", THROUGHPUT, ("summary.mean_emitted_samples_per_step",)),
    ("padding_ratio", "share of padded positions", THROUGHPUT, ("summary.padding_ratio",)),
    ("fill", "share of the token budget", THROUGHPUT, ("summary.fill",)),
    ("train_loss", "nats per label token", TRAINING_LOSS, ("summary.trainer_metrics.train_loss", "summary.train_loss")),
    (
        "validation_loss",
        "nats, mean over samples",
        VALIDATION_LOSS,
        ("validation.eval_loss", "summary.validation_loss"),
    ),
    (
        "token_weighted_validation_loss",
        "nats per label token",
        VALIDATION_LOSS,
        ("validation.token_weighted_eval_loss", "summary.token_weighted_validation_loss"),
    ),
    ("mmmu_accuracy", "%", MMMU, ("benchmark.overall_accuracy", "summary.mmmu_mc_accuracy")),
    ("mmmu_correct", "rows", MMMU, ("benchmark.overall_correct", "summary.mmmu_mc_correct")),
    ("mmmu_total", "rows", MMMU, ("benchmark.overall_total", "summary.mmmu_mc_total")),
)


def _from_steps(run: Run) -> dict[str, Figure]:
    peaks = [step.peak_tokens for step in run.steps if step.peak_tokens is not None]
    if not peaks:
        return {}
    source = "steps.jsonl: largest of largest_batch_tokens"
    return {"peak_padded_tokens": Figure(value=max(peaks), unit="tokens", about=THROUGHPUT, sources=(source,))}


def _from_samples(run: Run, read: Mapping[str, Figure]) -> dict[str, Figure]:
    if not run.samples:
        return {}
    losses = [row.loss for row in run.samples]
    nll, tokens = [row.nll for row in run.samples], [row.label_tokens for row in run.samples]
    rows = f"{VALIDATION_FOLDER}/samples.jsonl: nll_sum, label_tokens"
    return _with_intervals(
        read,
        {
            "validation_loss": statistics.mean(losses),
            "token_weighted_validation_loss": statistics.ratio_of_sums(nll, tokens),
        },
        rows,
    )


def _from_predictions(run: Run, read: Mapping[str, Figure]) -> dict[str, Figure]:
    if not run.predictions:
        return {}
    share = statistics.proportion(sum(row.correct for row in run.predictions), len(run.predictions))
    rows = f"{BENCHMARK_FOLDER}/predictions.jsonl: correct"
    found = _with_intervals(read, {"mmmu_accuracy": _in_points(share)}, rows)
    for name, value in baselines_of_rows(run.predictions).items():
        found[f"mmmu_{name.replace('-', '_').lower()}"] = Figure(
            value=100 * value,
            unit="%",
            about=MMMU,
            n=len(run.predictions),
            sources=(f"{BENCHMARK_FOLDER}/predictions.jsonl: valid_candidate_letters, ground_truth",),
        )
    return found


def _with_intervals(
    read: Mapping[str, Figure], estimates: Mapping[str, statistics.Estimate], rows: str
) -> dict[str, Figure]:
    """The figure stays the one in the results file; its rows give the interval. Absent there: the rows give both."""
    units = {name: (unit, about) for name, unit, about, _ in _READ}
    found = {}
    for name, estimate in estimates.items():
        said = read.get(name)
        found[name] = Figure(
            value=said.value if said else estimate.value,
            unit=units[name][0],
            about=units[name][1],
            sources=(*(said.sources if said else ()), rows),
            low=estimate.low,
            high=estimate.high,
            n=estimate.n,
            method=estimate.method,
        )
    return found


def _throughput_ratio(baseline: Run, other: Run, a: Mapping[str, Figure], b: Mapping[str, Figure]) -> Figure:
    value = b["samples_per_second"].value / a["samples_per_second"].value
    sources = _both(a["samples_per_second"], b["samples_per_second"], baseline, other)
    timed = [[step for step in run.steps if step.seconds] for run in (baseline, other)]
    if min(map(len, timed)) < statistics.MIN_STEPS_FOR_INTERVAL:
        reason = f"no interval: it needs {statistics.MIN_STEPS_FOR_INTERVAL} timed steps a run in steps.jsonl"
        return Figure(value=value, unit="×", about=THROUGHPUT, sources=sources, method=reason)
    samples = [np.array([step.samples for step in steps], dtype=np.float64) for steps in timed]
    seconds = [np.array([step.seconds for step in steps], dtype=np.float64) for steps in timed]
    overheads = [
        max(0.0, figures["train_runtime_seconds"].value - float(spent.sum()))
        if "train_runtime_seconds" in figures
        else 0.0
        for figures, spent in zip((a, b), seconds, strict=True)
    ]
    low, high = statistics.throughput_ratio(samples, seconds, overheads)
    rows = tuple(f"{run.name}/steps.jsonl: samples, seconds" for run in (baseline, other))
    return Figure(
        value=value,
        unit="×",
        about=THROUGHPUT,
        sources=(*sources, *rows),
        low=low,
        high=high,
        n=min(map(len, timed)),
        method="moving-block bootstrap over steps: variation within these runs, not between runs",
    )


def _loss_differences(baseline: Run, other: Run, a: Mapping[str, Figure], b: Mapping[str, Figure]) -> dict[str, Figure]:
    found: dict[str, Figure] = {}
    for name in ("validation_loss", "token_weighted_validation_loss"):
        if name in a and name in b:
            found[f"{name}_difference"] = Figure(
                value=b[name].value - a[name].value,
                unit=a[name].unit,
                about=VALIDATION_LOSS,
                sources=_both(a[name], b[name], baseline, other),
                method="no interval: it needs samples.jsonl of both runs over the same samples",
            )
    mine, theirs = ({row.id: row for row in run.samples} for run in (baseline, other))
    if not found or not mine or mine.keys() != theirs.keys():
        return found
    if any(mine[key].label_tokens != theirs[key].label_tokens for key in mine):
        return found
    tokens = [mine[key].label_tokens for key in mine]
    nats = [theirs[key].nll - mine[key].nll for key in mine]
    estimates = {
        "validation_loss_difference": statistics.mean([theirs[key].loss - mine[key].loss for key in mine]),
        "token_weighted_validation_loss_difference": statistics.ratio_of_sums(nats, tokens),
    }
    for name, estimate in estimates.items():
        if name in found:
            found[name] = Figure(
                value=found[name].value,
                unit=found[name].unit,
                about=VALIDATION_LOSS,
                sources=found[name].sources,
                low=estimate.low,
                high=estimate.high,
                n=estimate.n,
                method=f"{estimate.method}, paired by sample: this pair of models, not another training seed",
            )
    return found


def _benchmark_difference(
    baseline: Run, other: Run, a: Mapping[str, Figure], b: Mapping[str, Figure]
) -> dict[str, Figure]:
    if "mmmu_accuracy" not in a or "mmmu_accuracy" not in b:
        return {}
    sources = _both(a["mmmu_accuracy"], b["mmmu_accuracy"], baseline, other)
    value = b["mmmu_accuracy"].value - a["mmmu_accuracy"].value
    theirs = {(row.subject, row.sample_id): row for row in other.predictions}
    pairs = [(row, theirs.get((row.subject, row.sample_id))) for row in baseline.predictions]
    if not pairs or any(its is None for _, its in pairs) or len(theirs) != len(pairs):
        method = "no interval: it needs predictions.jsonl of both runs over the same rows"
        return {"mmmu_difference": Figure(value=value, unit="points", about=MMMU, sources=sources, method=method)}
    cells = Counter((mine.correct, its.correct) for mine, its in pairs if its)
    only_first, only_second = cells[True, False], cells[False, True]
    estimate = _in_points(
        statistics.paired_proportions(cells[True, True], only_first, only_second, cells[False, False])
    )
    return {
        "mmmu_difference": Figure(
            value=estimate.value,
            unit="points",
            about=MMMU,
            sources=sources,
            low=estimate.low,
            high=estimate.high,
            n=estimate.n,
            p_value=mcnemar(only_first, only_second),
            method=f"{estimate.method}; p by McNemar's exact test: this pair of models, not another seed",
        )
    }


def _in_points(share: statistics.Estimate) -> statistics.Estimate:
    low, high = (None if end is None else 100 * end for end in (share.low, share.high))
    return statistics.Estimate(100 * share.value, low, high, share.n, share.method)


def _both(a: Figure, b: Figure, baseline: Run, other: Run) -> tuple[str, ...]:
    return (*(f"{other.name}/{s}" for s in b.sources), *(f"{baseline.name}/{s}" for s in a.sources))
