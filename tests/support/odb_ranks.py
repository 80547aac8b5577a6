"""What the ranks of the hazard tests do: ours, and ODB as it comes. At module level, for fresh processes to find."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import odb.collate
import odb.core
import psutil
import torch
import torch.distributed as dist
import torch.utils.data._utils as torch_data_utils
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from odb_example import compat
from odb_example.benchmarks.ranks import children
from odb_example.benchmarks.synthetic import SyntheticSamples, collate, random_lengths
from odb_example.train.loaders import OdbLoader, apply_odb, build_loader

BUDGET = 256


def ours(rank: int, world_size: int, dataset: Any, **changed: Any) -> OdbLoader:
    """Our ODB loader, applied."""
    arguments: dict[str, Any] = {
        "collate": collate, "seed": 0, "token_budget": BUDGET, "buffer_size": 16, "max_patches": 0,
        "fixed_batch_size": 1, "num_workers": 1, "prefetch_factor": 16, "join": True, "group_order_flip": "none",
        "no_warmup": False, "accumulation_steps": 1, "timeout_s": 60, **changed,
    }  # fmt: skip
    loader = build_loader("odb", dataset, rank=rank, world_size=world_size, **arguments)
    assert isinstance(loader, OdbLoader)
    apply_odb(loader)
    return loader


def bare(rank: int, world_size: int, dataset: Any, *, fixed_holder: bool = True, **changed: Any) -> DataLoader:
    """ODB as its guide shows it, on a plain DataLoader. Only the argument without which it does not start is mended."""
    odb.core.collate_loop_odb = odb.collate.collate_loop_odb
    if not fixed_holder:
        odb.core._utils = torch_data_utils
    elif compat.torch_pops_a_dataset_holder():
        compat._hand_the_dataset_in_a_list()
    arguments: dict[str, Any] = {
        "batch_size": 1, "num_workers": 1, "prefetch_factor": 16, "collate_fn": collate,
        "multiprocessing_context": "fork", "sampler": DistributedSampler(dataset, world_size, rank, seed=0), **changed,
    }  # fmt: skip
    options = {name: arguments.pop(name) for name in ("max_patches",) if name in arguments}
    loader: DataLoader = DataLoader(dataset, **arguments)
    odb.apply(loader, token_budget=BUDGET, buffer_size=16, loss_scaling="none", join=True, **options)
    return loader


def samples(count: int = 60) -> SyntheticSamples:
    return SyntheticSamples(random_lengths("uniform", count, BUDGET, 0))


def identities(loader: Any) -> list[list[int]]:
    """The rows of every batch of one iteration."""
    return [batch["sample_index"].tolist() for batch in loader]


def bare_with_the_dataset_itself(rank: int, world_size: int) -> list[list[int]]:
    return identities(bare(rank, world_size, samples(), fixed_holder=False))


def one_epoch(rank: int, world_size: int, make: Callable[..., Any], dataset: Any, changed: dict[str, Any]) -> Any:
    return identities(make(rank, world_size, dataset, **changed))


def shares_memory(rank: int, world_size: int, make: Callable[..., Any]) -> set[bool]:
    """Whether the tensors of a batch lie in shared memory."""
    return {
        value.is_shared()
        for batch in make(rank, world_size, samples())
        for value in batch.values()
        if isinstance(value, torch.Tensor)
    }


def several_epochs(rank: int, world_size: int, make: Callable[..., Any], epochs: int) -> list[tuple[int, int]]:
    """Child processes and open descriptors after each of ``epochs``, the rows let go."""
    loader = make(rank, world_size, samples(32))
    left = []
    for epoch in range(epochs):
        if isinstance(loader, OdbLoader):
            loader.set_epoch(epoch)
        for _ in loader:
            pass
        left.append((len(children()), psutil.Process().num_fds()))
    return left


def orders_of_epochs(rank: int, world_size: int, make: Callable[..., Any], epochs: int) -> list[list[int]]:
    """The identities of each epoch, in order, from a loop that marks what is trained on (bare: knows no such thing).

    Iterators are kept: torch knows their processes by ``id``, which bare ODB, when one is let go, does not give back.
    """
    loader = make(rank, world_size, samples(40))
    orders, kept = [], []
    for _ in range(epochs):
        kept.append(iter(loader))
        order = [row for batch in identities(kept[-1]) for row in batch]
        if isinstance(loader, OdbLoader):
            gathered: list[Any] = [None] * world_size
            dist.all_gather_object(gathered, order)
            loader.mark_done([row for share in gathered for row in share])
        orders.append(order)
    return orders


def store_connections(rank: int, world_size: int, make: Callable[..., Any]) -> tuple[set[int], set[int]]:
    """Local ports of the connections that this rank and its collate process have to the rendezvous store."""
    loader = make(rank, world_size, samples(200))
    iterator = iter(loader)
    next(iterator)
    dist.barrier()
    store = dist.distributed_c10d._world.pg_map[dist.distributed_c10d._get_default_group()][1]
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store

    def to_store(process: psutil.Process) -> set[int]:
        return {c.laddr.port for c in process.net_connections("tcp") if c.raddr and c.raddr.port == store.port}

    of_children = set().union(*(to_store(process) for process in psutil.Process().children()))
    dist.barrier()
    for _ in iterator:
        pass
    return to_store(psutil.Process()), of_children


def killed_in_training(rank: int, world_size: int, make: Callable[..., Any], victim: int, pids: Path) -> None:
    """Steps in lock step; rank ``victim`` is killed at its third, having written down its child processes."""
    loader = make(rank, world_size, samples(400))
    for step, _ in enumerate(loader):
        if step == 2 and rank == victim:
            pids.write_text("\n".join(str(process.pid) for process in psutil.Process().children()))
            os.kill(os.getpid(), signal.SIGKILL)
        if world_size > 1:
            dist.all_reduce(torch.ones(1))


class SlowSamples(SyntheticSamples):
    """The first sample takes its time."""

    def __init__(self, lengths: list[int], seconds: float) -> None:
        super().__init__(lengths)
        self.seconds = seconds

    def __getitem__(self, position: int) -> dict[str, torch.Tensor]:
        if position == 0:
            time.sleep(self.seconds)
        return super().__getitem__(position)


def one_rank_is_slow(rank: int, world_size: int, bound_s: int, make: Callable[..., Any]) -> int:
    """An epoch in which rank 1 waits 5 s for a sample, the ranks' exchanges being bounded by ``bound_s``."""
    os.environ["ODB_GROUP_INIT_TIMEOUT_SEC"] = str(bound_s)
    if make is ours:
        del os.environ["ODB_GROUP_INIT_TIMEOUT_SEC"]
    dataset = SlowSamples(random_lengths("uniform", 40, BUDGET, 0), seconds=5.0 if rank else 0.0)
    return sum(map(len, identities(make(rank, world_size, dataset))))


