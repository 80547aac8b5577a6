"""Stages of the gpu tier: the commands' own functions, several in one launch: starting ranks costs more.

Each is called in every rank by `odb_example.launch.run_stage`; settings are those of the tier.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from odb_example import distributed
from odb_example.evaluate.likelihood import evaluate_benchmark
from odb_example.evaluate.validation_loss import evaluate_validation_loss
from odb_example.files import write_json
from odb_example.settings import LoaderKind, Settings
from odb_example.train.parity import Case, measure, short_run
from odb_example.train.run_folder import run_folder

LOADERS: tuple[LoaderKind, ...] = ("odb", "standard")
PARITY_CASES = (
    *(Case(loader, 1, "token") for loader in LOADERS),
    *(Case(loader, 3, "sample") for loader in LOADERS),
    Case("odb", 1, "odb-exact"),
)
PARITY_FILE = "parity.json"


def evaluate_runs(settings: Settings) -> None:
    """Validation loss and benchmark of both loaders' models, as ``eval-standard`` and ``eval-odb`` run them."""
    for loader in LOADERS:
        checkpoint = str(run_folder(settings.model_copy(update={"loader": loader})))
        of_run = settings.model_copy(update={"checkpoint": checkpoint})
        evaluate_validation_loss(of_run)
        evaluate_benchmark(of_run)


def measure_parity(settings: Settings) -> None:
    """Both loaders against one process, step by step; rows of `PARITY_CASES` go to ``parity.json``."""
    ranks = distributed.start(settings.device, settings.ddp_timeout)
    folder = Path(settings.output_root, "parity")
    short = short_run(settings, ranks.world_size, folder).model_copy(
        update={"device": settings.device, "bf16": False, "save_final_model": False, "gradient_checkpointing": False}
    )
    rows = measure(short, PARITY_CASES)
    if ranks.is_main:
        write_json(folder / PARITY_FILE, [asdict(row) for row in rows])
