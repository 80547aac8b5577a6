"""What a command would meet here: versions, upstream faults and their workarounds, devices, disk, model, data.

`examine` returns findings; the `doctor` command prints them and exits 1 when one of them would make a command fail.
"""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from odb_example import requirements
from odb_example.settings import Settings

PACKAGES = (
    "torch", "torchvision", "transformers", "accelerate", "online-dynamic-batching", "datasets", "pillow",
    "deepspeed", "peft", "tensorboard",
)  # fmt: skip
_LOW_DISK_GIB = 5.0


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report; ``fail`` means that a command would not work."""

    state: Literal["ok", "note", "fail"]
    about: str
    words: str


def examine(settings: Settings) -> Iterator[Finding]:
    """Findings about this machine under these settings, in the order in which a command would meet them."""
    yield from _versions()
    if requirements.missing():
        return
    yield from _workarounds()
    yield from _devices(settings)
    yield from _disk(settings)
    yield _model(settings)
    yield _data(settings)
    yield _benchmark(settings)


def _versions() -> Iterator[Finding]:
    yield Finding("ok", "python", f"{platform.python_version()} on {platform.platform()}")
    for package in PACKAGES:
        try:
            yield Finding("ok", package, metadata.version(package))
        except metadata.PackageNotFoundError:
            yield Finding("note", package, "not installed")
    for line in requirements.missing():
        yield Finding("fail", "requirement", f"{line} is not satisfied; run the install command")


def _workarounds() -> Iterator[Finding]:
    from odb_example.compat import WORKAROUNDS

    for workaround in WORKAROUNDS:
        state = "active" if workaround.applies() else "not needed with these versions"
        yield Finding("ok", f"workaround {workaround.name}", f"{state}: {workaround.why}")


def _devices(settings: Settings) -> Iterator[Finding]:
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for index in range(count):
        properties = torch.cuda.get_device_properties(index)
        yield Finding("ok", f"gpu {index}", f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB")
    yield Finding("ok", "cpu", f"{os.cpu_count()} cores, {torch.get_num_threads()} threads per process")
    if not count:
        yield Finding("fail" if settings.device == "cuda" else "note", "gpu", "none visible")


def _disk(settings: Settings) -> Iterator[Finding]:
    for about, folder in (("data", settings.data), ("outputs", settings.output_root)):
        place = Path(folder).absolute()
        while not place.exists():
            place = place.parent
        free = shutil.disk_usage(place).free / 2**30
        if not os.access(place, os.W_OK):
            yield Finding("fail", f"disk for {about}", f"{place} is not writable")
        else:
            yield Finding(
                "ok" if free > _LOW_DISK_GIB else "note", f"disk for {about}", f"{free:.1f} GiB free at {place}"
            )


def _model(settings: Settings) -> Finding:
    if Path(settings.model, "config.json").is_file():
        return Finding("ok", "model", f"folder {settings.model}")
    if settings.preset == "miniature":
        return Finding("ok", "model", f"{settings.model} will be made from seed {settings.seed}")
    return _hub_finding("model", settings.model, "model")


def _data(settings: Settings) -> Finding:
    if Path(settings.data, "metadata.json").is_file():
        return Finding("ok", "data", f"store {settings.data}")
    if settings.preset == "miniature":
        return Finding("ok", "data", f"{settings.data} will be made by the data command")
    return Finding("fail", "data", f"no store at {settings.data}; build one with the data command")


def _benchmark(settings: Settings) -> Finding:
    if Path(settings.dataset).is_dir():
        return Finding("ok", "benchmark", f"folder {settings.dataset}")
    if settings.preset == "miniature":
        return Finding("ok", "benchmark", f"{settings.dataset} will be made by the data command")
    return _hub_finding("benchmark", settings.dataset, "dataset")


def _hub_finding(about: str, name: str, kind: Literal["model", "dataset"]) -> Finding:
    """Whether the Hub, or its local cache, has a repository; asked with a short time-out."""
    from huggingface_hub import HfApi, scan_cache_dir
    from huggingface_hub.errors import CacheNotFound, HfHubHTTPError, HFValidationError

    try:
        cached = any(repo.repo_id == name and repo.repo_type == kind for repo in scan_cache_dir().repos)
    except CacheNotFound:
        cached = False
    if cached:
        return Finding("ok", about, f"{name} is in the Hub cache")
    try:
        HfApi().repo_info(name, repo_type=kind, timeout=5)
    except HFValidationError:
        return Finding("fail", about, f"{name} is neither a folder nor a Hub id")
    except HfHubHTTPError as error:
        return Finding("fail", about, f"the Hub refuses {name}: {' '.join(str(error).split())[:120]}")
    except Exception as error:  # noqa: BLE001 - httpx and requests each have their own; all of them mean "not reached"
        return Finding("fail", about, f"{name} is not cached and the Hub cannot be reached ({type(error).__name__})")
    return Finding("ok", about, f"{name} can be reached on the Hub")
