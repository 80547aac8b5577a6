"""Loaders of which one process can make no shared memory. At module level, for fresh processes to find."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path
from typing import Any

import torch

from odb_example.benchmarks.synthetic import SyntheticSamples, collate
from odb_example.handover import LARGEST_BY_VALUE
from odb_example.settings import LoaderKind
from odb_example.train.loaders import OdbLoader, apply_odb, build_loader

LENGTH = LARGEST_BY_VALUE // torch.int64.itemsize + 1


def _no_room() -> None:
    """A full /dev/shm refuses a tensor's file as this limit does."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_BY_VALUE, LARGEST_BY_VALUE))


class FromAFullWorker(SyntheticSamples):
    def __getitem__(self, position: int) -> dict[str, torch.Tensor]:
        _no_room()
        return super().__getitem__(position)


def collate_without_room(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """ODB groups in a process of its own, and collates there."""
    _no_room()
    return collate(samples)


def take_one(rank: int, world_size: int, kind: LoaderKind, full: str, said: Path) -> None:
    """Wait for the first batch of a loader whose worker, or whose collate process, has no room; stderr into a file."""
    os.dup2(os.open(said, os.O_CREAT | os.O_WRONLY), sys.stderr.fileno())
    made = FromAFullWorker if full == "worker" else SyntheticSamples
    loader = build_loader(
        kind, made([LENGTH] * 6), collate if full == "worker" else collate_without_room, rank=rank,
        world_size=world_size, seed=0, token_budget=2 * LENGTH, buffer_size=4, max_patches=0, fixed_batch_size=2,
        num_workers=1, prefetch_factor=4, join=True, group_order_flip="none", no_warmup=False, accumulation_steps=1,
        timeout_s=60,
    )  # fmt: skip
    if isinstance(loader, OdbLoader):
        apply_odb(loader)
    next(iter(loader))
