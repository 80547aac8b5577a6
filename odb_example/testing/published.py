"""Somebody else's published run as a reference: bands around its figures, where this machine and data are its own.

A reference is no baseline: it was not recorded by this code, is never rewritten, and says why each band is as wide as
it is. It applies only on the same kind and number of GPUs, with the same model and the full data.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from odb_example.testing.target import Target


class Band(BaseModel):
    """``published`` plus or minus ``within``, both ends included."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    published: float
    within: float
    why: str


class Published(BaseModel):
    """One published run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str
    hardware: dict[str, Any]
    model: str
    raw_records: int
    settings: dict[str, Any]
    differs: str
    bands: dict[str, Band]


def read_published(path: Path) -> Published:
    """The reference in a file."""
    return Published.model_validate_json(path.read_text(encoding="utf-8"))


def why_not_comparable(published: Published, target: Target, gpu: str, records: int | None) -> str | None:
    """What this run lacks to be held against the reference; None where it can be.

    Args:
        gpu: name of this machine's GPU.
        records: of the data folder given; None without one.
    """
    wanted = published.hardware
    if target.device != "cuda" or wanted["gpu"] not in gpu.split() or target.ranks != wanted["gpus"]:
        here = f"{target.ranks} ranks on {'CPU' if target.device != 'cuda' else gpu}"
        lacking = f"{wanted['gpus']} x {wanted['gpu']}, this run has {here}"
    elif target.model != published.model:
        lacking = f"{published.model}, this run has {target.model or 'the tiny model'}"
    elif records != published.raw_records:
        lacking = f"the full data of {published.raw_records} records, this run has {records or 'the miniature mix'}"
    else:
        return None
    return (
        f"the published run needs {lacking}; there: pytest -m gpu -k published --num-processes {wanted['gpus']} "
        f"--model {published.model} --data FOLDER --benchmark MMMU/MMMU"
    )


def outside(published: Published, found: Mapping[str, float]) -> list[str]:
    """One line for each figure outside its band, or not found."""
    lines = []
    for name, band in published.bands.items():
        if name not in found:
            lines.append(f"{name}: published {band.published:g}, not measured")
        elif abs(found[name] - band.published) > band.within:
            lines.append(
                f"{name}: published {band.published:g}, now {found[name]:g} ({found[name] - band.published:+.4g}), "
                f"allowed +/- {band.within:g} ({band.why})"
            )
    return lines
