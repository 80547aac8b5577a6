"""One process takes the exact step: both objectives, loaders, accumulation. Two ranks are in the gpu tier."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.mixed_store import mixed_store
from support.training import small

from odb_example.settings import Settings
from odb_example.train.parity import TOLERANCE, Case, measure, short_run

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("ranks"), pytest.mark.timeout(900)]

SAMPLES = 21  # no multiple of 2 or 4: batches and windows need weightless copies


@pytest.fixture(scope="module")
def settings(tiny_checkpoint: Path, miniature_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    root = tmp_path_factory.mktemp("parity")
    mixed = mixed_store(miniature_store, root / "mixed", records=24, text_only_every=3)
    return small(tiny_checkpoint, mixed, root / "run", val_size=3.0)


@pytest.mark.parametrize("accumulation", [1, 4])
@pytest.mark.parametrize("loader", ["odb", "standard"])
@pytest.mark.parametrize("objective", ["token", "sample"])
def test_one_process_takes_the_exact_step(settings: Settings, loader: str, accumulation: int, objective: str) -> None:
    short = short_run(settings, 1, Path(str(settings.output_dir)))
    (row,) = measure(short.model_copy(update={"train_size": SAMPLES}), [Case(loader, accumulation, objective)])
    assert (row.samples, row.distinct) == (SAMPLES, SAMPLES)
    assert row.worst < TOLERANCE, row
    assert row.worst_loss < TOLERANCE, row
