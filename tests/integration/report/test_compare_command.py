"""`compare` as a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.run_folders import Plan, write_run

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[3]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An output root with a run of either loader."""
    write_run(tmp_path / "root" / "odb-enable", Plan())
    write_run(tmp_path / "root" / "standard-none", Plan(loader="standard", speed=1.0))
    return tmp_path / "root"


def _python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)


def test_no_torch_is_imported_for_a_comparison(root: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from odb_example.report.compare import compare_runs;"
        f"compare_runs([Path({str(root / 'odb-enable')!r}), Path({str(root / 'standard-none')!r})],"
        f" Path({str(tmp_path / 'out')!r})); sys.exit('torch' in sys.modules)"
    )
    done = _python("-c", code)
    assert done.returncode == 0, done.stderr


def test_compare_takes_every_run_under_the_output_root_and_writes_a_record(root: Path, tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    done = _python("-m", "odb_example.run", "compare", "--output-root", str(root), "--record", str(record))
    assert done.returncode == 0, done.stderr
    written = json.loads((root / "comparison" / "comparison.json").read_text())
    assert [run["name"] for run in written["runs"]] == ["odb-enable", "standard-none"]
    assert (root / "comparison" / "report.html").stat().st_size < 3_000_000
    assert json.loads(record.read_text())["derived"]["throughput_speedup"] > 1
    again = _python("-m", "odb_example.run", "compare", str(record), "--output-root", str(tmp_path / "again"))
    assert again.returncode == 0, again.stderr


def test_report_gives_one_runs_page_beside_the_run(root: Path) -> None:
    done = _python("-m", "odb_example.run", "report", str(root / "odb-enable"))
    assert done.returncode == 0, done.stderr
    assert "Run report" in (root / "odb-enable" / "report.html").read_text()


def test_a_folder_that_is_no_run_is_one_line_and_exit_2(tmp_path: Path) -> None:
    done = _python("-m", "odb_example.run", "compare", str(tmp_path))
    assert done.returncode == 2
    assert "holds no run" in done.stderr
    assert "Traceback" not in done.stderr
