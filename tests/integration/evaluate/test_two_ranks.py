"""Both evaluations on two ranks: the figures of one, printed once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.evaluate_stages import evaluate_both
from support.predictions import assert_same_scores, rows_of

from odb_example import launch
from odb_example.evaluate.audit import audit_runs
from odb_example.files import read_json

pytestmark = [pytest.mark.integration, pytest.mark.ranks]


def test_two_ranks_give_the_figures_of_one_and_audits_agree(
    settings: Callable[..., Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folders = {ranks: (tmp_path / f"loss-{ranks}", tmp_path / f"scores-{ranks}") for ranks in (1, 2)}
    for ranks, (losses, scores) in folders.items():
        asked = settings(
            eval_save_dir=str(losses), benchmark_output_dir=str(scores), num_processes=ranks, token_budget=400 * ranks
        )
        assert launch.run_stage(f"{evaluate_both.__module__}:{evaluate_both.__name__}", asked) == 0
        assert capfd.readouterr().out.count("[odb-hf-benchmark] overall_accuracy=") == 1

    one, two = (read_json(losses / "eval_results.json") for losses, _ in folders.values())
    assert two["effort"]["world_size"] == 2
    for name in ("eval_samples", "label_tokens", "label_tokens_per_sample", "eval_indices_preview"):
        assert two[name] == one[name]
    for name in ("eval_loss", "token_weighted_eval_loss", "mean_batch_loss"):
        assert two[name] == pytest.approx(one[name], abs=1e-6)

    one, two = (scores for _, scores in folders.values())
    assert_same_scores(rows_of(one), rows_of(two))
    assert audit_runs([one, two]) == 0
    assert "predictions differ; McNemar's exact p = " in capfd.readouterr().out
