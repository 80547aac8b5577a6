"""Do a run's files agree with each other? Rows are recomputed, and compared with the totals beside them.

A file that was edited, truncated or mixed up with another run's is named with what it says and what its rows give.
Benchmark files are judged by `odb_example.evaluate.audit`.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from odb_example.evaluate.audit import audit_run
from odb_example.evaluate.folders import BENCHMARK_FOLDER, VALIDATION_FOLDER
from odb_example.report.runs import Run

LOSS_TOLERANCE = 1e-5
"""Relative: rows and totals are float32 sums in different orders."""


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Two places of one run that do not fit together; ``part`` tells which figures rest on them."""

    part: str
    file: str
    words: str


def disagreements(run: Run) -> list[Disagreement]:
    """Everything found, in the order training, validation, benchmark."""
    return [*_training(run), *_validation(run), *_benchmark(run), *_origins(run)]


def _training(run: Run) -> Iterator[Disagreement]:
    if not (run.finished and run.steps):
        return
    emitted, steps = run.number("summary.emitted_samples"), run.number("summary.global_step")
    trained = sum(step.samples for step in run.steps)
    if emitted is not None and trained != emitted:
        yield Disagreement("training", "steps.jsonl", f"its steps hold {trained} samples, the summary says {emitted}")
    if steps is not None and len(run.steps) != steps:
        yield Disagreement("training", "steps.jsonl", f"it holds {len(run.steps)} steps, the summary says {steps}")
    numbers = [step.step for step in run.steps]
    if any(after <= before for before, after in itertools.pairwise(numbers)):
        yield Disagreement("training", "steps.jsonl", "its steps are not in rising order")


def _validation(run: Run) -> Iterator[Disagreement]:
    if "validation" not in run.documents or not run.samples or run.gap("validation"):
        return
    rows, file = run.samples, f"{VALIDATION_FOLDER}/samples.jsonl"
    tokens = sum(row.label_tokens for row in rows)
    recomputed = {
        "eval_samples": len(rows),
        "label_tokens": tokens,
        "eval_loss": sum(row.loss for row in rows) / len(rows),
        "token_weighted_eval_loss": sum(row.nll for row in rows) / tokens,
    }
    for field, value in recomputed.items():
        said = run.number(f"validation.{field}")
        if said is not None and not math.isclose(said, value, rel_tol=LOSS_TOLERANCE):
            words = f"its rows give {field} {_short(value)}, eval_results.json says {_short(said)}"
            yield Disagreement("validation", file, words)
    yield from _doubled("validation", file, [row.id for row in rows])


def _benchmark(run: Run) -> Iterator[Disagreement]:
    """The benchmark's own audit: rows, totals, and the digests taken when they were written."""
    if run.from_record or "benchmark" not in run.documents:
        return
    for finding in audit_run(run.path).findings:
        if finding.kind != "file_missing":
            yield Disagreement("benchmark", BENCHMARK_FOLDER, f"{finding.where}: {finding.words}")


def _origins(run: Run) -> Iterator[Disagreement]:
    """Settings, summary and evaluations must speak of one run."""
    pairs = (
        ("objective", "summary.objective", "settings.loss_scaling"),
        ("objective", "summary.objective", "identity.objective"),
        ("model", "summary.model", "identity.model"),
        ("length cap", "summary.config.max_length", "settings.max_length"),
        ("image cap", "summary.config.image_max_pixels", "settings.image_max_pixels"),
        ("token budget", "summary.config.token_budget", "settings.token_budget"),
        ("loader", "summary.loader", "settings.loader"),
    )
    for words, first, second in pairs:
        a, b = run.find(first), run.find(second)
        if a and b and a.value != b.value:
            file = a.source.split(":")[0]
            yield Disagreement("training", file, f"{words} {a.value} there, {b.value} in {b.source}")
    trained_on = run.find("summary.data_fingerprint", "summary.data.fingerprint", "identity.data_fingerprint")
    evaluated = run.find("validation.basis.data_fingerprint")
    if trained_on and evaluated and trained_on.value != evaluated.value:
        words = f"evaluated on data {_print(evaluated.value)}, trained on {_print(trained_on.value)}"
        yield Disagreement("validation", evaluated.source.split(":")[0], words)
    identity = run.find("identity.data_fingerprint")
    if trained_on and identity and trained_on.value != identity.value:
        words = f"data {_print(trained_on.value)} there, {_print(identity.value)} in {identity.source}"
        yield Disagreement("training", trained_on.source.split(":")[0], words)
    if trained_on:
        for mark in run.value("validation.marks") or ():
            yield Disagreement("validation", f"{VALIDATION_FOLDER}/eval_results.json", f"marked: {mark}")
    for part in ("validation", "benchmark"):
        checkpoint, home = run.find(f"{part}.checkpoint"), run.value("summary.output_dir", "settings.output_dir")
        if checkpoint and home and not _within(str(checkpoint.value), str(home)):
            words = f"scored the checkpoint {checkpoint.value}, this run was written to {home}"
            yield Disagreement(part, checkpoint.source.split(":")[0], words)


def _within(checkpoint: str, home: str) -> bool:
    """By the run folder's own name: absolute and relative spellings, and copied folders, are the same run."""
    return PurePath(home).name in PurePath(checkpoint).parts


def _doubled(part: str, file: str, ids: list[str]) -> Iterator[Disagreement]:
    twice = [name for name, count in Counter(ids).items() if count > 1]
    if twice:
        yield Disagreement(part, file, f"{len(twice)} ids stand twice, the first is {twice[0]}")


def _short(value: float) -> str:
    return f"{value:.8g}"


def _print(fingerprint: Any) -> str:
    return str(fingerprint)[:19]
