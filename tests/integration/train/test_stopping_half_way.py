"""A run that stops in the middle of an epoch, as every step cap makes it, ends its processes and then itself."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.ranks]

# Hundreds of one-sample batches wait unread, more than the pipe between the processes holds.
STOPS_EARLY = """
import time

import torch
from odb_example.benchmarks.synthetic import collate
from odb_example.train.loaders import apply_odb, build_loader


class Samples(torch.utils.data.Dataset):
    odb_ready = True

    def __len__(self):
        return 3000

    def __getitem__(self, index):
        if index >= len(self):
            raise IndexError(index)
        ids = torch.arange(4)
        return {
            "input_ids": ids, "labels": ids, "attention_mask": torch.ones_like(ids),
            "sample_index": torch.tensor([index]),
        }


if __name__ == "__main__":
    loader = build_loader(
        "odb", Samples(), collate, rank=0, world_size=1, seed=0, token_budget=4, buffer_size=1500, max_patches=0,
        fixed_batch_size=1, num_workers=1, prefetch_factor=1500, join=True, group_order_flip="none", no_warmup=True,
        accumulation_steps=1,
    )
    apply_odb(loader)
    for taken, _ in enumerate(loader):
        if taken == 5:
            time.sleep(2)  # meanwhile the collate process fills the pipe
            break
    print("stopped", flush=True)
"""


def test_a_process_that_stopped_half_way_ends() -> None:
    command = [sys.executable, "-c", STOPS_EARLY]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "stopped\n"
