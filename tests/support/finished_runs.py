"""Two finished runs that may be compared, written once: tests that change files copy them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from support.run_folders import Plan, write_run

ODB = Plan()
STANDARD = Plan(loader="standard", speed=1.0, loss=1.03, skill=0.4)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with ``odb-enable`` and ``standard-none``; not to be changed."""
    root = tmp_path_factory.mktemp("finished")
    write_run(root / "odb-enable", ODB)
    write_run(root / "standard-none", STANDARD)
    return root


@pytest.fixture
def pair(finished: Path, tmp_path: Path) -> Callable[[], tuple[Path, Path]]:
    """A copy of both runs, to be changed at will."""

    def copy() -> tuple[Path, Path]:
        shutil.copytree(finished, tmp_path / "runs")
        return tmp_path / "runs" / "odb-enable", tmp_path / "runs" / "standard-none"

    return copy
