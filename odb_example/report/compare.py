"""`compare` and `report`: run folders in; `comparison.json`, `report.html` and a table in the terminal out.

Reads files only; no torch, a few seconds. Which run is the baseline: a standard loader of the same seed, else any
standard one, else the first run named. Every other run is set against it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from odb_example import __version__
from odb_example.files import require_replaceable, write_json, writing
from odb_example.report import statistics
from odb_example.report.comparable import Verdict, judge
from odb_example.report.figures import PROTOCOL_WARNING, Figure, Flip, differences, figures_of, flips
from odb_example.report.integrity import Disagreement, disagreements
from odb_example.report.reading import read_runs, read_untrained
from odb_example.report.runs import Fact, Run

SCHEMA = "odb-example-comparison-v1"
STATED_OVER_SEEDS = ("samples_per_second", "validation_loss", "token_weighted_validation_loss", "mmmu_accuracy")


@dataclass(frozen=True, slots=True)
class Pair:
    """One run set against its baseline."""

    baseline: Run
    other: Run
    verdict: Verdict
    figures: Mapping[str, Figure]
    flips: tuple[Flip, ...]


@dataclass(frozen=True, slots=True)
class OverSeeds:
    """A figure of one loader over its runs of several seeds, against the baseline's loader."""

    figure: str
    unit: str
    loader: str
    baseline: str
    values: Mapping[str, tuple[float, ...]]
    estimate: statistics.Estimate


@dataclass(frozen=True, slots=True)
class Comparison:
    """All there is to say about some runs; `as_json` is `comparison.json`."""

    runs: tuple[Run, ...]
    untrained: Run | None
    verdict: Verdict
    figures: Mapping[str, Mapping[str, Figure]]
    pairs: tuple[Pair, ...]
    over_seeds: tuple[OverSeeds, ...]
    made: str

    @property
    def columns(self) -> tuple[Run, ...]:
        """All that has figures: the model before training first, where it was evaluated."""
        return (*([self.untrained] if self.untrained else []), *self.runs)

    def as_json(self) -> dict[str, Any]:
        """Plain values only; every figure with its sources."""
        return {
            "schema": SCHEMA,
            "made": {"at": self.made, "odb_example": __version__, "runs": [str(run.path) for run in self.runs]},
            "verdict": _verdict_json(self.verdict),
            "note": PROTOCOL_WARNING,
            "runs": [
                {
                    "name": run.name, "path": str(run.path), "loader": run.loader, "seed": run.seed,
                    "training_finished": run.finished, "missing": [asdict(gap) for gap in run.gaps],
                    "figures": {name: asdict(figure) for name, figure in self.figures[run.name].items()},
                }
                for run in self.columns
            ],
            "pairs": [
                {
                    "run": pair.other.name, "baseline": pair.baseline.name, "verdict": _verdict_json(pair.verdict),
                    "figures": {
                        name: {**asdict(figure), "comparable": pair.verdict.figures[figure.about].status}
                        for name, figure in pair.figures.items()
                    },
                    "flips": [
                        {"subject": f.baseline.subject, "sample_id": f.baseline.sample_id, "answer": f.baseline.truth,
                         "baseline": f.baseline.prediction, "run": f.other.prediction, "change": f.change}
                        for f in pair.flips
                    ],
                }
                for pair in self.pairs
            ],
            "over_seeds": [asdict(entry) for entry in self.over_seeds],
        }  # fmt: skip


def compare_runs(paths: Sequence[Path], output: Path) -> Comparison:
    """Compare finished (or unfinished) runs; writes ``comparison.json`` and ``report.html`` into ``output``.

    Args:
        paths: run folders, or public records (`results/*.json`).

    Raises:
        UserError: a path is no run.
    """
    from odb_example.report.page import render
    from odb_example.report.terminal import print_comparison

    comparison = build(read_runs(paths), read_untrained(paths))
    write_json(output / "comparison.json", comparison.as_json())
    with writing(output / "report.html") as stream:
        stream.write(render(comparison))
    print_comparison(comparison, output / "report.html")
    return comparison


