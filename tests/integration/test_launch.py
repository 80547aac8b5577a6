"""Ranks: started, joined, ended; whatever goes wrong is one line and nothing is left running."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import torch

from odb_example import launch
from odb_example.errors import CheckFailed, UserError
from odb_example.settings import Settings

pytestmark = [pytest.mark.integration, pytest.mark.ranks]

STAGES = """
import os, sys, time
from pathlib import Path
from odb_example import distributed
from odb_example.errors import CheckFailed, UserError

def started(settings):
    ranks = distributed.start("cpu", 60)
    Path(settings.output_root, f"rank{ranks.rank}").write_text(f"{ranks.world_size} {os.getpid()} {settings.lr}")
    assert distributed.gather_objects(ranks.rank) == list(range(ranks.world_size))
    return ranks

def works(settings):
    started(settings)

def mistake(settings):
    started(settings)
    raise UserError("the same mistake in every rank", "mend it")

def finding(settings):
    started(settings)
    raise CheckFailed("one finding")

def fault(settings):
    if started(settings).rank == 1:
        raise RuntimeError("only rank one broke")
    time.sleep(600)

def killed(settings):
    if started(settings).rank == 1:
        os.kill(os.getpid(), 9)
    time.sleep(600)

def waits(settings):
    started(settings)
    time.sleep(600)
