"""Known hazards of ODB 0.1.2 (shown bare where that is possible), and our stack free of each."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path

import psutil
import pytest
import torch
from odb.integrations.hf import configure_trainer, enable_odb
from support.odb_ranks import (
    bare,
    capped_rows,
    counted_epoch,
    default_timeout_s,
    killed_in_training,
    one_epoch,
    one_rank_is_slow,
    orders_of_epochs,
    ours,
    samples,
    several_epochs,
)  # fmt: skip
from torch.utils.data import DataLoader

from odb_example.benchmarks.ranks import RankError, free_port, in_ranks
from odb_example.benchmarks.synthetic import SyntheticSamples, collate
from odb_example.errors import UserError
from odb_example.train.loaders import build_loader

pytestmark = pytest.mark.integration


# --- processes that stay ----------------------------------------------------------------------------------------------


def test_bare_odb_leaves_processes_behind_or_dies_of_them() -> None:
    """Which one depends on when the garbage collector closes an earlier epoch's iterator."""
    try:
        left = [count for count, _ in in_ranks(several_epochs, 2, bare, 4, timeout_s=120)[0].value]
    except RankError as failure:
        assert "_set_worker_pids should be called only once" in str(failure)
    else:
        assert left[-1] > left[0]


def test_many_epochs_leave_no_process_and_no_descriptor() -> None:
    for answer in in_ranks(several_epochs, 2, ours, 12, timeout_s=240):
        processes, descriptors = zip(*answer.value, strict=True)
        assert set(processes) == {0}
        assert descriptors[-1] <= descriptors[2] + 2
        assert answer.left_running == []


def test_a_killed_rank_ends_the_others_and_leaves_no_orphan(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    with pytest.raises(RankError) as failure:
        in_ranks(killed_in_training, 2, ours, 1, pids, timeout_s=120)
    assert "rank 1: ended with exit status -9" in str(failure.value)
    assert "rank 0: Traceback" in str(failure.value), "the survivor hung"
    orphans = [int(pid) for pid in pids.read_text().split()]
    deadline = time.monotonic() + 30
    while any(map(psutil.pid_exists, orphans)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not [pid for pid in orphans if psutil.pid_exists(pid)]


# --- bounds of time ---------------------------------------------------------------------------------------------------


def test_the_jobs_own_time_limit_bounds_collectives_on_cpu() -> None:
    environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    for answer in in_ranks(default_timeout_s, 2, environment, timeout_s=120):
        started, by_training_arguments = answer.value
        assert started == 7
        assert by_training_arguments > 7, "TrainingArguments passes its time-out on now: rely on it"


def test_bare_odb_gives_up_on_a_slow_rank() -> None:
    """Its bound is 60 s; 2 s here, against a rank that needs 5."""
    with pytest.raises(RankError, match="exited unexpectedly"):
        in_ranks(one_rank_is_slow, 2, 2, bare, timeout_s=120)


def test_a_slow_rank_is_waited_for() -> None:
    assert sum(answer.value for answer in in_ranks(one_rank_is_slow, 2, 2, ours, timeout_s=120)) == 40


# --- refused ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_other_start_methods_are_refused_over_ranks_in_one_line(start_method: str) -> None:
    with pytest.raises(UserError, match=f"cannot group over 2 ranks with {start_method} workers") as refusal:
        ours(0, 2, samples(), multiprocessing_context=start_method)
    assert "\n" not in str(refusal.value)


def test_one_rank_groups_with_spawned_workers() -> None:
    (answer,) = in_ranks(one_epoch, 1, ours, samples(20), {"multiprocessing_context": "spawn"}, timeout_s=180)
    assert sorted(row for batch in answer.value for row in batch) == list(range(20))


def test_no_workers_are_refused() -> None:
    with pytest.raises(UserError, match="at least one loader process"):
        ours(0, 1, samples(), num_workers=0)


def test_a_loader_without_odb_says_what_it_lacks() -> None:
    loader = build_loader(
        "odb", samples(), collate, rank=0, world_size=1, seed=0, token_budget=64, buffer_size=8, max_patches=0,
        fixed_batch_size=1, num_workers=1, prefetch_factor=8, join=True, group_order_flip="none", no_warmup=False,
        accumulation_steps=1,
    )  # fmt: skip
    with pytest.raises(UserError, match="no ODB yet"):
        next(iter(loader))


# --- through transformers' Trainer ------------------------------------------------------------------------------------


class _Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor, **others: object) -> dict[str, torch.Tensor]:
        return {"loss": self.weight * input_ids.float().mean()}


def _trainer(folder: Path) -> object:
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=1, dataloader_num_workers=1, use_cpu=True, report_to=[],
        remove_unused_columns=False, disable_tqdm=True, save_strategy="no",
    )  # fmt: skip
    return Trainer(model=_Model(), args=arguments, train_dataset=samples(), data_collator=collate)


