"""Which checkpoint, what it is, and where its results go."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from odb_example.errors import UserError
from odb_example.evaluate.checkpoint import (
    Checkpoint,
    find_checkpoint,
    output_folder,
    refuse_other_results,
    train_summary,
)
from odb_example.settings import Settings

pytestmark = pytest.mark.unit


def model_folder(path: Path) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text("{}")
    (path / "model.safetensors").write_bytes(b"weights")
    return path


def test_without_a_name_it_is_the_odb_run_of_the_output_root(tmp_path: Path) -> None:
    model_folder(tmp_path / "odb-enable")
    assert find_checkpoint(Settings(output_root=str(tmp_path))).folder == tmp_path / "odb-enable"


def test_a_missing_checkpoint_is_named_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"odb-enable does not exist; train one"):
        find_checkpoint(Settings(output_root=str(tmp_path)))


def test_a_run_folder_without_its_model_is_named_with_the_mend(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with pytest.raises(UserError, match=r"holds no model \(no config.json\); train with --save-final-model"):
        find_checkpoint(Settings(checkpoint=str(tmp_path / "run")))


def test_a_hub_id_is_no_folder() -> None:
    assert find_checkpoint(Settings(checkpoint="Qwen/Qwen3-VL-2B-Instruct")).folder is None


def test_the_fingerprint_follows_weights_and_settings_and_nothing_else(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "run")
    checkpoint = Checkpoint("run", folder)
    first = checkpoint.fingerprint()
    (folder / "steps.jsonl").write_text("{}\n")
    (folder / "train_summary_odb.json").write_text("{}")
    (folder / "eval_out_hf_valloss").mkdir()
    assert checkpoint.fingerprint() == first
    (folder / "preprocessor_config.json").write_text('{"size": 1}')
    second = checkpoint.fingerprint()
    (folder / "model.safetensors").write_bytes(b"Weights")
    assert len({first, second, checkpoint.fingerprint()}) == 3


def test_the_summary_is_found_beside_the_model_and_above_an_intermediate_checkpoint(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "run")
    model_folder(folder / "checkpoint-40")
    (folder / "train_summary_odb.json").write_text(json.dumps({"split": {"split_mode": "prefix"}}))
    (folder / "run_identity.json").write_text(json.dumps({"data_fingerprint": "tmdb:x"}))
    for place in (folder, folder / "checkpoint-40"):
        summary = train_summary(Checkpoint("x", place))
        assert summary == {"split": {"split_mode": "prefix"}, "data_fingerprint": "tmdb:x"}


def test_a_foreign_model_has_no_summary(tmp_path: Path) -> None:
    assert train_summary(Checkpoint("x", model_folder(tmp_path / "deep" / "run"))) is None
    assert train_summary(Checkpoint("hub/id", None)) is None


def test_two_summaries_in_one_folder_are_refused(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "run")
    for loader in ("odb", "standard"):
        (folder / f"train_summary_{loader}.json").write_text('{"split": {}}')
    with pytest.raises(UserError, match=r"train_summary_odb.json, train_summary_standard.json"):
        train_summary(Checkpoint("x", folder))


def test_a_summary_without_its_split_is_refused(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "run")
    (folder / "train_summary_odb.json").write_text('{"loader": "odb"}')
    with pytest.raises(UserError, match=r"train_summary_odb.json holds no split"):
        train_summary(Checkpoint("x", folder))


def test_results_go_where_asked_else_under_the_root_else_into_the_checkpoint(tmp_path: Path) -> None:
    checkpoint = Checkpoint(str(tmp_path), tmp_path)
    rooted = Settings(eval_output_root=str(tmp_path / "root"))
    assert output_folder(rooted, checkpoint, "name", str(tmp_path / "asked")) == tmp_path / "asked"
    assert output_folder(rooted, checkpoint, "name", None) == tmp_path / "root" / "name"
    assert output_folder(Settings(), checkpoint, "name", None) == tmp_path / "name"
    hub = output_folder(Settings(output_root=str(tmp_path)), Checkpoint("org/model", None), "name", None)
    assert hub == tmp_path / "org--model" / "name"


def test_results_of_another_checkpoint_are_not_replaced(tmp_path: Path) -> None:
    first, second = (Checkpoint(str(tmp_path / name), tmp_path / name) for name in ("one", "two"))
    (tmp_path / "eval_results.json").write_text(json.dumps({"checkpoint": str(tmp_path / "one")}))
    refuse_other_results(tmp_path, "eval_results.json", first, overwrite=False)
    refuse_other_results(tmp_path, "eval_results.json", second, overwrite=True)
    with pytest.raises(UserError, match=r"holds the results of checkpoint .*one, not of .*two"):
        refuse_other_results(tmp_path, "eval_results.json", second, overwrite=False)
