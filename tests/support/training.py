"""Small real runs: settings for two CPU cores, and several of them on ranks that torchrun starts once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from odb_example.settings import Settings


def small(checkpoint: Path, store: Path, output: Path, **changes: Any) -> Settings:
    """A run of seconds on the CPU."""
    values: dict[str, Any] = {
        "preset": "miniature", "model": str(checkpoint), "data": str(store), "output_dir": str(output),
        "output_root": str(output.parent), "train_size": 40, "token_budget": 1024, "buffer_size": 16,
        "max_length": 1024, "image_max_pixels": 65536, "num_workers": 1, "odb_prefetch_factor": 32, "lr": 1e-3,
        "gradient_checkpointing": False, "device": "cpu", "report_to": "none", "num_train_epochs": 1.0,
        "save_final_model": False, "num_processes": 1,
    }  # fmt: skip
    return Settings(**(values | changes))


def train_each(runs: Sequence[Settings], *, ranks: int, timeout_s: int = 600) -> subprocess.CompletedProcess[str]:
    """Train ``runs`` one after the other on the same ``ranks`` processes: starting them costs more than training."""
    files = [str(written(settings)) for settings in runs]
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    process = subprocess.Popen(
        [sys.executable, *launcher, "-m", "support.train_each", *files],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        raise AssertionError(f"{files} still in training after {timeout_s} s\n{err[-3000:]}") from None
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def written(settings: Settings) -> Path:
    """The settings as a file beside the run folder."""
    file = Path(settings.output_root) / f"{Path(str(settings.output_dir)).name}.settings.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(settings.model_dump(exclude_none=True)))
    return file
