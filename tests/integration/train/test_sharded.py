"""The same run under every way of spreading it over two ranks: losses, gradient norms, a whole checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.mixed_store import mixed_store
from support.training import small, train_each
from transformers import AutoModelForImageTextToText, AutoProcessor

from odb_example.train.records import StepRecord, read_steps

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("ranks"), pytest.mark.timeout(900)]

SHARDINGS = [
    pytest.param({"deepspeed": "zero2"}, id="zero2"),
    pytest.param({"deepspeed": "zero3"}, id="zero3"),
    pytest.param({"fsdp": "full_shard"}, id="fsdp2"),
]


@pytest.fixture(scope="module")
def mixed(miniature_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Image rows and, every third, a text-only one: some batches of one rank have no image."""
    return mixed_store(miniature_store, tmp_path_factory.mktemp("data") / "mixed", records=40, text_only_every=3)


LOADERS = ("standard", "odb")


def _runs(model: Path, data: Path, root: Path, sharding: dict[str, str]) -> dict[str, tuple[Path, list[StepRecord]]]:
    """Run folder and steps of both loaders, trained by the same two ranks."""
    runs = [
        small(
            model, data, root / loader, loader=loader, train_size=24, max_steps=5, num_processes=2,
            save_final_model=True, buffer_size=8, lr_scheduler_type="constant", warmup_ratio=0.0, **sharding,
        )
        for loader in LOADERS
    ]  # fmt: skip
    done = train_each(runs, ranks=2)
    assert done.returncode == 0, done.stderr[-3000:]
    return {loader: (root / loader, read_steps(root / loader, up_to=100)) for loader in LOADERS}


@pytest.fixture(scope="module")
def replicated(
    tiny_checkpoint: Path, mixed: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Path, list[StepRecord]]]:
    """The runs under DDP, which every sharded one is held against."""
    return _runs(tiny_checkpoint, mixed, tmp_path_factory.mktemp("ddp"), {})


def test_steps_hold_a_rank_with_images_and_one_without(replicated: dict[str, tuple[Path, list[StepRecord]]]) -> None:
    for _, steps in replicated.values():
        assert any(0 < step.text_only_groups < step.groups for step in steps)


@pytest.mark.parametrize("sharding", SHARDINGS)
def test_losses_and_gradient_norms_do_not_depend_on_sharding_and_the_checkpoint_is_whole(
    replicated: dict[str, tuple[Path, list[StepRecord]]],
    sharding: dict[str, str],
    tiny_checkpoint: Path,
    mixed: Path,
    tmp_path: Path,
) -> None:
    for loader, (folder, steps) in _runs(tiny_checkpoint, mixed, tmp_path, sharding).items():
        wanted_folder, wanted = replicated[loader]
        assert [step.samples for step in steps] == [step.samples for step in wanted]
        assert [step.loss for step in steps] == pytest.approx([step.loss for step in wanted], rel=1e-4)
        assert [step.grad_norm for step in steps] == pytest.approx([step.grad_norm for step in wanted], rel=1e-3)
        _assert_whole(folder, wanted_folder)


def _assert_whole(folder: Path, wanted: Path) -> None:
    """The folder loads alone, every weight in it, and the weights are those of the replicated run."""
    AutoProcessor.from_pretrained(folder)
    model, report = AutoModelForImageTextToText.from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["mismatched_keys"]
    replica = AutoModelForImageTextToText.from_pretrained(wanted).state_dict()
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, replica[name], rtol=0.0, atol=2e-3)
