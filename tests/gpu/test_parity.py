"""A step on N ranks is the step one process takes over the same samples: the exact objective, measured."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from odb_example.settings import Settings
from odb_example.testing.baselines import Measured, absolute, exact, relative
from odb_example.testing.parity import NOTED_STEPS, Replayed, note_and_train, recorded_steps, replay
from odb_example.testing.snapshots import Check
from odb_example.testing.target import Target
from odb_example.train.records import StepRecord
from odb_example.train.run_folder import run_folder

pytestmark = pytest.mark.gpu

NOTE_AND_TRAIN = f"{note_and_train.__module__}:{note_and_train.__name__}"
Pairs = list[tuple[StepRecord, Replayed]]


@pytest.fixture(scope="module")
def parity(tier_settings: Settings, start_stage: Callable[[str, Settings], None]) -> Callable[[str], Pairs]:
    """The first steps of a loader's run in float32, each beside the same step of one process."""
    done: dict[str, Pairs] = {}

    def pairs_of(loader: str) -> Pairs:
        if loader not in done:
            settings = tier_settings.model_copy(
                update={
                    "loader": loader, "output_dir": f"{tier_settings.output_root}/parity-{loader}",
                    "max_steps": NOTED_STEPS, "fixed_batch_size": 1 if loader == "odb" else 4, "lr": 1e-3,
                    "bf16": False, "deepspeed": "none", "save_final_model": False, "gradient_checkpointing": False,
                }
            )  # fmt: skip
            start_stage(NOTE_AND_TRAIN, settings)
            recorded = recorded_steps(run_folder(settings))
            replayed = replay(settings, recorded, torch.device(tier_settings.device))
            done[loader] = list(zip(recorded, replayed, strict=True))
        return done[loader]

    return pairs_of


@pytest.mark.parametrize("loader", ["odb", "standard"])
def test_a_step_holds_the_samples_its_loader_gave(parity: Callable[[str], Pairs], loader: str) -> None:
    for recorded, replayed in parity(loader):
        assert (recorded.samples, recorded.label_tokens) == (replayed.samples, replayed.label_tokens), (
            f"step {recorded.step}: the run counted other samples than the loader handed out"
        )


@pytest.mark.parametrize("loader", ["odb", "standard"])
def test_loss_and_gradient_of_every_step_are_those_of_one_process(
    parity: Callable[[str], Pairs], loader: str, target: Target
) -> None:
    within = 2e-5 if target.device == "cpu" else 2e-3
    for recorded, replayed in parity(loader):
        for name in ("loss", "grad_norm"):
            came, expected = getattr(recorded, name), getattr(replayed, name)
            assert came == pytest.approx(expected, rel=within), (
                f"{loader}, step {recorded.step}: {name} {came:.7g} on {target.ranks} ranks, {expected:.7g} in one "
                f"process ({came / expected:.5f} of it)\nlikely: "
                + (
                    "the normaliser: a rank's mean is averaged where the whole step's tokens should be counted"
                    if abs(came / expected - target.ranks) > 0.01
                    else "the loss is multiplied by the number of ranks"
                )
            )


def test_the_parity_table_is_the_stored_one(baseline: Check, parity: Callable[[str], Pairs], target: Target) -> None:
    numbers = {}
    for loader in ("odb", "standard"):
        pairs = parity(loader)
        numbers |= {
            f"{loader}.samples": exact([recorded.samples for recorded, _ in pairs], "grouping"),
            f"{loader}.label_tokens": exact([recorded.label_tokens for recorded, _ in pairs], "grouping or labels"),
            f"{loader}.loss": relative([recorded.loss for recorded, _ in pairs], 1e-3, "weights, samples or objective"),
            f"{loader}.grad_norm": relative([recorded.grad_norm for recorded, _ in pairs], 1e-2, "the same"),
            f"{loader}.grad_norm_over_one_process": absolute(
                [recorded.grad_norm / replayed.grad_norm for recorded, replayed in pairs], 1e-4, "the normaliser"
            ),
        }  # fmt: skip
    baseline(Measured(numbers, {"ranks": target.ranks, "objective": "token", "lr": 1e-3}))
