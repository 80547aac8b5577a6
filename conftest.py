"""Fixtures of every tier: small real things, built once a session."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import pytest_randomly

pytest_plugins = ["odb_example.testing.plugin", "odb_example.testing.snapshots", "pytester"]

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# The commands that tests start find the checkout too, whether or not it is installed.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))

# DeepSpeed offers pytest-randomly a seeder; to ask for it is to import DeepSpeed, for seconds, into every process.
pytest_randomly.entrypoint_reseeds = []


@pytest.fixture(scope="session", autouse=True)
def _temporary_files_stay_within(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What tests, and the processes they start and kill, put into the temporary folder goes with pytest's own."""
    folder = str(tmp_path_factory.mktemp("t"))  # short: sockets lie in it, and their paths have a limit
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        yield


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Qwen3-VL with its processor, saved as an ordinary checkpoint."""
    from odb_example.models.miniature import build_tiny_checkpoint

    return build_tiny_checkpoint(tmp_path_factory.mktemp("model") / "tiny", seed=0)


@pytest.fixture(scope="session")
def miniature_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A miniature MM-Mix store of 300 records, its benchmark in ``benchmark/`` beside the records."""
    from odb_example.data.miniature import build_miniature

    folder = tmp_path_factory.mktemp("data") / "mix"
    build_miniature(folder, records=300, seed=0, benchmark_path=folder / "benchmark")
    return folder
