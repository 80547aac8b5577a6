"""Every loader over 1 to 4 ranks: the fast part of what ``bench coverage`` does at length."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.unsent import take_one

from odb_example.benchmarks.coverage import Configuration, broken_promises, random_configuration
from odb_example.benchmarks.ranks import RankError, in_ranks
from odb_example.settings import LoaderKind

pytestmark = pytest.mark.integration

CHOSEN = {
    "windows-and-copies": Configuration(ranks=3, samples=40, accumulation_steps=4, buffer_size=8),
    "fewer-samples-than-ranks": Configuration(ranks=4, samples=3, accumulation_steps=2),
    "no-warm-up": Configuration(ranks=2, samples=120, no_warmup=True, buffer_size=64, num_workers=2),
    "each-alone": Configuration(ranks=2, samples=31, mix="over_budget", buffer_size=1, join=False),
    "standard": Configuration(kind="standard", ranks=3, samples=20, accumulation_steps=2),
    "group_by_length": Configuration(kind="group_by_length", ranks=2, samples=37),
    "batch_rebalance": Configuration(kind="batch_rebalance", ranks=2, samples=37, accumulation_steps=2),
    "oracle": Configuration(kind="oracle", ranks=4, samples=50),
}


@pytest.mark.parametrize("name", CHOSEN)
def test_every_sample_comes_once_an_epoch_and_the_ranks_stay_in_step(name: str) -> None:
    assert list(broken_promises(CHOSEN[name])) == []


@pytest.mark.parametrize("seed", range(4))
def test_random_configurations_keep_their_promises(seed: int) -> None:
    assert list(broken_promises(random_configuration(seed))) == []


@pytest.mark.parametrize(("kind", "full"), [("standard", "worker"), ("odb", "worker"), ("odb", "collate process")])
def test_a_batch_for_which_there_is_no_shared_memory_ends_the_run(kind: LoaderKind, full: str, tmp_path: Path) -> None:
    """Python's queue drops what it cannot send, and torch waits for it for ever."""
    with pytest.raises(RankError, match=r"DataLoader (worker|collate process) .* exited unexpectedly"):
        in_ranks(take_one, 1, kind, full, said := tmp_path / "stderr", timeout_s=120)
    (line,) = said.read_text().splitlines()
    assert line.startswith("odb-example: error: a loader process cannot hand on what it made: unable to ")
    assert line.endswith("--num-workers and --prefetch-factor")
