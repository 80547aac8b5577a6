"""Validation loss and MMMU of both models: sound, close to each other, and what is stored for this hardware."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from odb_example.evaluate.audit import audit_run
from odb_example.files import read_json_lines
from odb_example.testing.baselines import Measured, absolute, exact, relative
from odb_example.testing.snapshots import Check
from odb_example.testing.target import TINY, Target

pytestmark = pytest.mark.gpu

LOADERS = ("odb", "standard")


def test_both_models_are_scored_on_the_same_held_out_samples(evaluated: Callable[[str], Any]) -> None:
    first, second = (evaluated(loader).validation for loader in LOADERS)
    for name in ("eval_samples", "label_tokens", "eval_indices_preview"):
        assert first[name] == second[name]


def test_the_validation_losses_of_both_loaders_agree_at_equal_samples(
    evaluated: Callable[[str], Any], target: Target
) -> None:
    losses = {loader: evaluated(loader).validation["token_weighted_eval_loss"] for loader in LOADERS}
    declared = 0.25 if target.model_key == TINY else 0.02
    apart = abs(losses["odb"] - losses["standard"]) / losses["standard"]
    assert apart <= declared, (
        f"odb {losses['odb']:.4f}, standard {losses['standard']:.4f}: {100 * apart:.1f}% apart, declared "
        f"{100 * declared:.0f}%\nlikely: one of the two does not optimise the token objective"
    )


@pytest.mark.parametrize("loader", LOADERS)
def test_training_lowered_the_validation_loss(
    trained: Callable[[str], Any], evaluated: Callable[[str], Any], loader: str
) -> None:
    before = trained(loader).steps[0].loss
    assert evaluated(loader).validation["token_weighted_eval_loss"] < before


def test_the_validation_losses_are_the_stored_ones(
    baseline: Check, evaluated: Callable[[str], Any], target: Target
) -> None:
    numbers = {}
    for loader in LOADERS:
        result = evaluated(loader).validation
        numbers |= {
            f"{loader}.eval_samples": exact(result["eval_samples"], "the split"),
            f"{loader}.label_tokens": exact(result["label_tokens"], "the label mask"),
            f"{loader}.eval_loss": relative(result["eval_loss"], 0.05, "training"),
            f"{loader}.token_weighted_eval_loss": relative(result["token_weighted_eval_loss"], 0.05, "training"),
        }
    baseline(Measured(numbers, {"ranks": target.ranks}))


@pytest.mark.parametrize("loader", LOADERS)
def test_the_benchmark_passes_its_own_audit(evaluated: Callable[[str], Any], loader: str) -> None:
    audit = audit_run(evaluated(loader).benchmark)
    assert [str(finding) for finding in audit.findings] == []
    assert audit.recomputed is not None
    assert audit.recomputed["overall_correct"] == evaluated(loader).scores["overall_correct"]


@pytest.mark.parametrize("loader", LOADERS)
def test_every_scored_question_stands_once_with_its_best_letter(evaluated: Callable[[str], Any], loader: str) -> None:
    rows = list(read_json_lines(evaluated(loader).benchmark / "predictions.jsonl"))
    assert len(rows) == evaluated(loader).scores["overall_total"]
    assert len({row["sample_id"] for row in rows}) == len(rows)
    for row in rows:
        assert row["prediction"] == max(row["choice_scores"], key=lambda letter: row["choice_scores"][letter])


def test_benchmark_scores_and_audit_counts_are_the_stored_ones(
    baseline: Check, evaluated: Callable[[str], Any], target: Target
) -> None:
    numbers = {}
    for loader in LOADERS:
        scores = evaluated(loader).scores
        numbers |= {
            f"{loader}.total_rows_seen": exact(scores["total_rows_seen"], "the benchmark's files"),
            f"{loader}.excluded_samples": exact(scores["excluded_samples"], "the answer filter"),
            f"{loader}.excluded_by_reason": exact(str(scores["excluded_by_reason"]), "the answer filter"),
            f"{loader}.option_status_counts": exact(str(scores["option_status_counts"]), "parsing of the options"),
            f"{loader}.overall_total": exact(scores["overall_total"], "the answer filter"),
            f"{loader}.overall_accuracy": absolute(scores["overall_accuracy"], 4.0, "training, prompt or letters"),
        }
    baseline(Measured(numbers, {"ranks": target.ranks, "protocol": scores["protocol"]}))
