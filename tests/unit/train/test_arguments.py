"""TrainingArguments from settings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from odb_example.errors import UserError
from odb_example.settings import Settings
from odb_example.train.arguments import Precision, build_arguments, deepspeed_config, precision, sharding_of

pytestmark = pytest.mark.unit

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
FP32 = Precision(torch.float32, bf16=False, fp16=False)


def _arguments(tmp_path: Path, **changes: object):  # type: ignore[no-untyped-def]
    return build_arguments(
        Settings(**changes), device=CPU, checkpoints=tmp_path, deepspeed=None, precision=FP32, total_progress=100
    )


def test_precision_follows_the_device_and_weights_stay_fp32_without_deepspeed() -> None:
    assert precision(Settings(), CPU, "none") == FP32
    assert precision(Settings(), GPU, "none") == Precision(torch.float32, bf16=True, fp16=False)
    assert precision(Settings(), GPU, "zero") == Precision(torch.bfloat16, bf16=True, fp16=False)
    assert precision(Settings(fp16=True), GPU, "fsdp") == Precision(torch.float32, bf16=False, fp16=True)
    assert precision(Settings(bf16=True), CPU, "none").name == "bf16"


def test_further_training_arguments_arrive_with_their_own_types(tmp_path: Path) -> None:
    arguments = _arguments(tmp_path, trainer={"adam_beta2": "0.95", "weight_decay": "1e-2", "optim": "adamw_torch"})
    assert (arguments.adam_beta2, arguments.weight_decay, str(arguments.optim.value)) == (0.95, 0.01, "adamw_torch")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"adam_beta_2": "0.9"}, "did you mean adam_beta2"),
        ({"learning_rate": "1"}, "use --lr"),
        ({"weight_decay": "much"}, "weight_decay"),
    ],
)
def test_wrong_training_arguments_are_one_line_with_the_mend(tmp_path: Path, given: dict, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        _arguments(tmp_path, trainer=given)
    assert "\n" not in str(caught.value)


def test_the_shipped_deepspeed_files_are_the_stages_they_say() -> None:
    zero2, zero3 = (deepspeed_config(Settings(deepspeed=name), CPU, 2) for name in ("zero2", "zero3"))
    assert (sharding_of(zero2, None), sharding_of(zero3, None)) == ("zero", "zero3")
    assert zero2 is not None
    assert zero3 is not None
    assert zero2["zero_optimization"]["allgather_bucket_size"] == 536_870_912
    assert zero2["zero_optimization"]["overlap_comm"] is False
    assert zero2["fp16"] == {
        "enabled": "auto", "loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 16, "hysteresis": 2,
        "min_loss_scale": 1,
    }  # fmt: skip
    assert zero3["zero_optimization"]["stage3_gather_16bit_weights_on_model_save"] is True


def test_deepspeed_is_off_on_cpus_and_where_it_is_said() -> None:
    assert deepspeed_config(Settings(), CPU, 2) is None
    assert deepspeed_config(Settings(deepspeed="none"), GPU, 2) is None
    assert deepspeed_config(Settings(), GPU, 1) is None
    assert sharding_of(deepspeed_config(Settings(), GPU, 2), None) == "zero"


def test_a_deepspeed_file_of_ones_own_is_read(tmp_path: Path) -> None:
    own = tmp_path / "own.json"
    own.write_text(json.dumps({"zero_optimization": {"stage": 1}}))
    assert deepspeed_config(Settings(deepspeed=str(own)), CPU, 2) == {"zero_optimization": {"stage": 1}}
    with pytest.raises(UserError, match="cannot read DeepSpeed config"):
        deepspeed_config(Settings(deepspeed=str(tmp_path / "missing.json")), CPU, 2)


def test_fsdp_words_become_an_fsdp2_configuration(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="hybrid"):
        _arguments(tmp_path, fsdp="hybrid")
