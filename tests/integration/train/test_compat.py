"""Each workaround: ODB as it comes shows the fault, and ours does not. The day bare ODB is sound, these tests fail."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from support.odb_ranks import (
    bare,
    bare_with_the_dataset_itself,
    killed_in_training,
    one_epoch,
    ours,
    samples,
    shares_memory,
    store_connections,
)  # fmt: skip

from odb_example import compat
from odb_example.benchmarks.ranks import RankError, in_ranks

pytestmark = pytest.mark.integration

GO = "upstream is sound now: remove the workaround from odb_example/compat.py"


def test_every_workaround_has_a_name_a_reason_and_applies_to_these_versions() -> None:
    assert len({workaround.name for workaround in compat.WORKAROUNDS}) == len(compat.WORKAROUNDS)
    assert all(workaround.why for workaround in compat.WORKAROUNDS)
    assert compat.active_workarounds() == list(compat.WORKAROUNDS), "a workaround is idle; " + GO


@pytest.mark.skipif(not compat.torch_pops_a_dataset_holder(), reason="torch < 2.14 takes the dataset as ODB gives it")
def test_a_dataset_handed_over_bare_kills_every_worker() -> None:
    with pytest.raises(RankError, match="exited unexpectedly"):
        in_ranks(bare_with_the_dataset_itself, 1, timeout_s=90)


def test_a_dataset_handed_over_in_a_list_is_read() -> None:
    (answer,) = in_ranks(one_epoch, 1, ours, samples(), {}, timeout_s=90)
    assert sorted(row for batch in answer.value for row in batch) == list(range(60))


def test_the_live_view_of_a_module_follows_it() -> None:
    """A copy of torch's module would keep its exit flag as it was, and a failed process would never end."""
    import torch.utils.data._utils as real

    view = compat._Live(real, worker="replaced")
    assert view.worker == "replaced"
    before = real.python_exit_status
    try:
        real.python_exit_status = True
        assert view.python_exit_status is True
    finally:
        real.python_exit_status = before


FAILS_IN_TRAINING = """
from support.odb_ranks import ours, samples
kept = []
for batch in ours(0, 1, samples()):
    kept.append(batch)
    raise SystemError("planted")
"""


def test_a_process_that_fails_in_training_ends() -> None:
    run = subprocess.run(
        [sys.executable, "-c", FAILS_IN_TRAINING], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert run.returncode == 1
    assert "SystemError: planted" in run.stderr


@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
def test_spawned_ranks_group_as_well(start_method: str) -> None:
    """They import everything afresh, so a workaround put in place by the parent is not theirs."""
    answers = in_ranks(one_epoch, 2, ours, samples(), {}, timeout_s=180, start_method=start_method)  # type: ignore[arg-type]
    assert sorted(row for answer in answers for batch in answer.value for row in batch) == list(range(60))


def test_the_collate_process_has_its_own_connection_to_the_store() -> None:
    for answer in in_ranks(store_connections, 2, ours, timeout_s=120):
        of_rank, of_children = answer.value
        assert of_children - of_rank, "the collate process talks through the trainer's socket"
    for answer in in_ranks(store_connections, 2, bare, timeout_s=120):
        of_rank, of_children = answer.value
        assert not of_children - of_rank, GO


def test_small_tensors_of_a_batch_take_no_shared_memory() -> None:
    for make, shared in ((ours, False), (bare, True)):
        (answer,) = in_ranks(shares_memory, 1, make, timeout_s=90)
        assert answer.value == {shared}, GO if shared else "the collate process shares memory for a few bytes"


def test_no_process_outlives_a_killed_rank(tmp_path: Path) -> None:
    assert not _alive_after_a_kill(ours, tmp_path / "ours")


def test_bare_odb_outlives_a_killed_rank(tmp_path: Path) -> None:
    """Nearly every time: a message that a worker left behind, and cannot explain any more, ends the process as well."""
    survivors: list[psutil.Process] = []
    for attempt in range(5):
        survivors = survivors or _alive_after_a_kill(bare, tmp_path / str(attempt))
    for process in survivors:
        process.kill()
    assert survivors, GO


def _alive_after_a_kill(make: object, pids: Path) -> list[psutil.Process]:
    """The child processes of a killed rank that live on, once its torch worker and ours would have noticed."""
    with pytest.raises(RankError, match="exit status -9"):
        in_ranks(killed_in_training, 1, make, 0, pids, timeout_s=90)
    left = [int(pid) for pid in pids.read_text().split()]
    assert len(left) >= 2
    deadline = time.monotonic() + 12 * compat.PARENT_CHECK_S
    while (alive := [pid for pid in left if psutil.pid_exists(pid)]) and time.monotonic() < deadline:
        time.sleep(0.2)
    return [psutil.Process(pid) for pid in alive]
