"""A build killed anywhere is taken up, and ends as the uninterrupted one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.hub_folders import write_recipe_root

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(("builder", "kills"), [("public", 2), ("miniature", 1)])
def test_killed_builds_resume_to_the_same_fingerprint_and_files(tmp_path: Path, builder: str, kills: int) -> None:
    root = write_recipe_root(tmp_path / "hub", rows=10)
    command = [sys.executable, "benchmarks/kill_resume.py", "--builder", builder, "--kills", str(kills)]
    done = subprocess.run(
        [*command, "--recipe-root", str(root)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    verdict = json.loads(done.stdout)
    assert verdict["kills"] == kills
    assert verdict["same_fingerprint"]
    assert verdict["same_files"]
    assert verdict["faults"] == []
    assert verdict["left_over"] == []
