"""How a loader's processes hand tensors on: small ones by value, large ones in shared memory.

torch gives every tensor a shared-memory file of its own. A finished sample has eight tensors, most of them a few
hundred bytes, so that the files cost more than what they hold: see docs/experiments.md, "Loaders". Call
`small_tensors_by_value` in the process that sends; the receiver needs nothing.
"""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.multiprocessing.reductions import reduce_tensor

LARGEST_BY_VALUE = 256 * 1024  # bytes; measured with benchmarks/handover.py
_NUMPY_HAS = frozenset(
    {torch.float64, torch.float32, torch.float16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8}
    | {torch.bool}
)


def small_tensors_by_value(_worker: int = 0) -> None:
    """From now on this process sends small tensors in the message itself. Has the form of a ``worker_init_fn``."""
    ForkingPickler.register(torch.Tensor, _reduced)


def _reduced(tensor: torch.Tensor) -> Any:
    plain = tensor.device.type == "cpu" and tensor.layout == torch.strided and not tensor.requires_grad
    if plain and tensor.dtype in _NUMPY_HAS and tensor.nbytes <= LARGEST_BY_VALUE:
        return torch.from_numpy, (tensor.numpy(),)
    return reduce_tensor(tensor)
