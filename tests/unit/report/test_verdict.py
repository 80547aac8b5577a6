"""Comparable or not: what differs, what contradicts itself, and what nobody said."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.run_folders import Plan, write_run

from odb_example.report.compare import Comparison, build
from odb_example.report.page import headline, render, settings_that_differ
from odb_example.report.reading import read_runs

pytestmark = pytest.mark.unit
Pair = Callable[[], tuple[Path, Path]]


def _compared(*paths: Path) -> Comparison:
    return build(read_runs(paths))


def _edit(path: Path, change: Callable[[Any], None]) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def _edit_lines(path: Path, change: Callable[[list[Any]], None]) -> None:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    change(rows)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_two_loaders_under_the_same_conditions_are_comparable(finished: Path) -> None:
    verdict = _compared(finished / "odb-enable", finished / "standard-none").verdict
    assert verdict.status == "comparable", verdict.sentence
    assert {check.status for check in verdict.checks} == {"same"}


DIFFERING = {
    "other data": (Plan(fingerprint="ab" * 32), "data fingerprint", {"throughput", "validation loss", "MMMU-MC"}),
    "other objective": (Plan(objective="sample"), "objective", {"validation loss", "MMMU-MC"}),
    "fewer samples": (Plan(train_samples=900), "emitted samples", {"validation loss", "MMMU-MC"}),
    "more ranks": (Plan(ranks=4), "world size", {"throughput"}),
    "fewer held-out rows": (Plan(held_out=120), "held-out rows", {"validation loss"}),
    "fewer questions": (Plan(questions=60), "benchmark rows", {"MMMU-MC"}),
}


@pytest.mark.parametrize("case", DIFFERING)
def test_what_differs_is_named_with_the_figures_that_fall(case: str, tmp_path: Path, finished: Path) -> None:
    plan, condition, fallen = DIFFERING[case]
    other = write_run(tmp_path / "odb-enable", plan)
    comparison = _compared(other, finished / "standard-none")
    assert condition in [check.name for check in comparison.verdict.differing]
    states = {name for name, verdict in comparison.verdict.figures.items() if verdict.status == "not comparable"}
    assert fallen <= states
    if fallen == {"throughput"}:
        assert states == {"throughput"}
    assert condition in comparison.verdict.sentence
    assert "Not comparable" in headline(comparison.pairs[0])


def _set_settings(folder: Path, **values: Any) -> None:
    path = folder / "run_settings.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | values))


CONFIG = {
    "image cap": lambda summary: summary["config"].update(image_max_pixels=1),
    "length cap": lambda summary: summary["config"].update(max_length=1),
    "precision": lambda summary: summary["config"].update(precision="bf16"),
    "versions": lambda summary: summary["versions"].update(torch="2.15.0"),
    "hardware": lambda summary: summary["hardware"].update(cpu_count=64),
    "split": lambda summary: summary["split"].update(split_seed=7),
    "model": lambda summary: summary.update(model="another/model"),
}


@pytest.mark.parametrize("condition", CONFIG)
def test_every_condition_of_training_is_watched(condition: str, pair: Pair) -> None:
    odb, standard = pair()
    _edit(odb / "train_summary_odb.json", CONFIG[condition])
    assert condition in [check.name for check in _compared(odb, standard).verdict.differing]


def test_another_learning_rate_or_epoch_count_is_named(pair: Pair) -> None:
    odb, standard = pair()
    _set_settings(odb, lr=1e-4, num_train_epochs=2.0)
    assert {"optimizer settings", "epochs"} <= {check.name for check in _compared(odb, standard).verdict.differing}


def test_another_protocol_is_named(pair: Pair) -> None:
    odb, standard = pair()
    _edit(odb / "mmmu_mc_likelihood_hf" / "mmmu_mc_likelihood_results.json", lambda r: r.update(protocol="other-v9"))
    assert "benchmark protocol" in [check.name for check in _compared(odb, standard).verdict.differing]


def test_settings_a_loader_must_differ_in_do_not_count(finished: Path) -> None:
    comparison = _compared(finished / "odb-enable", finished / "standard-none")
    differing = {entry.name: entry.expected for entry in settings_that_differ(comparison.runs)}
    assert differing["loader"]
    assert comparison.verdict.differing == ()


def _edited_prediction(odb: Path) -> None:
    def change(rows: list[Any]) -> None:
        wrong = next(row for row in rows if not row["correct"])
        wrong.update(prediction=wrong["ground_truth"], correct=True)

    _edit_lines(odb / "mmmu_mc_likelihood_hf" / "predictions.jsonl", change)


def _consistent_edit(odb: Path) -> None:
    """Scores, prediction and totals moved together: only the digests tell."""
    folder = odb / "mmmu_mc_likelihood_hf"

    def change(rows: list[Any]) -> None:
        row = next(row for row in rows if not row["correct"])
        scores, truth, said = row["candidate_scores"], row["ground_truth"], row["prediction"]
        scores[truth], scores[said] = scores[said], scores[truth]
        row["choice_scores"] = {letter: scores[letter] for letter in row["valid_candidate_letters"]}
        row.update(prediction=truth, correct=True)

    _edit_lines(folder / "predictions.jsonl", change)


TAMPERING: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "edited prediction": (_edited_prediction, "mmmu_mc_likelihood_hf", "MMMU-MC"),
    "edited scores": (_consistent_edit, "mmmu_mc_likelihood_hf", "MMMU-MC"),
    "edited accuracy": (
        lambda odb: _edit(
            odb / "mmmu_mc_likelihood_hf" / "mmmu_mc_likelihood_results.json", lambda r: r.update(overall_accuracy=99.0)
        ),
        "overall_accuracy", "MMMU-MC",
    ),
    "edited loss": (
        lambda odb: _edit(odb / "eval_out_hf_valloss" / "eval_results.json", lambda r: r.update(eval_loss=0.5)),
        "eval_loss", "validation loss",
    ),
    "dropped sample": (
        lambda odb: _edit_lines(odb / "eval_out_hf_valloss" / "samples.jsonl", lambda rows: rows.pop()),
        "eval_samples", "validation loss",
    ),
    "doubled sample": (
        lambda odb: _edit_lines(odb / "eval_out_hf_valloss" / "samples.jsonl", lambda rows: rows.append(rows[0])),
        "stand twice", "validation loss",
    ),
    "edited emitted samples": (
        lambda odb: _edit(odb / "train_summary_odb.json", lambda s: s.update(emitted_samples=5000)),
        "steps.jsonl", "throughput",
    ),
    "dropped steps": (
        lambda odb: _edit_lines(odb / "steps.jsonl", lambda rows: rows.__delitem__(slice(3, 9))),
        "steps.jsonl", "throughput",
    ),
    "edited objective": (
        lambda odb: _edit(odb / "train_summary_odb.json", lambda s: s.update(objective="sample")),
        "objective", "training loss",
    ),
    "evaluated on other data": (
        lambda odb: _edit(
            odb / "eval_out_hf_valloss" / "eval_results.json", lambda r: r["basis"].update(data_fingerprint="cd" * 32)
        ),
        "evaluated on data", "validation loss",
    ),
    "another run's evaluation": (
        lambda odb: _edit(
            odb / "eval_out_hf_valloss" / "eval_results.json", lambda r: r.update(checkpoint="outputs/other-run")
        ),
        "other-run", "validation loss",
    ),
    "marked split": (
        lambda odb: _edit(
            odb / "eval_out_hf_valloss" / "eval_results.json", lambda r: r.update(marks=["3 records were trained on"])
        ),
        "3 records were trained on", "validation loss",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TAMPERING)
def test_a_doctored_run_folder_is_found_and_its_figures_fall(case: str, pair: Pair) -> None:
    change, words, figure = TAMPERING[case]
    odb, standard = pair()
    change(odb)
    verdict = _compared(odb, standard).verdict
    assert list(verdict.damaged) == ["odb-enable"]
    assert verdict.figures[figure].status == "not comparable"
    assert any(words in f"{entry.file} {entry.words}" for entry in verdict.damaged["odb-enable"])
    assert "odb-enable" in verdict.sentence


def test_what_was_doctored_and_what_differs_stands_at_the_top_of_the_page(tmp_path: Path, pair: Pair) -> None:
    odb, _ = pair()
    _edited_prediction(odb)
    _edit(odb / "eval_out_hf_valloss" / "eval_results.json", lambda results: results.update(eval_loss=0.5))
    plan = Plan(loader="standard", fingerprint="ab" * 32, objective="sample")
    other = write_run(tmp_path / "standard-none", plan)
    page = render(_compared(odb, other))
    assert "<code>loader</code>" in page
    assert "the loader&#39;s own" in page
    top = page.split("<main>")[0]
    for words in ("odb-enable", "contradict", "mmmu_mc_likelihood_hf", "eval_loss", "data fingerprint", "objective"):
        assert words in top, words
    assert "no figure that may be compared" in top


def test_what_a_run_does_not_state_is_unknown_not_assumed(pair: Pair) -> None:
    odb, standard = pair()
    _edit(odb / "train_summary_odb.json", lambda s: s["data"].pop("fingerprint"))
    (odb / "run_identity.json").unlink()
    verdict = _compared(odb, standard).verdict
    assert verdict.status == "unknown"
    assert [check.name for check in verdict.unknown] == ["data fingerprint"]
    assert "data fingerprint" in verdict.sentence


def test_a_run_without_a_benchmark_takes_nothing_from_the_other_figures(tmp_path: Path, finished: Path) -> None:
    odb = write_run(tmp_path / "odb-enable", Plan(), parts=("training", "validation"))
    verdict = _compared(odb, finished / "standard-none").verdict
    assert verdict.figures["throughput"].status == "comparable"
    assert verdict.figures["validation loss"].status == "comparable"


def test_runs_that_differ_in_seed_alone_are_comparable(tmp_path: Path, finished: Path) -> None:
    other = write_run(tmp_path / "odb-seed-1", replace(Plan(), seed=1))
    assert _compared(other, finished / "standard-none").verdict.status == "comparable"
