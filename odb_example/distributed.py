"""Join the ranks that a launcher started, and talk between them.

`start` reads the variables that torchrun and accelerate set; for one process alone no process group is made.
"""

from __future__ import annotations

import atexit
import datetime
import itertools
import os
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist

from odb_example.errors import UserError


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among the others of the job."""

    rank: int
    world_size: int
    local_rank: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        return self.rank == 0


def start(device: Literal["auto", "cpu", "cuda"], timeout_s: int) -> Ranks:
    """Join the job's process group: NCCL on GPUs, gloo on CPU.

    Args:
        timeout_s: how long a collective waits for the other ranks. It is set here, because `TrainingArguments`
            passes its own ``ddp_timeout`` on only for some back ends.

    Raises:
        UserError: CUDA asked for where there is none, or fewer GPUs than local ranks.
    """
    rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    chosen = choose_device(device, local_rank)
    if world_size > 1 and not dist.is_initialized():
        backend = "nccl" if chosen.type == "cuda" else "gloo"
        join(backend, timeout=datetime.timedelta(seconds=timeout_s))
    return Ranks(rank, world_size, local_rank, chosen)


def choose_device(device: Literal["auto", "cpu", "cuda"], local_rank: int = 0) -> torch.device:
    """The device of this rank, made current if it is a GPU.

    Raises:
        UserError: CUDA asked for where there is none, or fewer GPUs than local ranks.
    """
    if device == "cpu" or (device == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    visible = torch.cuda.device_count()
    if visible <= local_rank:
        raise UserError(
            f"rank {local_rank} of this machine has no GPU: {visible} visible",
            "lower --num-processes, set CUDA_VISIBLE_DEVICES, or give --device cpu",
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def join(backend: str, **options: Any) -> None:
    """`init_process_group`, and the group's end with the process's, however that ends.

    A process that ends with a gloo group alive is aborted by chance: its threads outlive what they belong to. NCCL's
    do no harm, and leaving its group would make a failing rank wait for the others.
    """
    dist.init_process_group(backend, **options)
    if backend == "gloo":
        atexit.register(stop)


def stop() -> None:
    """Leave the process group, so that no rank ends while another still talks to it."""
    if dist.is_initialized():
        dist.destroy_process_group()


def gather_objects(value: Any) -> list[Any]:
    """``value`` of every rank, in rank order, on every rank."""
    if not dist.is_initialized():
        return [value]
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, value)
    return gathered


def take(shares: Sequence[int], ranks: Ranks) -> Iterator[tuple[int, int]]:
    """(rank, turn) of shared work, each on one rank only: a rank's own turns first, then those others have not taken.

    Every rank must call it at the same time. Turns are counted in the process group's store, one request each.

    Args:
        shares: how many turns every rank has.
    """
    group = dist.group.WORLD
    if group is None:
        return iter([(ranks.rank, turn) for turn in range(shares[ranks.rank])])
    store = group.get_group_store()
    name, *_ = gather_objects(uuid.uuid4().hex)

    def turns_of(owner: int) -> Iterator[tuple[int, int]]:
        while (turn := store.add(f"{name}/{owner}", 1) - 1) < shares[owner]:
            yield owner, turn

    owners = [(ranks.rank + offset) % ranks.world_size for offset in range(ranks.world_size)]
    return itertools.chain.from_iterable(map(turns_of, owners))


def barrier() -> None:
    """Wait for every rank."""
    if dist.is_initialized():
        dist.barrier()
