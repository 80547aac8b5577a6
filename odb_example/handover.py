"""How a loader's processes hand tensors on: small ones by value, large ones in shared memory; or they end.

torch gives every tensor a shared-memory file of its own. A finished sample has eight tensors, most of them a few
hundred bytes, so that the files cost more than what they hold: see docs/experiments.md, "Loaders". And
where a message cannot be made, for want of shared memory say, Python's queue drops it, and whoever waits for it waits
for ever. Call `prepare_sender` in the process that sends, before it does; the receiver needs nothing.
"""

from __future__ import annotations

import os
import sys
from multiprocessing.queues import Queue
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.multiprocessing.reductions import reduce_tensor

LARGEST_BY_VALUE = 256 * 1024  # bytes; measured with benchmarks/handover.py
_NUMPY_HAS = frozenset(
    {torch.float64, torch.float32, torch.float16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8}
    | {torch.bool}
)


def prepare_sender(_worker: int = 0) -> None:
    """From now on this process sends small tensors in the message itself, and ends when it cannot send.

    Has the form of a ``worker_init_fn``. A queue takes the end over with the first message that is put into it.
    """
    ForkingPickler.register(torch.Tensor, _reduced)
    Queue._on_queue_feeder_error = staticmethod(_end)  # type: ignore[attr-defined]  # queues have no public hook


def _end(error: Exception, _message: Any) -> None:
    """End the process, from the queue's thread: the loader sees a process that is gone, and raises."""
    line = f"odb-example: error: a loader process cannot hand on what it made: {' '.join(str(error).split())}"
    mend = "give shared memory more room (docker run --shm-size), or lower --num-workers and --prefetch-factor"
    try:
        print(f"{line}; {mend}", file=sys.stderr, flush=True)
    finally:  # stderr may be a file on a disk that is full
        os._exit(1)


def _reduced(tensor: torch.Tensor) -> Any:
    plain = tensor.device.type == "cpu" and tensor.layout == torch.strided and not tensor.requires_grad
    if plain and tensor.dtype in _NUMPY_HAS and tensor.nbytes <= LARGEST_BY_VALUE:
        return torch.from_numpy, (tensor.numpy(),)
    return reduce_tensor(tensor)
