"""What the page says, as values: sections of charts and tables over a `Comparison`. No markup here."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from odb_example.evaluate.losses import bucket, bucket_name
from odb_example.evaluate.statistics import wilson_interval
from odb_example.report import charts, statistics
from odb_example.report.charts import Chart, Series
from odb_example.report.compare import Comparison
from odb_example.report.figures import baselines_of_rows
from odb_example.report.runs import Prediction, Run, SampleLoss, Step

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, charts, tables beside them, and what is missing of it."""

    id: str
    title: str
    intro: str
    charts: tuple[Chart, ...]
    missing: tuple[str, ...] = ()


def sections(comparison: Comparison) -> list[Section]:
    """Every section that has charts, or says what it lacks."""
    runs = comparison.runs
    return [_learning(runs), _steps(runs), _data(runs), _loss(runs), _benchmark(runs)]


def _learning(runs: Sequence[Run]) -> Section:
    curves = [
        _over_steps(
            runs,
            f"Training and validation loss over {words}",
            x,
            lambda s: s.loss,
            x_label=label,
            y_label="loss (nats per label)",
            extra=_validation_points(runs, x),
            caption="Lines: training objective. Marks: validation loss, under the same mean.",
        )
        for words, x, label in _AXES
    ]
    samples = _AXES[0]
    curves.append(
        _over_steps(runs, "Learning rate", samples[1], lambda s: s.lr, x_label=samples[2], y_label="learning rate")
    )
    curves.append(
        _over_steps(
            runs,
            "Gradient norm before clipping",
            samples[1],
            lambda s: s.grad_norm,
            x_label=samples[2],
            y_label="gradient norm (L2)",
            log_y=True,
        )
    )
    intro = "The same samples can be read against samples, tokens or seconds: only seconds show what a loader buys."
    return _section("learning", "Learning", intro, curves, runs, "steps", lambda run: run.steps, "steps.jsonl")


def _steps(runs: Sequence[Run]) -> Section:
    drawn = [
        _over_steps(
            runs, "Samples in a step", "samples", lambda s: s.samples, x_label=_SAMPLES, y_label="samples, all ranks"
        ),
        _over_steps(
            runs,
            "Real tokens in a step",
            "samples",
            lambda s: s.input_tokens,
            x_label=_SAMPLES,
            y_label="tokens, all ranks",
        ),
        _over_steps(runs, "Padding", "samples", _padding, x_label=_SAMPLES, y_label="share of padded tokens (%)"),
        _fill(runs),
        _over_steps(
            runs,
            "Largest padded batch",
            "samples",
            lambda s: s.peak_tokens,
            x_label=_SAMPLES,
            y_label="tokens on one rank",
            caption="What decides peak memory.",
        ),
        _over_steps(runs, "Time of a step", "samples", lambda s: s.seconds, x_label=_SAMPLES, y_label="seconds"),
        _over_steps(
            runs, "Waiting for data", "samples", lambda s: s.wait_seconds, x_label=_SAMPLES, y_label="seconds on rank 0"
        ),
        _per_rank(runs),
    ]
    intro = (
        "Sums over all ranks, against what had been trained on, so that loaders with other numbers of steps can be "
        "laid on each other; averages over neighbouring steps where there are more than 120."
    )
    return _section(
        "steps", "What a step was made of", intro, drawn, runs, "steps", lambda run: run.steps, "steps.jsonl"
    )


def _data(runs: Sequence[Run]) -> Section:
    """Held-out rows are a random share of the mix; runs on the same rows share one histogram."""
    run = next((run for run in runs if run.samples), None)
    drawn: list[Chart | None] = []
    if run:
        groups = {source: [row for row in run.samples if row.source == source] for source in _sources([run])}
        lengths = {name: [row.length for row in rows if row.length] for name, rows in groups.items()}
        drawn = [
            charts.histogram(
                "Length of a sample, by source",
                {k: v for k, v in lengths.items() if v},
                x_label="tokens, visual ones included",
                y_label="held-out samples",
            ),
            charts.histogram(
                "Label tokens of a sample, by source",
                {name: [row.label_tokens for row in rows] for name, rows in groups.items()},
                x_label="label tokens",
                y_label="held-out samples",
            ),
        ]
    intro = f"The held-out samples of {run.name}: a random share of the mix, so it stands for the whole." if run else ""
    return _section("data", "Lengths", intro, drawn, runs, "held-out rows", lambda run: run.samples, "samples.jsonl")


