"""Tiny checkpoints of the Qwen-VL families, for tests that every family must pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from odb_example.data.samples import SampleMaker
from odb_example.models.loading import load_processor
from odb_example.models.miniature import build_tiny_checkpoint, build_tiny_qwen2_5_vl, build_tiny_qwen2_vl

BUILDERS: dict[str, Callable[[Path, int], Path]] = {
    "qwen3_vl": build_tiny_checkpoint,
    "qwen2_5_vl": build_tiny_qwen2_5_vl,
    "qwen2_vl": build_tiny_qwen2_vl,
}
IMAGE_CAP = 65_536


@dataclass(frozen=True)
class Family:
    """One checkpoint, its processor and a maker of samples with it."""

    name: str
    checkpoint: Path
    processor: Any = field(repr=False)
    maker: SampleMaker = field(repr=False)


def build_family(name: str, folder: Path) -> Family:
    """The tiny checkpoint of a family in ``folder``, images capped at `IMAGE_CAP`."""
    checkpoint = BUILDERS[name](folder / name, 0)
    processor = load_processor(str(checkpoint), image_max_pixels=IMAGE_CAP)
    maker = SampleMaker(processor, max_length=100_000, backend="qwen_vl")
    return Family(name, checkpoint, processor, maker)
