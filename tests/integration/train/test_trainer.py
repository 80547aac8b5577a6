"""`train` on one process: what it trains, what it leaves, what it refuses."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.mixed_store import mixed_store
from support.training import small
from transformers import AutoModelForImageTextToText, AutoProcessor

from odb_example.errors import UserError
from odb_example.files import read_json
from odb_example.train.records import read_steps
from odb_example.train.trainer import train

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("ranks")]

SUMMARY_FIELDS = {
    "loader", "global_step", "emitted_samples", "mean_emitted_samples_per_step",
    "effective_emitted_samples_per_second", "trainer_metrics", "world_size", "split", "config", "objective",
    "tokens_per_second", "padding_ratio", "fill", "steps", "repeated_rows",
}  # fmt: skip
CONFIG_FIELDS = {
    "max_length", "image_max_pixels", "processor_backend", "num_workers", "prefetch_factor", "fixed_batch_size",
    "token_budget", "buffer_size", "loss_scaling", "join", "deepspeed", "gradient_checkpointing", "use_cache",
    "trainable_keywords",
}  # fmt: skip
SPLIT_FIELDS = {
    "split_mode", "train_size_arg", "val_size", "split_seed", "train_indices_preview", "eval_indices_preview",
}  # fmt: skip


@pytest.mark.parametrize(
    ("loader", "integration"),
    [
        ("odb", "enable"),
        ("odb", "manual"),
        ("standard", "enable"),
        ("group_by_length", "enable"),
        ("oracle", "enable"),
        ("batch_rebalance", "enable"),
    ],
)
def test_every_loader_trains_each_sample_once_an_epoch_and_leaves_its_files(
    tiny_checkpoint: Path, miniature_store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    loader: str, integration: str,
) -> None:  # fmt: skip
    settings = small(
        tiny_checkpoint, miniature_store, tmp_path / "run", loader=loader, odb_integration=integration,
        num_train_epochs=2.0, fixed_batch_size=1 if loader == "odb" else 4,
    )  # fmt: skip
    result = train(settings)
    folder = tmp_path / "run"
    summary = read_json(folder / f"train_summary_{loader}.json")
    assert (summary["emitted_samples"], summary["repeated_rows"]) == (80, 0)
    assert summary == json.loads(json.dumps(result.summary))
    assert summary.keys() >= SUMMARY_FIELDS
    assert summary["config"].keys() >= CONFIG_FIELDS
    assert summary["split"].keys() >= SPLIT_FIELDS
    steps = read_steps(folder, up_to=1000)
    assert len(steps) == summary["global_step"] == result.global_step
    assert [step.epoch for step in steps][-1] == 2.0
    assert isinstance(read_json(folder / f"train_metrics_{loader}.json"), list)
    assert (folder / "run_settings.yaml").is_file()
    out = capsys.readouterr().out.splitlines()
    assert json.loads(out[0])["loader"] == loader
    assert json.loads(out[-1].removeprefix("[odb-mm-mix-summary] ")) == summary
    assert len(out) == 2, "stdout is for the opening JSON and the marker line"


@pytest.mark.parametrize("loader", ["odb", "standard"])
def test_with_a_step_cap_the_schedule_ends_at_the_cap_and_never_comes_back_up(
    tiny_checkpoint: Path, miniature_store: Path, tmp_path: Path, loader: str
) -> None:
    settings = small(
        tiny_checkpoint, miniature_store, tmp_path / "run", loader=loader, max_steps=8, warmup_ratio=0.2,
    )  # fmt: skip
    train(settings)
    rates = [step.lr for step in read_steps(tmp_path / "run", up_to=100)]
    assert len(rates) == 8
    peak = rates.index(max(rates))
    assert peak <= 2
    assert all(later < earlier for earlier, later in zip(rates[peak:], rates[peak + 1 :], strict=False))
    assert rates[-1] == pytest.approx(settings.lr * 0.5 * (1 + math.cos(math.pi * 5 / 6)))


def test_evaluation_during_training_leaves_training_as_it_was_without(
    tiny_checkpoint: Path, miniature_store: Path, tmp_path: Path
) -> None:
    for name, every in (("with", 3), ("without", 0)):
        train(small(tiny_checkpoint, miniature_store, tmp_path / name, eval_steps=every, save_final_model=True))
    evaluated = [row for row in read_json(tmp_path / "with" / "train_metrics_odb.json") if "eval_loss" in row]
    assert evaluated
    assert all(row["eval_samples"] == 15 and row["eval_loss"] > 0 for row in evaluated)
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("with", "without"))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_a_run_without_any_image_trains(tiny_checkpoint: Path, miniature_store: Path, tmp_path: Path) -> None:
    texts = mixed_store(miniature_store, tmp_path / "texts", records=24, text_only_every=1)
    result = train(small(tiny_checkpoint, texts, tmp_path / "run", train_size=20))
    assert result.summary["totals"]["text_only_groups"] == result.summary["totals"]["groups"] > 0


@pytest.mark.parametrize("changes", [{"lora_r": 4}, {"trainable_keywords": "merger"}, {"freeze_vision_tower": True}])
def test_a_partly_trained_model_is_saved_whole_and_only_its_part_has_moved(
    tiny_checkpoint: Path, miniature_store: Path, tmp_path: Path, changes: dict[str, object]
) -> None:
    settings = small(
        tiny_checkpoint, miniature_store, tmp_path / "run", train_size=16, save_final_model=True, **changes
    )  # fmt: skip
    train(settings)
    before, after = load_file(tiny_checkpoint / "model.safetensors"), load_file(tmp_path / "run" / "model.safetensors")
    assert before.keys() == after.keys()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved
    if "trainable_keywords" in changes:
        assert all("merger" in name for name in moved)
    if "freeze_vision_tower" in changes:
        assert not any("visual" in name and "merger" not in name for name in moved)
    AutoModelForImageTextToText.from_pretrained(tmp_path / "run")


def test_a_saved_model_loads_from_its_folder_with_the_image_cap_it_was_trained_with(
    tiny_checkpoint: Path, miniature_store: Path, tmp_path: Path
) -> None:
    train(small(
        tiny_checkpoint, miniature_store, tmp_path / "run", train_size=16, image_max_pixels=32 * 32 * 9,
        save_final_model=True,
    ))  # fmt: skip
    processor = AutoProcessor.from_pretrained(tmp_path / "run")
    assert processor.image_processor.get_number_of_image_patches(1000, 1000, {}) * 16**2 <= 32 * 32 * 9
    assert processor.chat_template


def test_what_cannot_be_is_refused_in_one_line_before_the_first_step(
    tiny_checkpoint: Path, miniature_store: Path, tmp_path: Path
) -> None:
    def refused(words: str, **changes: object) -> None:
        with pytest.raises(UserError, match=words) as caught:
            train(small(tiny_checkpoint, miniature_store, tmp_path / "run", **changes))
        assert "\n" not in str(caught.value)

    refused("ODB's metadata", loader="standard", loss_scaling="odb-exact")
    refused("fixed-batch-size", fixed_batch_size=4)
    refused("more than one rank", fsdp="full_shard")
    refused("no complete checkpoint", resume="newest")
    refused("does not exist", model=str(tmp_path / "missing"))
    refused("no data store", data=str(tmp_path / "missing"))
    refused("both", source_data=str(miniature_store), local_data=str(miniature_store))
    assert not (tmp_path / "run").exists()


def test_staging_copies_the_store_once_and_trains_from_the_copy(
    tiny_checkpoint: Path, miniature_store: Path, tmp_path: Path
) -> None:
    settings = small(
        tiny_checkpoint, miniature_store, tmp_path / "run", train_size=16, source_data=str(miniature_store),
        local_data=str(tmp_path / "local"),
    )  # fmt: skip
    assert train(settings).summary["data"]["path"] == str(tmp_path / "local")
    stamp = (tmp_path / "local" / "records.jsonl").stat().st_mtime_ns
    train(settings)
    assert (tmp_path / "local" / "records.jsonl").stat().st_mtime_ns == stamp