def report_run(path: Path, output: Path) -> Comparison:
    """One run's page, written to the file ``output``: the same, with nothing to compare it with."""
    from odb_example.report.page import render
    from odb_example.report.terminal import print_comparison

    require_replaceable(output, "page", b"<!doctype html")
    comparison = build(read_runs([path]), read_untrained([path]))
    with writing(output) as stream:
        stream.write(render(comparison))
    print_comparison(comparison, output)
    return comparison


def build(runs: Sequence[Run], untrained: Run | None = None) -> Comparison:
    """The comparison as values; nothing is written. ``untrained`` is the model before training, in no verdict."""
    figures = {run.name: figures_of(run) for run in (*runs, *([untrained] if untrained else []))}
    contradictions = {run.name: tuple(disagreements(run)) for run in runs}
    pairs = tuple(
        _pair(baseline, run, contradictions) for run in runs if (baseline := _baseline_of(run, runs)) is not None
    )
    return Comparison(
        tuple(runs), untrained, judge(runs, contradictions), figures, pairs, tuple(_over_seeds(runs, figures)),
        datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )  # fmt: skip


def _pair(baseline: Run, run: Run, contradictions: Mapping[str, tuple[Disagreement, ...]]) -> Pair:
    verdict = judge([baseline, run], contradictions)
    return Pair(baseline, run, verdict, differences(baseline, run), tuple(flips(baseline, run)))


def _baseline_of(run: Run, runs: Sequence[Run]) -> Run | None:
    """None for a baseline itself: the standard runs, else the first run."""
    standard = [other for other in runs if other.loader == "standard"]
    if not standard:
        return runs[0] if run is not runs[0] else None
    if run in standard:
        return None if run is standard[0] or len(standard) < len(runs) else standard[0]
    return next((other for other in standard if other.seed == run.seed and other.path == run.path), None) or next(
        (other for other in standard if other.seed == run.seed), standard[0]
    )


def _over_seeds(runs: Sequence[Run], figures: Mapping[str, Mapping[str, Figure]]) -> list[OverSeeds]:
    """Per loader with two or more runs, against standard (else the first loader) with two or more."""
    loaders = list(dict.fromkeys(run.loader for run in runs))
    baseline = "standard" if "standard" in loaders else loaders[0]
    found = []
    for loader in loaders:
        for name in STATED_OVER_SEEDS:
            sides = [
                {
                    run.seed: figures[run.name][name].value
                    for run in runs
                    if run.loader == kind and name in figures[run.name]
                }
                for kind in (baseline, loader)
            ]
            if loader == baseline or min(map(len, sides)) < 2:
                continue
            matched = sides[0].keys() == sides[1].keys()
            values = [[side[seed] for seed in sorted(side, key=str)] for side in sides]
            estimate = statistics.mean_over_seeds(*values, matched=matched)
            unit = next(figures[run.name][name].unit for run in runs if name in figures[run.name])
            by_loader = {baseline: tuple(values[0]), loader: tuple(values[1])}
            found.append(OverSeeds(name, unit, loader, baseline, by_loader, estimate))
    return found


def _verdict_json(verdict: Verdict) -> dict[str, Any]:
    return {
        "status": verdict.status,
        "sentence": verdict.sentence,
        "figures": {name: asdict(entry) for name, entry in verdict.figures.items()},
        "checks": [
            {
                "name": check.name, "status": check.status, "figures": list(check.figures), "why": check.why,
                "values": {name: _fact_json(fact) for name, fact in check.values.items()},
            }
            for check in verdict.checks
        ],
        "contradictions": {name: [asdict(entry) for entry in found] for name, found in verdict.damaged.items()},
    }  # fmt: skip


def _fact_json(fact: Fact | None) -> dict[str, Any] | None:
    return asdict(fact) if fact else None
