"""Gradients on several ranks are those of one process over the union batch: both objectives, loaders, accumulation."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.mixed_store import mixed_store
from support.parity_stages import FOUR_RANKS, four_ranks
from support.training import small

from odb_example import launch
from odb_example.files import read_json
from odb_example.settings import Settings
from odb_example.train.parity import TOLERANCE, Case, Row, measure, short_run

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("ranks"), pytest.mark.timeout(900)]

SAMPLES = 21  # no multiple of 2, 3 or 4: rows, batches and windows all need weightless copies


@pytest.fixture(scope="module")
def settings(tiny_checkpoint: Path, miniature_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    root = tmp_path_factory.mktemp("parity")
    mixed = mixed_store(miniature_store, root / "mixed", records=24, text_only_every=3)
    return small(tiny_checkpoint, mixed, root / "run", val_size=3.0)


def _on(settings: Settings, world_size: int) -> Settings:
    short = short_run(settings, world_size, Path(str(settings.output_dir)))
    return short.model_copy(update={"train_size": SAMPLES, "val_size": 3.0})


def _assert_exact(rows: list[Row]) -> None:
    for row in rows:
        assert (row.samples, row.distinct) == (SAMPLES, SAMPLES), row
        if row.exact:
            assert row.worst < TOLERANCE, row
            assert row.worst_loss < TOLERANCE, row


@pytest.mark.parametrize("accumulation", [1, 4])
@pytest.mark.parametrize("loader", ["odb", "standard"])
@pytest.mark.parametrize("objective", ["token", "sample"])
def test_one_process_takes_the_exact_step(settings: Settings, loader: str, accumulation: int, objective: str) -> None:
    _assert_exact(measure(_on(settings, 1), [Case(loader, accumulation, objective)]))


def test_four_ranks_take_the_step_of_one_and_odbs_own_weights_do_not(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two ranks are measured by the gpu tier, rehearsed on CPU."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    on_ranks = _on(settings, 4)
    assert launch.run_stage(f"{four_ranks.__module__}:{four_ranks.__name__}", on_ranks) == 0
    rows = [Row(**row) for row in read_json(Path(str(on_ranks.output_dir)) / "rows.json")]
    assert [(row.world_size, row.loader, row.accumulation, row.objective) for row in rows] == [
        (4, case.loader, case.accumulation, case.objective) for case in FOUR_RANKS
    ]
    _assert_exact(rows)
    for row in rows:
        assert row.exact or row.worst > 100 * TOLERANCE, f"{row} is exact now: the docs' comparison is out of date"
