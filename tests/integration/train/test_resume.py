"""Stopped anywhere and resumed: every sample once an epoch, the schedule where it was, nothing half-written."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.training import small

from odb_example import launch
from odb_example.errors import UserError
from odb_example.files import read_json
from odb_example.settings import Settings
from odb_example.train.records import StepRecord, read_steps
from odb_example.train.resume import STATE_FILE
from odb_example.train.run_folder import PARTIAL_CHECKPOINTS, checkpoints_of
from odb_example.train.trainer import train

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("ranks")]

SAMPLES, EPOCHS = 41, 2  # odd: two ranks need a weightless copy an epoch, which must not move the schedule


@pytest.fixture(scope="module", params=["odb", "standard"])
def uninterrupted(
    request: pytest.FixtureRequest,
    tiny_checkpoint: Path,
    miniature_store: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Settings:
    """The settings of a finished run of two epochs that left a checkpoint every two steps."""
    settings = small(
        tiny_checkpoint, miniature_store, tmp_path_factory.mktemp("runs") / request.param, loader=request.param,
        train_size=SAMPLES, num_train_epochs=EPOCHS, save_strategy="steps", save_steps=2, save_final_model=True,
        fixed_batch_size=4 if request.param == "standard" else 1,
    )  # fmt: skip
    train(settings)
    return settings


def _folder(settings: Settings) -> Path:
    return Path(str(settings.output_dir))


def _steps(folder: Path) -> list[StepRecord]:
    return read_steps(folder, up_to=10_000)


def _cosine(emitted: int, settings: Settings) -> float:
    total = SAMPLES * EPOCHS
    warmup = math.ceil(total * settings.warmup_ratio)
    if emitted < warmup:
        return settings.lr * emitted / warmup
    return settings.lr * 0.5 * (1 + math.cos(math.pi * (emitted - warmup) / (total - warmup)))


def _assert_whole_run(folder: Path, settings: Settings) -> None:
    """Every sample once an epoch: none missing, or the last epoch would not be over; none twice, or more were seen."""
    steps = _steps(folder)
    assert steps[-1].emitted_samples == sum(step.samples for step in steps) == SAMPLES * EPOCHS
    last = checkpoints_of(folder)[-1]
    assert read_json(last / STATE_FILE)["loader"] == {"epoch": EPOCHS, "done": []}
    for step in steps:
        assert step.lr == pytest.approx(_cosine(step.emitted_samples - step.samples, settings), abs=1e-9)


def test_a_run_is_whole_and_its_learning_rate_follows_samples(uninterrupted: Settings) -> None:
    _assert_whole_run(_folder(uninterrupted), uninterrupted)


def test_a_checkpoint_holds_model_processor_and_state_and_no_half_one_is_left(uninterrupted: Settings) -> None:
    assert not (_folder(uninterrupted) / PARTIAL_CHECKPOINTS).exists()
    for checkpoint in checkpoints_of(_folder(uninterrupted)):
        names = {path.name for path in checkpoint.iterdir()}
        assert names >= {"model.safetensors", "optimizer.pt", "scheduler.pt", "trainer_state.json", "steps.jsonl"}
        assert names >= {"chat_template.jinja", "tokenizer_config.json", "processor_config.json", STATE_FILE}


@pytest.mark.parametrize("place", [0, 1, -2])
def test_resumed_in_the_middle_every_sample_comes_once_an_epoch(
    uninterrupted: Settings, tmp_path: Path, place: int
) -> None:
    checkpoint = checkpoints_of(_folder(uninterrupted))[place]
    resumed = uninterrupted.model_copy(update={"resume": str(checkpoint), "output_dir": str(tmp_path / "resumed")})
    result = train(resumed)
    assert result.summary["resumed_after_step"] == int(checkpoint.name.split("-")[1])
    _assert_whole_run(tmp_path / "resumed", resumed)


def test_resumed_on_two_ranks_every_sample_still_comes_once(uninterrupted: Settings, tmp_path: Path) -> None:
    checkpoint = checkpoints_of(_folder(uninterrupted))[1]
    resumed = uninterrupted.model_copy(
        update={"resume": str(checkpoint), "output_dir": str(tmp_path / "two"), "output_root": str(tmp_path)}
        | {"num_processes": 2}
    )
    assert launch.run_stage(f"{train.__module__}:{train.__name__}", resumed) == 0
    _assert_whole_run(tmp_path / "two", resumed)


def test_resumed_at_an_epochs_end_the_weights_are_those_of_the_uninterrupted_run(
    tiny_checkpoint: Path, miniature_store: Path, tmp_path: Path
) -> None:
    settings = small(
        tiny_checkpoint, miniature_store, tmp_path / "whole", num_train_epochs=2, save_strategy="epoch",
        save_final_model=True,
    )  # fmt: skip
    train(settings)
    first = checkpoints_of(tmp_path / "whole")[0]
    train(settings.model_copy(update={"resume": str(first), "output_dir": str(tmp_path / "resumed")}))
    whole, resumed = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "resumed"))
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


@pytest.mark.parametrize("capped", [{}, {"max_steps": 3}])
@pytest.mark.parametrize("loader", ["odb", "standard"])
def test_a_finished_run_that_is_resumed_takes_no_step_more(
    loader: str, capped: dict[str, int], tiny_checkpoint: Path, miniature_store: Path, tmp_path: Path
) -> None:
    settings = small(
        tiny_checkpoint, miniature_store, tmp_path / "run", loader=loader, save_strategy="steps", save_steps=100,
        train_size=12, save_final_model=True, **capped,
    )  # fmt: skip
    finished = train(settings)
    records, weights = _steps(finished.folder), load_file(finished.folder / "model.safetensors")
    (finished.folder / "model.safetensors").unlink()  # as if it had been killed before it saved the model
    resumed = train(settings.model_copy(update={"resume": "newest"}))
    assert (resumed.global_step, resumed.emitted_samples) == (finished.global_step, finished.emitted_samples)
    assert _steps(finished.folder) == records
    assert all(map(torch.equal, weights.values(), load_file(finished.folder / "model.safetensors").values()))


def test_other_settings_than_the_checkpoints_are_refused_by_name(uninterrupted: Settings, tmp_path: Path) -> None:
    changed = uninterrupted.model_copy(
        update={"resume": "newest", "lr": 5e-4, "train_size": 39, "overwrite": True}
    )  # fmt: skip
    with pytest.raises(UserError, match=r"split.*lr") as caught:
        train(changed)
    assert "\n" not in str(caught.value)


def test_a_half_written_checkpoint_is_no_checkpoint(uninterrupted: Settings, tmp_path: Path) -> None:
    (tmp_path / "run" / PARTIAL_CHECKPOINTS / "checkpoint-2").mkdir(parents=True)
    with pytest.raises(UserError, match="no complete checkpoint"):
        train(uninterrupted.model_copy(update={"resume": "newest", "output_dir": str(tmp_path / "run")}))
