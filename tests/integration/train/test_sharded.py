"""The same run under every way of spreading it over two ranks: losses, gradient norms, a whole checkpoint."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch
from support.mixed_store import mixed_store
from support.training import run_command, small
from transformers import AutoModelForImageTextToText, AutoProcessor

from odb_example.settings import Settings
from odb_example.train.records import StepRecord, read_steps

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("ranks"), pytest.mark.timeout(900)]

needs_compiler = pytest.mark.skipif(
    not any(shutil.which(name) for name in (os.environ.get("CXX", "c++"), "c++", "g++")),
    reason="DeepSpeed on CPUs compiles a small op at first use, and there is no C++ compiler here",
)
SHARDINGS = [
    pytest.param({"deepspeed": "zero2"}, marks=needs_compiler, id="zero2"),
    pytest.param({"deepspeed": "zero3"}, marks=needs_compiler, id="zero3"),
    pytest.param({"fsdp": "full_shard"}, id="fsdp2"),
]


@pytest.fixture(scope="module")
def mixed(miniature_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Image rows and, every third, a text-only one: some batches of one rank have no image."""
    return mixed_store(miniature_store, tmp_path_factory.mktemp("data") / "mixed", records=40, text_only_every=3)


def _run(settings: Settings) -> list[StepRecord]:
    done = run_command("standard" if settings.loader == "standard" else "odb-enable", settings, timeout_s=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return read_steps(Path(str(settings.output_dir)), up_to=100)


def _settings(loader: str, model: Path, data: Path, output: Path) -> Settings:
    return small(
        model, data, output, loader=loader, train_size=24, max_steps=5, num_processes=2, save_final_model=True,
        buffer_size=8, lr_scheduler_type="constant", warmup_ratio=0.0,
    )  # fmt: skip


@pytest.fixture(scope="module", params=["standard", "odb"])
def replicated(
    request: pytest.FixtureRequest, tiny_checkpoint: Path, mixed: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Settings, list[StepRecord]]:
    """The run under DDP, which every sharded one is held against."""
    settings = _settings(request.param, tiny_checkpoint, mixed, tmp_path_factory.mktemp(request.param) / "ddp")
    steps = _run(settings)
    assert any(0 < step.text_only_groups < step.groups for step in steps), "no step mixes a rank with and one without"
    return settings, steps


@pytest.mark.parametrize("sharding", SHARDINGS)
def test_losses_and_gradient_norms_do_not_depend_on_sharding_and_the_checkpoint_is_whole(
    replicated: tuple[Settings, list[StepRecord]], sharding: dict[str, str], tmp_path: Path
) -> None:
    settings, wanted = replicated
    folder = tmp_path / "run"
    steps = _run(settings.model_copy(update={"output_dir": str(folder), "output_root": str(tmp_path), **sharding}))
    assert [step.samples for step in steps] == [step.samples for step in wanted]
    assert [step.loss for step in steps] == pytest.approx([step.loss for step in wanted], rel=1e-3)
    assert [step.grad_norm for step in steps] == pytest.approx([step.grad_norm for step in wanted], rel=2e-3)

    AutoProcessor.from_pretrained(folder)
    model, report = AutoModelForImageTextToText.from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["mismatched_keys"]
    replica = AutoModelForImageTextToText.from_pretrained(str(settings.output_dir)).state_dict()
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, replica[name], rtol=0.0, atol=2e-3)
