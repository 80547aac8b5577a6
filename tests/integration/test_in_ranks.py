"""Ranks that fail take down what they started."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from odb_example.benchmarks.ranks import RankError, in_ranks

pytestmark = [pytest.mark.integration, pytest.mark.ranks]


def leaves_a_child(rank: int, world_size: int, note: Path, ends: bool) -> None:
    """Start a process that would run for minutes; then raise, or stay too."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    note.write_text(str(child.pid))
    if ends:
        raise ValueError("over")
    time.sleep(300)


@pytest.mark.parametrize(("ends", "words"), [(True, "ValueError: over"), (False, "no answer in time")])
def test_a_failing_rank_leaves_no_process(tmp_path: Path, ends: bool, words: str) -> None:
    note = tmp_path / "pid"
    with pytest.raises(RankError, match=words):
        in_ranks(leaves_a_child, 1, note, ends, timeout_s=60 if ends else 20)
    child = int(note.read_text())
    deadline = time.monotonic() + 10
    while (alive := psutil.pid_exists(child)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not alive
