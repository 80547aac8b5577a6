"""The commands that string stages together: ``all-odb`` (one loader, start to finish) and ``all`` (both, compared).

Each stage leaves its files; the table at the end is read back from them, so that it shows what a person would find.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from odb_example.console import report_console
from odb_example.evaluate.folders import BENCHMARK_FOLDER, RESULTS, VALIDATION_FOLDER
from odb_example.files import read_json
from odb_example.settings import Settings
from odb_example.train.run_folder import run_folder as run_folder

VALLOSS_FILE = Path(VALIDATION_FOLDER, "eval_results.json")
BENCHMARK_FILE = Path(BENCHMARK_FOLDER, RESULTS)
Stage = Callable[[Settings], int | None]


@dataclass(frozen=True, slots=True)
class Headline:
    """What one model scored, as its result files say; None where a file is not there."""

    name: str
    folder: Path
    validation_loss: float | None
    accuracy: str | None
    samples_per_second: float | None


def untrained_folder(settings: Settings) -> Path:
    """Where the evaluations of the model before training are kept."""
    return Path(settings.output_root, "untrained")


def train_and_evaluate(settings: Settings, train: Stage, evaluate: Stage) -> int:
    """Train one loader, then evaluate what it saved; the first failing stage's exit status."""
    settings = settings.model_copy(update={"save_final_model": True})
    checkpoint = str(run_folder(settings))
    return train(settings) or evaluate(settings.model_copy(update={"checkpoint": checkpoint})) or 0


def evaluate_untrained(settings: Settings, trained: Path, evaluate: Stage) -> int:
    """Score the model as it was before training, on the rows held out of ``trained``'s split."""
    print(f"evaluating {settings.model} as it was before training, on the same rows", flush=True)
    split = read_json(next(iter(sorted(trained.glob("train_summary_*.json")))))["split"]
    changes = {
        "checkpoint": settings.model,
        "eval_output_root": str(untrained_folder(settings)),
        "eval_save_dir": None,
        "benchmark_output_dir": None,
        "eval_split_mode": "lf_val_size",
        "eval_val_size": split["val_size"],
        "eval_split_seed": split["split_seed"],
        "force_split": True,
    }
    return evaluate(settings.model_copy(update=changes)) or 0


def headline(name: str, folder: Path) -> Headline:
    """Read the headline figures of one run folder."""
    loss = read_json(folder / VALLOSS_FILE)["eval_loss"] if (folder / VALLOSS_FILE).is_file() else None
    score = read_json(folder / BENCHMARK_FILE) if (folder / BENCHMARK_FILE).is_file() else None
    summaries = sorted(folder.glob("train_summary_*.json"))
    summary: dict[str, Any] = read_json(summaries[0]) if summaries else {}
    accuracy = score and f"{score['overall_accuracy']:.2f}% ({score['overall_correct']}/{score['overall_total']})"
    return Headline(name, folder, loss, accuracy, summary.get("effective_emitted_samples_per_second"))


def show(headlines: Sequence[Headline], console: Console | None = None) -> None:
    """Print the closing table of what was made, where, and how it compares."""
    table = Table(title="what was made")
    for heading in ("model", "validation loss", "MMMU-MC", "samples/s", "folder"):
        table.add_column(heading, overflow="fold")
    for row in headlines:
        loss = "-" if row.validation_loss is None else f"{row.validation_loss:.4f}"
        speed = "-" if row.samples_per_second is None else f"{row.samples_per_second:.1f}"
        table.add_row(row.name, loss, row.accuracy or "-", speed, str(row.folder))
    (console or report_console()).print(table)
