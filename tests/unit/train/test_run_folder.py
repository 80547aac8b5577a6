"""Who may write into a run folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from odb_example.errors import UserError
from odb_example.settings import Settings
from odb_example.train.run_folder import (
    DECIDING,
    RunIdentity,
    checkpoints_of,
    claim,
    forget_the_former_model,
    run_folder,
)

pytestmark = pytest.mark.unit

IDENTITY = RunIdentity(
    model="m", data="d", data_fingerprint="f", split="s", objective="token", loader="odb"
)  # fmt: skip


def test_run_folders_are_named_after_loader_and_integration() -> None:
    assert run_folder(Settings(output_root="o")) == Path("o/odb-enable")
    assert run_folder(Settings(output_root="o", odb_integration="manual")) == Path("o/odb-manual")
    assert run_folder(Settings(output_root="o", loader="standard")) == Path("o/standard-none")
    assert run_folder(Settings(output_root="o", loader="oracle", output_dir="x")) == Path("x")


@pytest.mark.parametrize("field", ["model", "data_fingerprint", "split", "objective", "loader"])
def test_a_folder_of_another_identity_is_refused_by_the_name_of_what_differs(tmp_path: Path, field: str) -> None:
    claim(tmp_path, IDENTITY, Settings())
    with pytest.raises(UserError, match=field):
        claim(tmp_path, replace(IDENTITY, **{field: "other"}), Settings())
    claim(tmp_path, replace(IDENTITY, **{field: "other"}), Settings(overwrite=True))


def test_the_same_data_elsewhere_is_the_same_data(tmp_path: Path) -> None:
    claim(tmp_path, IDENTITY, Settings())
    claim(tmp_path, replace(IDENTITY, data="moved"), Settings())


def test_a_fresh_start_never_orphans_checkpoints_silently(tmp_path: Path) -> None:
    claim(tmp_path, IDENTITY, Settings())
    (tmp_path / "checkpoint-9").mkdir()
    (tmp_path / "checkpoint-10").mkdir()
    with pytest.raises(UserError, match="checkpoint-10"):
        claim(tmp_path, IDENTITY, Settings())
    claim(tmp_path, IDENTITY, Settings(resume="newest"))
    assert [path.name for path in checkpoints_of(tmp_path)] == ["checkpoint-9", "checkpoint-10"]
    claim(tmp_path, IDENTITY, Settings(overwrite=True))
    assert checkpoints_of(tmp_path) == []


def test_the_settings_of_a_run_repeat_it(tmp_path: Path) -> None:
    settings = Settings(lr=3e-4, trainer={"adam_beta2": "0.95"}, loader="standard", overwrite=True)
    claim(tmp_path, IDENTITY, settings)
    again = Settings(**yaml.safe_load((tmp_path / "run_settings.yaml").read_text()))
    assert again == settings.model_copy(update={"overwrite": False})


def _finished(folder: Path, settings: Settings) -> None:
    claim(folder, IDENTITY, settings)
    (folder / "train_summary_odb.json").write_text("{}")


@pytest.mark.parametrize(("name", "value"), [("lr", 1e-4), ("max_steps", 3), ("trainer", {"adam_beta2": "0.9"})])
def test_a_finished_run_of_other_settings_is_replaced_only_when_told(tmp_path: Path, name: str, value: Any) -> None:
    _finished(tmp_path, Settings())
    claim(tmp_path, IDENTITY, Settings(num_workers=7))
    with pytest.raises(UserError, match=rf"other settings: {name} \(.* there, .* now\); .*--overwrite"):
        claim(tmp_path, IDENTITY, Settings(**{name: value}))
    claim(tmp_path, IDENTITY, Settings(**{name: value}, resume="newest"))
    claim(tmp_path, IDENTITY, Settings(**{name: value}, overwrite=True))


def test_every_deciding_setting_is_one_and_is_compared(tmp_path: Path) -> None:
    assert set(DECIDING) <= set(Settings.model_fields)
    _finished(tmp_path, Settings(lora_target_modules="q_proj", trainer={"adam_beta2": "0.9"}))
    claim(tmp_path, IDENTITY, Settings(lora_target_modules="q_proj", trainer={"adam_beta2": "0.9"}))


@pytest.mark.parametrize("another_is_saved", [True, False])
def test_what_was_said_of_the_former_model_goes_with_it(tmp_path: Path, another_is_saved: bool) -> None:
    for name in ("eval_out_hf_valloss", "mmmu_mc_likelihood_hf", "adapter", "other"):
        (tmp_path / name).mkdir()
    for name in ("config.json", "model-00001-of-00002.safetensors", "model.safetensors.index.json", "notes.txt"):
        (tmp_path / name).touch()
    forget_the_former_model(tmp_path, another_is_saved=another_is_saved)
    left = {"other", "notes.txt"}
    model = {"config.json", "model-00001-of-00002.safetensors", "model.safetensors.index.json"}
    assert {path.name for path in tmp_path.iterdir()} == (left | model if another_is_saved else left)
