"""One trained and evaluated model per loader, made once a session by the functions that the commands call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from odb_example.evaluate.folders import BENCHMARK_FOLDER, RESULTS, VALIDATION_FOLDER
from odb_example.files import read_json
from odb_example.launch import run_stage
from odb_example.settings import PRESETS, Settings
from odb_example.testing.target import Target
from odb_example.train.records import StepRecord, read_steps
from odb_example.train.run_folder import run_folder

LOADERS = ("odb", "standard")
TRAIN = "odb_example.train.trainer:train"
EVALUATE = "odb_example.testing.stages:evaluate_runs"


@dataclass(frozen=True)
class Run:
    """A run folder and what lies in it."""

    settings: Settings
    folder: Path
    summary: dict[str, Any]
    steps: list[StepRecord]


@dataclass(frozen=True)
class Evaluation:
    """Results of both evaluations of one checkpoint."""

    folder: Path
    validation: dict[str, Any]
    scores: dict[str, Any]

    @property
    def benchmark(self) -> Path:
        return self.folder / BENCHMARK_FOLDER


def start(stage: str, settings: Settings) -> None:
    """Run a stage on its ranks; what they printed stands in the captured output."""
    status = run_stage(stage, settings)
    if status:
        pytest.fail(f"{stage} ended with exit status {status}; the ranks' own words are captured below", pytrace=False)


@pytest.fixture(scope="session")
def start_stage() -> Callable[[str, Settings], None]:
    """Run a stage on its ranks, as the commands do; a failing rank fails the test."""
    return start


@pytest.fixture
def on_gpus(target: Target) -> None:
    """Skip on CPU machines: they are shared, so their speed is recorded but not held against a baseline."""
    if target.device == "cpu":
        pytest.skip("speed is compared on GPUs only: a CPU machine is shared by others")


@pytest.fixture(scope="session")
def tier_settings(
    target: Target, tiny_checkpoint: Path, miniature_store: Path, tmp_path_factory: pytest.TempPathFactory
) -> Settings:
    """What every run of the tier shares: the tiny model on the miniature mix, or the model and data asked for."""
    shared = {
        "model": target.model or str(tiny_checkpoint),
        "data": target.data or str(miniature_store),
        "dataset": target.benchmark or str(miniature_store / "benchmark"),
        "output_root": str(tmp_path_factory.mktemp("runs")),
        "device": target.device,
        "num_processes": target.ranks,
        "save_final_model": True,
        "report_to": "none",
        "seed": 42,
        "val_size": 60,
    }
    if target.model is None:
        # Six rows a rank take about as many steps as ODB does: at equal samples *and* steps the losses can be compared.
        tiny = {"lr": 2e-3, "num_train_epochs": 2.0, "fixed_batch_size": 6}
        return Settings.model_validate(PRESETS["miniature"] | shared | tiny)
    return Settings.model_validate(shared | {"train_size": 2048 if target.own_data else 0, "max_samples": 512})


@pytest.fixture(scope="session")
def trained(tier_settings: Settings) -> Callable[[str], Run]:
    """The finished run of a loader, trained at the first call."""
    runs: dict[str, Run] = {}

    def run_of(loader: str) -> Run:
        if loader not in runs:
            changes = {"loader": loader} | ({"fixed_batch_size": 1} if loader == "odb" else {})
            settings = tier_settings.model_copy(update=changes)
            start(TRAIN, settings)
            folder = run_folder(settings)
            summary = read_json(folder / f"train_summary_{loader}.json")
            runs[loader] = Run(settings, folder, summary, read_steps(folder, up_to=10**9))
        return runs[loader]

    return run_of


@pytest.fixture(scope="session")
def evaluated(trained: Callable[[str], Run], tier_settings: Settings) -> Callable[[str], Evaluation]:
    """Validation loss and MMMU scores of a loader's model; both models are evaluated at the first call."""
    folders: dict[str, Path] = {}

    def evaluation_of(loader: str) -> Evaluation:
        if not folders:
            folders.update({name: trained(name).folder for name in LOADERS})
            start(EVALUATE, tier_settings)
        folder = folders[loader]
        return Evaluation(
            folder,
            read_json(folder / VALIDATION_FOLDER / "eval_results.json"),
            read_json(folder / BENCHMARK_FOLDER / RESULTS),
        )

    return evaluation_of