def test_the_loader_that_odbs_guide_takes_is_refused_and_ours_is_taken(tmp_path: Path) -> None:
    trainer = _trainer(tmp_path)
    with pytest.raises(ValueError, match="batch_size=1, got None"):
        enable_odb(trainer, train_dataloader=trainer.get_train_dataloader(), token_budget=64)  # type: ignore[attr-defined]
    trainer = _trainer(tmp_path)
    loader = ours(0, 1, samples())
    enable_odb(trainer, train_dataloader=loader, sample_budget=60, **loader.options.arguments())
    trainer.train()  # type: ignore[attr-defined]
    assert trainer.state.total_data_step == 60  # type: ignore[attr-defined]


class _Contained(DataLoader):
    """A stand-in for torch's own class, which bare ODB would patch."""


def test_lengths_of_other_loaders_survive(tmp_path: Path) -> None:
    bare_loader = _Contained(samples(), batch_size=1, num_workers=1, collate_fn=collate)
    before = len(bare_loader)
    configure_trainer(_trainer(tmp_path), dataloader=bare_loader, sample_budget=60, token_budget=64)
    assert before == 60
    with pytest.raises(TypeError):
        len(_Contained(samples()))  # every loader of that type

    configure_trainer(_trainer(tmp_path), dataloader=ours(0, 1, samples()), sample_budget=60, token_budget=64)
    assert len(DataLoader(samples())) == 60


# --- what travels with a batch ----------------------------------------------------------------------------------------


def test_bare_odb_cannot_count_a_batch_that_is_no_dict() -> None:
    """ODB adds its counts to dicts alone; the trainer then counts one rank's rows as everybody's."""
    for answer in in_ranks(counted_epoch, 2, "BatchFeature", bare, timeout_s=90):
        assert {kind for kind, _, _ in answer.value} == {"BatchFeature"}


def test_bare_odb_passes_batches_without_counts_on() -> None:
    for answer in in_ranks(counted_epoch, 2, "no counts", bare, timeout_s=90):
        assert {total for _, _, total in answer.value} == {None}


@pytest.mark.parametrize(
    ("kind", "words"), [("BatchFeature", "returned a BatchFeature"), ("no counts", "dropped total_batch_size")]
)
def test_a_collator_that_loses_odbs_counts_is_refused(kind: str, words: str) -> None:
    with pytest.raises(RankError, match=words):
        in_ranks(counted_epoch, 1, kind, ours, timeout_s=90)


# --- order and coverage -----------------------------------------------------------------------------------------------


def test_bare_odb_repeats_one_order_over_ranks() -> None:
    orders = in_ranks(orders_of_epochs, 2, bare, 3, timeout_s=120)[0].value
    assert sorted(orders[0]) == sorted(orders[1]) == sorted(orders[2])


def test_every_epoch_over_ranks_is_shuffled_anew() -> None:
    orders = in_ranks(orders_of_epochs, 2, ours, 3, timeout_s=120)[0].value
    assert all(sorted(first) != sorted(second) for first, second in pairwise(orders))


def test_bare_odb_repeats_samples_where_the_ranks_do_not_divide_them() -> None:
    answers = in_ranks(one_epoch, 2, bare, samples(33), {}, timeout_s=90)
    rows = [row for answer in answers for batch in answer.value for row in batch]
    assert len(rows) == 34
    assert len(set(rows)) == 33


@pytest.mark.parametrize(("count", "ranks"), [(33, 2), (10, 3), (3, 4), (1, 2)])
def test_samples_that_the_ranks_do_not_divide_come_once(count: int, ranks: int) -> None:
    answers = in_ranks(one_epoch, ranks, ours, samples(count), {}, timeout_s=120)
    rows = [row for answer in answers for batch in answer.value for row in batch]
    assert sorted(row for row in rows if row >= 0) == list(range(count))
    assert rows.count(-1) == -count % ranks
    assert len({len(answer.value) for answer in answers}) == 1


def test_bare_odb_drops_items_without_tokens_in_silence() -> None:
    (answer,) = in_ranks(one_epoch, 1, bare, SyntheticSamples([5, 0, 5, 0]), {"sampler": None}, timeout_s=90)
    assert sorted(row for batch in answer.value for row in batch) == [0, 2]


def test_an_item_without_tokens_is_refused_by_its_position() -> None:
    with pytest.raises(RankError, match="sample 1 has no tokens"):
        in_ranks(one_epoch, 1, ours, SyntheticSamples([5, 0, 5]), {}, timeout_s=90)


def test_bare_odb_ignores_a_patch_cap_over_uncounted_patches() -> None:
    (answer,) = in_ranks(capped_rows, 1, bare, False, timeout_s=90)
    assert answer.value * 40 > 100


def test_a_patch_cap_holds_or_is_refused() -> None:
    (answer,) = in_ranks(capped_rows, 1, ours, True, timeout_s=90)
    assert answer.value == 2
    with pytest.raises(RankError, match="has images but no odb_n_patches"):
        in_ranks(capped_rows, 1, ours, False, timeout_s=90)