def default_timeout_s(rank: int, world_size: int, environment: dict[str, str]) -> tuple[float, float]:
    """The process group's bound, from our start and from TrainingArguments, both told 7 s."""
    from transformers import TrainingArguments

    from odb_example import distributed

    os.environ.update(environment, RANK=str(rank), WORLD_SIZE=str(world_size), LOCAL_RANK=str(rank))
    dist.destroy_process_group()
    distributed.start("cpu", timeout_s=7)
    started = _bound_s()
    distributed.stop()
    os.environ["MASTER_PORT"] = str(int(environment["MASTER_PORT"]) + 1)
    TrainingArguments(output_dir="unused", use_cpu=True, ddp_timeout=7).device  # noqa: B018 - joins the ranks
    return started, _bound_s()


def _bound_s() -> float:
    group: Any = dist.group.WORLD
    return group._get_backend(torch.device("cpu")).options._timeout.total_seconds()


class Recast:
    """A collator's faults: another mapping, or ODB's counts lost."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __call__(self, rows: list[dict[str, Any]]) -> Any:
        from transformers import BatchFeature

        batch = collate(rows)
        if self.kind == "BatchFeature":
            return BatchFeature(batch)
        return {name: value for name, value in batch.items() if name != "total_batch_size"}


def counts(loader: Any) -> Iterator[tuple[str, int, int | None]]:
    """Of each batch: its type, its rows and what ODB says of the rows of all ranks."""
    for batch in loader:
        yield type(batch).__name__, len(batch["sample_index"]), batch.get("total_batch_size")


def counted_epoch(rank: int, world_size: int, kind: str, make: Callable[..., Any]) -> list[Any]:
    recast = Recast(kind)
    name = "collate" if make is ours else "collate_fn"
    return list(counts(make(rank, world_size, samples(), **{name: recast})))


class PatchedSamples(SyntheticSamples):
    """Samples with 40 patches each, which say so or do not."""

    def __init__(self, lengths: list[int], counted: bool) -> None:
        super().__init__(lengths)
        self.counted = counted

    def __getitem__(self, position: int) -> dict[str, torch.Tensor]:
        sample = super().__getitem__(position)
        sample["pixel_values"] = torch.zeros(40, 2)
        if self.counted:
            sample["odb_n_patches"] = torch.tensor(40)
        else:
            del sample["odb_n_patches"]
        return sample


def capped_rows(rank: int, world_size: int, make: Callable[..., Any], counted: bool) -> int:
    """The largest group of short samples of 40 patches under a cap of 100 patches."""
    return max(map(len, identities(make(rank, world_size, PatchedSamples([4] * 40, counted), max_patches=100))))
