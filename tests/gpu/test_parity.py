"""A step on N ranks is the step one process takes over the same samples: the exact objective, measured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from odb_example.files import read_json
from odb_example.settings import Settings
from odb_example.testing.baselines import Measured, absolute, exact
from odb_example.testing.snapshots import Check
from odb_example.testing.stages import PARITY_FILE, measure_parity
from odb_example.testing.target import Target
from odb_example.train.parity import Row

pytestmark = pytest.mark.gpu

STAGE = f"{measure_parity.__module__}:{measure_parity.__name__}"


@pytest.fixture(scope="module")
def parity(tier_settings: Settings, start_stage: Callable[[str, Settings], None]) -> list[Row]:
    """One row a loader, accumulation and objective."""
    start_stage(STAGE, tier_settings)
    return [Row(**row) for row in read_json(Path(tier_settings.output_root, "parity", PARITY_FILE))]


def test_gradient_and_loss_of_every_step_are_those_of_one_process(parity: list[Row], target: Target) -> None:
    within = 1e-5 if target.device == "cpu" else 2e-3
    for row in parity:
        if row.exact:
            assert max(row.worst, row.worst_loss) < within, (
                f"{row.loader}, objective {row.objective}, accumulation {row.accumulation}, {row.world_size} ranks: "
                f"gradient off by {row.worst:.1e}, loss by {row.worst_loss:.1e}, allowed {within:.0e}\nlikely: "
                "a rank's mean is averaged where the whole step's labels should be counted (get_batch_samples)"
            )


def test_every_compared_step_holds_new_samples(parity: list[Row]) -> None:
    for row in parity:
        assert row.samples == row.distinct, f"{row.loader}: {row.samples - row.distinct} samples were trained on twice"
        assert row.steps > 1


def test_the_comparison_sees_a_wrong_weight(parity: list[Row], target: Target) -> None:
    """ODB's own ``exact`` weights are off on masked labels: a comparison that does not show it shows nothing."""
    (own_weights,) = [row for row in parity if row.objective == "odb-exact"]
    if target.ranks == 1:
        pytest.skip("on one rank ODB's weights are exact: there is nothing to see; give --num-processes 2")
    assert own_weights.worst > 1e-3


def test_the_parity_table_is_the_stored_one(baseline: Check, parity: list[Row], target: Target) -> None:
    numbers = {}
    for row in parity:
        name = f"{row.loader}.{row.objective}.accumulation_{row.accumulation}"
        numbers |= {
            f"{name}.steps": exact(row.steps, "grouping: the loader's order, its seed, or the samples' lengths"),
            f"{name}.samples": exact(row.samples, "samples lost or repeated"),
            f"{name}.worst": absolute(row.worst, 1e-5 if row.exact else 0.05, "the normaliser, or ODB's weights"),
        }
    baseline(Measured(numbers, {"ranks": target.ranks}))