"""


@pytest.fixture
def stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "stages_under_test.py").write_text(STAGES)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return "stages_under_test"


def _settings(tmp_path: Path, processes: int = 2, **changes: object) -> Settings:
    return Settings(output_root=str(tmp_path), num_processes=processes, device="cpu", lr=0.125, **changes)


def _ranks(tmp_path: Path) -> list[tuple[int, int, float]]:
    found = [path.read_text().split() for path in sorted(tmp_path.glob("rank*"))]
    return [(int(world), int(pid), float(lr)) for world, pid, lr in found]


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _assert_ended(pids: list[int], within_s: float = 15) -> None:
    deadline = time.monotonic() + within_s
    while (left := [pid for pid in pids if _alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left, f"ranks still running: {left}"


@pytest.mark.parametrize("processes", [1, 2])
def test_each_rank_gets_the_settings_and_no_file_is_left(
    tmp_path: Path, stages: str, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    assert launch.run_stage(f"{stages}:works", _settings(tmp_path, processes)) == 0
    assert not list(temporary.iterdir())
    assert [(world, lr) for world, _, lr in _ranks(tmp_path)] == [(processes, 0.125)] * processes


def test_a_mistake_in_every_rank_is_told_once(tmp_path: Path, stages: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert launch.run_stage(f"{stages}:mistake", _settings(tmp_path)) == 2
    assert capfd.readouterr().err.count("the same mistake in every rank; mend it") == 1


def test_a_finding_is_exit_status_1(tmp_path: Path, stages: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert launch.run_stage(f"{stages}:finding", _settings(tmp_path)) == 1
    assert capfd.readouterr().err.count("one finding") == 1


@pytest.mark.parametrize(("stage", "words"), [("fault", "only rank one broke"), ("killed", "ended by signal 9")])
def test_a_failing_rank_ends_the_job_with_its_error_shown(
    tmp_path: Path, stages: str, capfd: pytest.CaptureFixture[str], stage: str, words: str
) -> None:
    begun = time.monotonic()
    assert launch.run_stage(f"{stages}:{stage}", _settings(tmp_path)) == 1
    assert time.monotonic() - begun < 60  # 600 s is what the surviving rank would wait
    assert words in capfd.readouterr().err
    _assert_ended([pid for _, pid, _ in _ranks(tmp_path)])


def test_one_rank_raises_in_place(tmp_path: Path, stages: str) -> None:
    with pytest.raises(UserError, match="the same mistake"):
        launch.run_stage(f"{stages}:mistake", _settings(tmp_path, 1))
    with pytest.raises(CheckFailed):
        launch.run_stage(f"{stages}:finding", _settings(tmp_path, 1))


@pytest.mark.parametrize(
    ("cores", "workers", "omp", "threads"), [(8, 2, None, 6), (2, 4, None, 1), (8, 2, "3", 7)], ids=str
)
def test_one_process_leaves_cores_to_its_loader_unless_told_otherwise(
    tmp_path: Path,
    stages: str,
    monkeypatch: pytest.MonkeyPatch,
    cores: int,
    workers: int,
    omp: str | None,
    threads: int,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.delenv("OMP_NUM_THREADS") if omp is None else monkeypatch.setenv("OMP_NUM_THREADS", omp)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(7)  # stands for what torch made of the variable when it was imported
        launch.run_stage(f"{stages}:works", _settings(tmp_path, 1, num_workers=workers))
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


def test_a_port_in_use_is_one_line(tmp_path: Path, stages: str) -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=rf"port {port} is in use; give another --master-port"):
            launch.run_stage(f"{stages}:works", _settings(tmp_path, master_port=port))
    assert not _ranks(tmp_path)


def test_no_such_gpu_is_one_line(tmp_path: Path, stages: str) -> None:
    import torch

    with pytest.raises(UserError, match="GPU"):
        launch.run_stage(
            f"{stages}:works",
            Settings(output_root=str(tmp_path), device="cuda", num_processes=torch.cuda.device_count() + 1),
        )


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_every_rank(tmp_path: Path, stages: str, signal_number: int) -> None:
    code = (
        "import sys; from odb_example import cli, launch; from odb_example.settings import Settings; "
        f"settings = Settings(output_root={str(tmp_path)!r}, num_processes=2, device='cpu'); "
        f"spec = cli.Spec(run=lambda: launch.run_stage('{stages}:waits', settings), help=''); "
        "sys.exit(cli.main({'go': spec}, '', ['go'])) if __name__ == '__main__' else None"
    )
    script = tmp_path / "go.py"
    script.write_text(code)
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.getcwd()])}
    parent = subprocess.Popen([sys.executable, str(script)], env=environ, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while len(ranks := _ranks(tmp_path)) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    parent.send_signal(signal_number)
    _, err = parent.communicate(timeout=60)
    assert len(ranks) == 2
    assert parent.returncode == 130, err
    assert err.splitlines()[-1] == "odb-example: interrupted"
    _assert_ended([pid for _, pid, _ in ranks])


@pytest.mark.parametrize(("stage", "status"), [("works", 0), ("mistake", 1)])
def test_ranks_of_torchrun_are_joined_and_leave_their_group(
    tmp_path: Path, stages: str, stage: str, status: int
) -> None:
    script = tmp_path / "joined.py"
    script.write_text(
        "import atexit, os, sys\nimport torch.distributed as dist\n"
        "from odb_example import launch\nfrom odb_example.settings import Settings\n"
        "atexit.register(lambda: dist.is_initialized() and os._exit(9))\n"  # runs after whatever is registered later
        f"settings = Settings(output_root={str(tmp_path)!r}, num_processes=7, device='cpu')\n"
        f"launch.run_stage('{stages}:{stage}', settings)\n"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.getcwd()])}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == status, done.stderr
    assert "exitcode: 9" not in done.stderr
    assert "exitcode: -6" not in done.stderr
    assert [world for world, _, _ in _ranks(tmp_path)] == [2, 2]


def test_sruns_variables_are_adopted() -> None:
    environ = {
        "SLURM_NTASKS": "4",
        "SLURM_PROCID": "3",
        "SLURM_LOCALID": "1",
        "MASTER_ADDR": "head",
        "SLURM_JOB_ID": "7",
    }
    launch.adopt_slurm(environ)
    assert {name: environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")} == {
        "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "head", "MASTER_PORT": "29507",
    }  # fmt: skip
    assert launch.launched(environ)


def test_a_single_srun_task_starts_its_own_ranks() -> None:
    environ = {"SLURM_NTASKS": "1", "SLURM_PROCID": "0"}
    launch.adopt_slurm(environ)
    assert not launch.launched(environ)
