"""The published 8 x H20 run, reproduced in full: hours, where a run on that hardware asks for that model and data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from odb_example.data.store import Store
from odb_example.evaluate.folders import BENCHMARK_FOLDER, RESULTS, VALIDATION_FOLDER
from odb_example.files import read_json
from odb_example.settings import Settings
from odb_example.testing.published import outside, read_published, why_not_comparable
from odb_example.testing.stages import LOADERS
from odb_example.testing.target import Target, gpu_name
from odb_example.train.run_folder import run_folder

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(0)]


def test_the_published_run_is_reproduced_within_its_bands(
    target: Target, pytestconfig: pytest.Config, tmp_path: Path, start_stage: Callable[[str, Settings], None]
) -> None:
    published = read_published(pytestconfig.rootpath / "baselines/reference/nvidia-h20/published-8-ranks.json")
    records = len(Store.open(target.data)) if target.data else None
    reason = why_not_comparable(published, target, gpu_name() if target.device == "cuda" else "", records)
    if reason:
        pytest.skip(reason)
    asked = published.settings | {
        "model": target.model, "data": target.data, "dataset": target.benchmark or "MMMU/MMMU",
        "output_root": str(tmp_path), "num_processes": target.ranks, "save_final_model": True, "report_to": "none",
    }  # fmt: skip
    found: dict[str, float] = {}
    settings = Settings.model_validate(asked)
    for loader, objective in (("odb", "odb-exact"), ("standard", "sample")):
        run = settings.model_copy(update={"loader": loader, "loss_scaling": objective})
        start_stage("odb_example.train.trainer:train", run)
        summary = read_json(run_folder(run) / f"train_summary_{loader}.json")
        found[f"{loader}.global_step"] = summary["global_step"]
        found[f"{loader}.emitted_samples"] = summary["emitted_samples"]
        found[f"{loader}.samples_per_second"] = summary["effective_emitted_samples_per_second"]
    found["throughput_ratio"] = found["odb.samples_per_second"] / found["standard.samples_per_second"]
    start_stage("odb_example.testing.stages:evaluate_runs", settings)
    for loader in LOADERS:
        folder = run_folder(settings.model_copy(update={"loader": loader}))
        validation = read_json(folder / VALIDATION_FOLDER / "eval_results.json")
        found[f"{loader}.eval_loss"] = validation["eval_loss"]
        found[f"{loader}.token_weighted_eval_loss"] = validation["token_weighted_eval_loss"]
        found[f"{loader}.mmmu"] = read_json(folder / BENCHMARK_FOLDER / RESULTS)["overall_accuracy"]
    found |= {f"label_tokens_per_sample.{name}": n for name, n in validation["label_tokens_per_sample"].items()}
    lines = outside(published, found)
    assert not lines, f"against {published.source}:\n" + "\n".join(lines)