def _loss(runs: Sequence[Run]) -> Section:
    sources = _sources(runs)
    ends = sorted({bucket(row.length) for run in runs for row in run.samples if row.length})
    drawn = [
        _loss_by(runs, "Validation loss by source", sources, lambda row: row.source, str, "source"),
        _loss_by(
            runs,
            "Validation loss by length",
            ends,
            lambda row: bucket(row.length) if row.length else None,
            bucket_name,
            "tokens",
        ),
    ]
    intro = (
        "Mean over samples with its 95% interval, each run on its own; the paired difference above is the sharper test."
    )
    return _section(
        "loss", "Validation loss", intro, drawn, runs, "held-out rows", lambda run: run.samples, "samples.jsonl"
    )


def _benchmark(runs: Sequence[Run]) -> Section:
    def options(row: Prediction) -> int:
        return len(row.options)

    everything = [row for run in runs for row in run.predictions]
    disciplines = sorted({row.category for row in everything})
    subjects = sorted({row.subject for row in everything})
    counts = sorted({options(row) for row in everything})
    pictures = sorted({row.num_images for row in everything})
    drawn = [
        _accuracy_by(
            runs, "MMMU-MC by discipline", ["all rows", *disciplines], _overall(lambda row: row.category), "discipline"
        ),
        _accuracy_by(runs, "MMMU-MC by number of options", counts, lambda row: (options(row),), "options"),
        _accuracy_by(runs, "MMMU-MC by number of images", pictures, lambda row: (row.num_images,), "images"),
        _accuracy_by(runs, "MMMU-MC by subject", subjects, lambda row: (row.subject,), "subject"),
    ]
    intro = "Accuracy with Wilson's 95% interval. Grey marks: guessing over the valid letters, and always answering A."
    return _section(
        "mmmu", "MMMU-MC", intro, drawn, runs, "predictions", lambda run: run.predictions, "predictions.jsonl"
    )


def _section(
    id_: str,
    title: str,
    intro: str,
    drawn: Iterable[Chart | None],
    runs: Sequence[Run],
    what: str,
    part: Callable[[Run], Sequence[Any]],
    file: str,
) -> Section:
    lacking = tuple(f"{run.name} has no {what} ({file})" for run in runs if not part(run))
    return Section(id_, title, intro, tuple(chart for chart in drawn if chart), lacking)


def _over_steps(
    runs: Sequence[Run],
    title: str,
    x: str,
    y: Callable[[Step], float | None],
    *,
    x_label: str,
    y_label: str,
    log_y: bool = False,
    extra: Sequence[Series] = (),
    caption: str = "",
) -> Chart | None:
    series = []
    for slot, run in enumerate(runs):
        if run.steps:
            xs, ys = charts.binned(_places(run, x), [y(step) for step in run.steps])
            series.append(Series(run.name, slot, xs, ys))
    return charts.lines(title, [*series, *extra], x_label=x_label, y_label=y_label, log_y=log_y, caption=caption)


_SAMPLES = "emitted samples"
_AXES: tuple[tuple[str, str, str], ...] = (
    ("samples", "samples", _SAMPLES),
    ("tokens", "input_tokens", "input tokens, visual ones included"),
    ("seconds", "seconds", "seconds of training"),
)


def _places(run: Run, field: str) -> list[float]:
    """Where each step stands on an axis: what had been done of ``field`` at its end."""
    return list(itertools.accumulate(float(getattr(step, field) or 0) for step in run.steps))


def _validation_points(runs: Sequence[Run], field: str) -> list[Series]:
    """Validation losses logged in training, and the final evaluation, which is at the end of the curve."""
    found = []
    for slot, run in enumerate(runs):
        if not run.steps:
            continue
        at = dict(zip((step.step for step in run.steps), _places(run, field), strict=True))
        logged = [
            (at[row["step"]], row["eval_loss"])
            for row in run.log
            if isinstance(row.get("eval_loss"), (int, float)) and row.get("step") in at
        ]
        objective = run.value("summary.objective", "identity.objective")
        kind = "eval_loss" if objective == "sample" else "token_weighted_eval_loss"
        final = run.number(f"validation.{kind}")
        if final is not None:
            logged.append((max(at.values()), final))
        if logged:
            xs, ys = [x for x, _ in logged], [y for _, y in logged]
            found.append(Series(f"validation, {run.name}", slot, xs, ys, points=True))
    return found


def _padding(step: Step) -> float | None:
    if not step.padded_tokens or step.input_tokens is None:
        return None
    return 100 * (1 - step.input_tokens / step.padded_tokens)


