"""What a run of the suite is aimed at: device, ranks, model, pipeline; and the key its baselines are stored under.

Taken from the options once; nothing here imports torch before a GPU is asked about.
"""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from odb_example.resolve import accelerator_present

CPU = "cpu"
TINY = "tiny"


@dataclass(frozen=True, slots=True)
class Target:
    """Resolved options of one run."""

    device: str  # "cpu" or "cuda"
    ranks: int
    model: str | None  # None: the seeded tiny model
    data: str | None  # None: the miniature mix
    benchmark: str | None  # None: the miniature's own
    pipeline: str | None  # None: this project's own
    asked_for_cpu: bool = False

    @property
    def model_key(self) -> str:
        """Folder of this model's baselines: ``tiny``, or the model's name made safe for a path."""
        return TINY if self.model is None else slug(self.model.rstrip("/").removeprefix("./"))

    @property
    def hardware_key(self) -> str:
        """Folder of this hardware's baselines: every CPU machine is ``cpu``, a GPU goes by its name."""
        return CPU if self.device == CPU else slug(gpu_name())

    @property
    def own_data(self) -> bool:
        """Whether the run uses a store other than the embedded miniature."""
        return self.data is not None


def target_of(config: pytest.Config) -> Target:
    """The run's target, from the command line and ``ODB_PIPELINE``."""
    asked = config.getoption("device")
    cuda = asked == "cuda" or (asked == "auto" and accelerator_present())
    return Target(
        device="cuda" if cuda else CPU,
        ranks=config.getoption("num_processes") or (max(gpu_count(), 1) if cuda else 2),
        model=config.getoption("model"),
        data=config.getoption("data"),
        benchmark=config.getoption("benchmark"),
        pipeline=config.getoption("pipeline"),
        asked_for_cpu=asked == CPU,
    )


def slug(name: str) -> str:
    """``name`` as one folder name: ``Qwen/Qwen3-VL-2B-Instruct`` becomes ``Qwen--Qwen3-VL-2B-Instruct``."""
    if Path(name).is_dir():
        name = Path(name).resolve().name
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name.replace("/", "--")).strip("-.") or "unnamed"


@cache
def gpu_count() -> int:
    """GPUs this process sees."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


@cache
def gpu_name() -> str:
    """Name of the first GPU, as its driver gives it."""
    import torch

    return torch.cuda.get_device_name(0) if gpu_count() else "no-gpu"


def describe_hardware(target: Target) -> dict[str, bool | int | float | str | None]:
    """The machine, for provenance."""
    described: dict[str, bool | int | float | str | None] = {
        "machine": platform.machine(),
        "system": platform.system(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
    }
    if target.device != CPU:
        described |= {"gpu": gpu_name(), "gpus": gpu_count()}
    return described
