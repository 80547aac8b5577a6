"""The plugin where it meets other programs: xdist's workers, hypothesis' seeds, git, and a stranger's repository."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[3]
CONFTEST = 'pytest_plugins = ["odb_example.testing.plugin", "odb_example.testing.snapshots"]\n'
MEASURES = """
from odb_example.testing.baselines import Measured, exact

def test_numbers(baseline):
    baseline(Measured({"steps": exact(12)}))
"""
STORED = "baselines/cpu/tiny/test_numbers.json"


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name in ("ODB_PIPELINE", "CI", "PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER"):
        monkeypatch.delenv(name, raising=False)
    pytester.makeconftest(CONFTEST)
    pytester.makefile(".ini", pytest="[pytest]\naddopts = -ra -p no:randomly -p no:cacheprovider")
    return pytester


def write(suite: pytest.Pytester, path: str, text: str) -> Path:
    file = suite.path / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def test_tests_that_start_ranks_share_one_worker(suite: pytest.Pytester) -> None:
    body = "def test_{0}(): open('{1}-{0}', 'w').write(os.environ['PYTEST_XDIST_WORKER'])\n"
    marked = "import os, pytest\npytestmark = pytest.mark.ranks\n"
    write(suite, "tests/integration/test_r.py", marked + "".join(body.format(n, "rank") for n in range(6)))
    write(suite, "tests/unit/test_u.py", "import os\n" + "".join(body.format(n, "free") for n in range(2)))
    result = suite.runpytest_subprocess("-n", "2", "-v")
    result.assert_outcomes(passed=8)
    assert len({file.read_text() for file in suite.path.glob("rank-*")}) == 1
    assert len(list(suite.path.glob("free-*"))) == 2


def test_a_workers_repeat_line_names_the_seed_of_the_header(suite: pytest.Pytester) -> None:
    write(
        suite, "tests/unit/test_p.py",
        "from hypothesis import given, strategies as st\n@given(st.integers())\ndef test_p(n): assert n < 100\n",
    )  # fmt: skip
    result = suite.runpytest_subprocess("-n", "2")
    seed = re.search(r"hypothesis: profile dev, seed (\d+)", result.stdout.str())
    assert seed is not None
    result.stdout.fnmatch_lines([f"repeat: pytest tests/unit/test_p.py::test_p --hypothesis-seed={seed[1]} *"])


def test_workers_send_what_they_record_and_the_controller_writes_it(suite: pytest.Pytester) -> None:
    write(suite, "tests/unit/test_m.py", MEASURES + "".join(f"def test_{n}(): pass\n" for n in range(4)))
    result = suite.runpytest_subprocess("-n", "2", "--snapshot-update")
    result.assert_outcomes(passed=5)
    result.stdout.fnmatch_lines([f"recorded {STORED}: 1 numbers"])
    write(suite, "tests/unit/test_m.py", "".join(f"def test_{n}(): pass\n" for n in range(4)))
    stale = suite.runpytest_subprocess("-n", "2")
    assert stale.ret == pytest.ExitCode.TESTS_FAILED
    stale.stdout.fnmatch_lines([f"STALE {STORED}: *"])


def test_a_failure_on_one_worker_keeps_the_other_from_recording(suite: pytest.Pytester) -> None:
    write(suite, "tests/unit/test_m.py", MEASURES)
    write(suite, "tests/unit/test_f.py", "def test_f(): assert False\n")
    suite.runpytest_subprocess("-n", "2", "--snapshot-update").stdout.fnmatch_lines(["NOT WRITTEN: 1 failed*"])
    assert not (suite.path / STORED).exists()


def test_the_repeat_line_of_a_property_finds_the_same_example(suite: pytest.Pytester) -> None:
    write(
        suite, "tests/unit/test_p.py",
        "from hypothesis import given, settings, strategies as st\n"
        "@settings(database=None)\n@given(st.integers(0, 10**9))\n"
        "def test_p(n):\n    open('seen', 'a').write(f'{n} ')\n    assert n % 7\n",
    )  # fmt: skip
    first = suite.runpytest_subprocess()
    examples = (suite.path / "seen").read_text().split()
    line = next(line for line in first.outlines if line.startswith("repeat: pytest "))
    assert re.search(r"--hypothesis-seed=\d+ --hypothesis-profile=dev", line)
    (suite.path / "seen").unlink()
    suite.runpytest_subprocess(*line.split()[2:]).assert_outcomes(failed=1)
    assert (suite.path / "seen").read_text().split() == examples


@pytest.mark.parametrize(("arguments", "examples"), [((), 20), (("--max-examples", "7"), 7)])
def test_max_examples_goes_over_the_profile(suite: pytest.Pytester, arguments: tuple[str, ...], examples: int) -> None:
    write(
        suite, "tests/unit/test_p.py",
        "from hypothesis import given, strategies as st\n"
        "@given(st.integers())\ndef test_p(n): open('seen', 'a').write('.')\n",
    )  # fmt: skip
    suite.runpytest_subprocess(*arguments).assert_outcomes(passed=1)
    assert len((suite.path / "seen").read_text()) == examples


def test_an_update_is_refused_over_uncommitted_changes_unless_told(suite: pytest.Pytester) -> None:
    write(suite, "tests/unit/test_m.py", MEASURES)
    write(suite, ".gitignore", "__pycache__/\n.hypothesis/\nrunpytest-*\nstdout\nstderr\n")

    def git(*words: str) -> None:
        identity = ["-c", "user.name=suite", "-c", "user.email=suite@localhost"]
        subprocess.run(["git", *identity, *words], cwd=suite.path, check=True, capture_output=True)

    git("init", "-q")
    refused = suite.runpytest_subprocess("--snapshot-update")
    assert refused.ret == pytest.ExitCode.USAGE_ERROR
    refused.stderr.fnmatch_lines(["*--snapshot-update refused: [0-9]* uncommitted changes (.gitignore, *"])
    git("add", "-A")
    git("commit", "-qm", "all")
    suite.runpytest_subprocess("--snapshot-update").assert_outcomes(passed=1)
    suite.runpytest_subprocess("--snapshot-update").assert_outcomes(passed=1)  # a new baseline is no obstacle
    write(suite, "tests/unit/test_m.py", MEASURES.replace("12", "13"))
    assert suite.runpytest_subprocess("--snapshot-update").ret == pytest.ExitCode.USAGE_ERROR
    suite.runpytest_subprocess("--snapshot-update", "--baselines-force").stdout.fnmatch_lines([f"rewrote {STORED}:"])
