"""The user's path: the installed package, another repository, ``pytest --pyargs odb_example.conformance``."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import odb_example

pytestmark = pytest.mark.integration

MINE = """
from dataclasses import replace
from odb_example.conformance import Pipeline
from odb_example.conformance.examples import text_only

def build():
    return text_only.build()

def times_world(model, batch, totals):
    return text_only.loss(model, batch, totals) * totals.world_size

def nothing():
    return Pipeline(name="nothing")

def broken():
    raise ValueError("no checkpoint at runs/last")

def faulty():
    return replace(text_only.build(), loss=times_world)
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as a wheel leaves it: the files, and metadata with the entry point, no checkout."""
    package = Path(odb_example.__file__).parent
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(package, folder / "odb_example", ignore=shutil.ignore_patterns("__pycache__"))
    info = folder / "odb_example-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: odb-example\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("[pytest11]\nodb-example = odb_example.testing.entry\n")
    return folder


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Somebody else's repository."""
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers -p no:cacheprovider -p no:randomly\n")
    return tmp_path


def run(site: Path, repository: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("ODB_PIPELINE", None)
    environment.pop("CI", None)  # there pytest repeats whole messages in its summary
    environment |= variables
    return subprocess.run(
        [sys.executable, *arguments], cwd=repository, env=environment, capture_output=True, text=True, timeout=300
    )


def packaged(*arguments: str) -> list[str]:
    return ["-m", "pytest", "--pyargs", "odb_example.conformance", *arguments]


def test_a_fault_is_named_once_and_with_the_line_that_repeats_it(site: Path, repository: Path) -> None:
    ended = run(site, repository, *packaged("--pipeline", "mine:faulty"))
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "2 failed" in ended.stdout
    assert ended.stdout.count("likely: the loss is multiplied by the world size") == 1
    line = next(line for line in ended.stdout.splitlines() if line.startswith("repeat: ") and "loss_is" in line)
    assert "--pyargs odb_example.conformance -k 'test_conformance[loss_is_the_stated_mean]'" in line
    assert "--pipeline mine:faulty" in line


def test_a_deviation_is_expected_and_strict(site: Path, repository: Path) -> None:
    known = repository / "known.txt"
    known.write_text("loss_is_the_stated_mean   DDP averages\ngradient_is_that_of_the_mean   the same\n")
    with_fault = run(site, repository, *packaged("--pipeline", "mine:faulty", "--deviations", "known.txt"))
    assert with_fault.returncode == 0, with_fault.stdout
    assert "2 xfailed" in with_fault.stdout
    known.write_text(known.read_text() + "truncation_is_whole\tno images yet\n")
    mended = run(site, repository, *packaged("--pipeline", "mine:build", "--deviations", "known.txt", "-p", "no:xdist"))
    assert mended.returncode == 1
    assert "3 failed" in mended.stdout
    assert mended.stdout.count("[XPASS(strict)]") >= 2
    assert "known deviation (no images yet) and is now not applicable; remove its line" in mended.stdout


def test_a_deviation_that_names_no_check_is_one_line(site: Path, repository: Path) -> None:
    (repository / "known.txt").write_text("los_is_the_stated_mean   DDP averages\n")
    ended = run(site, repository, *packaged("--pipeline", "mine:build", "--deviations", "known.txt"))
    assert ended.returncode == 4
    assert "no check is called los_is_the_stated_mean; did you mean loss_is_the_stated_mean?" in ended.stderr


@pytest.mark.parametrize(
    ("build", "words"),
    [("nothing", "no check applies"), ("broken", "ValueError: no checkpoint at runs/last (mine.py, line 16)")],
)
def test_a_pipeline_that_shows_nothing_is_no_success(site: Path, repository: Path, build: str, words: str) -> None:
    for arguments in (packaged(), ["-m", "odb_example.run", "check"]):
        ended = run(site, repository, *arguments, "--pipeline", f"mine:{build}")
        assert ended.returncode == 2, ended.stdout + ended.stderr
        assert (ended.stdout + ended.stderr).count(words) == 1


def test_the_command_prints_the_table_without_a_checkout(site: Path, repository: Path) -> None:
    ended = run(site, repository, "-m", "odb_example.run", "check", ODB_PIPELINE="mine:faulty")
    assert ended.returncode == 1, ended.stderr
    assert "Conformance of a text-only stack" in ended.stdout
    assert "the loss is multiplied by the world size" in ended.stdout


def test_our_options_stay_out_of_a_run_that_does_not_name_the_packaged_checks(site: Path, repository: Path) -> None:
    (repository / "test_mine.py").write_text("def test_mine(): pass\n")
    plain = run(site, repository, "-m", "pytest")
    assert plain.returncode == 0, plain.stdout + plain.stderr
    assert "testing: pipeline" not in plain.stdout
    refused = run(site, repository, "-m", "pytest", "--num-processes", "2")
    assert refused.returncode == pytest.ExitCode.USAGE_ERROR
    assert "unrecognized arguments: --num-processes" in refused.stderr
    assert "testing: pipeline mine:build" in run(site, repository, *packaged("--pipeline", "mine:build", "--co")).stdout