def _fill(runs: Sequence[Run]) -> Chart | None:
    """Real tokens of a group over the token budget; only loaders that have a budget."""
    series = []
    for slot, run in enumerate(runs):
        budget = run.number("summary.config.token_budget", "settings.token_budget")
        if not run.steps or not budget or run.loader == "standard":
            continue
        fills = [100 * s.input_tokens / (s.groups * budget) if s.groups and s.input_tokens else None for s in run.steps]
        series.append(Series(run.name, slot, *charts.binned(_places(run, "samples"), fills)))
    return charts.lines(
        "Fill of the token budget",
        series,
        x_label=_SAMPLES,
        y_label="real tokens / budget (%)",
        caption="A fixed batch has no budget to fill.",
    )


def _per_rank(runs: Sequence[Run]) -> Chart | None:
    """Shares of a run's real tokens by rank: a rank with fewer waits for the others."""
    ranked = [(slot, run) for slot, run in enumerate(runs) if any(len(step.ranks) > 1 for step in run.steps)]
    most = max((len(step.ranks) for _, run in ranked for step in run.steps), default=0)
    series = []
    for slot, run in ranked:
        tokens = [sum(step.ranks[r].input_tokens for step in run.steps if r < len(step.ranks)) for r in range(most)]
        whole = sum(tokens) or 1
        series.append(Series(run.name, slot, list(range(most)), [100 * count / whole for count in tokens]))
    return charts.intervals(
        "Work by rank",
        [f"rank {r}" for r in range(most)],
        series,
        x_label="share of all real tokens (%)",
        first_column="rank",
        from_zero=True,
    )


def _sources(runs: Sequence[Run]) -> list[str]:
    counts: dict[str, int] = {}
    for row in (row for run in runs for row in run.samples):
        counts[row.source] = counts.get(row.source, 0) + 1
    return sorted(counts, key=lambda source: (-counts[source], source))[:12]


def _loss_by(
    runs: Sequence[Run],
    title: str,
    groups: Sequence[T],
    key: Callable[[SampleLoss], T | None],
    name: Callable[[T], str],
    first_column: str,
) -> Chart | None:
    series = []
    for slot, run in enumerate(runs):
        estimates = {
            index: statistics.mean(losses)
            for index, group in enumerate(groups)
            if (losses := [row.loss for row in run.samples if key(row) == group])
        }
        if estimates:
            series.append(_estimated(run.name, slot, estimates))
    first = next((run for run in runs if run.samples), None)
    counts = [sum(key(row) == group for row in first.samples) for group in groups] if first else []
    return charts.intervals(
        title,
        [name(group) for group in groups],
        series,
        x_label="loss (nats, mean over samples)",
        first_column=first_column,
        counts=counts,
    )


def _accuracy_by(
    runs: Sequence[Run], title: str, groups: Sequence[T], keys: Callable[[Prediction], tuple[T, ...]], first_column: str
) -> Chart | None:
    series = []
    for slot, run in enumerate(runs):
        estimates = {}
        for index, group in enumerate(groups):
            rows = [row for row in run.predictions if group in keys(row)]
            if rows:
                correct = sum(row.correct for row in rows)
                low, high = wilson_interval(correct, len(rows))
                share = statistics.Estimate(100 * correct / len(rows), 100 * low, 100 * high, len(rows), "")
                estimates[index] = share
        if estimates:
            series.append(_estimated(run.name, slot, estimates))
    first = next((run for run in runs if run.predictions), None)
    if first is None or len(groups) < 2:
        return None
    members = [[row for row in first.predictions if group in keys(row)] for group in groups]
    guesses = [
        baselines_of_rows(rows) if rows else {"chance": float("nan"), "always-A": float("nan")} for rows in members
    ]
    marks = {name: [100 * guess[name] for guess in guesses] for name in ("chance", "always-A")}
    return charts.intervals(
        title,
        [str(group) for group in groups],
        series,
        x_label="accuracy (%)",
        marks=marks,
        first_column=first_column,
        counts=[len(rows) for rows in members],
    )


def _overall(key: Callable[[Prediction], str]) -> Callable[[Prediction], tuple[str, ...]]:
    return lambda row: ("all rows", key(row))


def _estimated(name: str, slot: int, estimates: Mapping[int, statistics.Estimate]) -> Series:
    low = [e.value if e.low is None else e.low for e in estimates.values()]
    high = [e.value if e.high is None else e.high for e in estimates.values()]
    return Series(name, slot, list(estimates), [e.value for e in estimates.values()], low, high)
