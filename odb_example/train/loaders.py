"""One way to make every loader: the same samples in, this rank's padded batches out.

`build_loader` knows five kinds. ``odb`` groups finished samples as they come, up to a padded-token budget;
``standard`` takes a fixed number of rows; ``group_by_length``, ``batch_rebalance`` (both transformers') and ``oracle``
(perfect token-budget groups) need every length beforehand. All of them draw one permutation per seed and epoch for all
ranks, give each sample once an epoch, keep the ranks at the same number of batches, and can continue an epoch that was
stopped half-way on another number of ranks. Rank and world size are arguments; no trainer is asked.

A batch is a plain dict with ``sample_index`` (rows,): the identity of each row, -1 for a weightless one
(`odb_example.train.weightless`).
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, Protocol

import torch
from torch.utils.data import DataLoader

from odb_example.errors import UserError
from odb_example.handover import prepare_sender
from odb_example.settings import LoaderKind
from odb_example.train import plans
from odb_example.train.odb_loader import Batch, OdbLoader, OdbOptions, apply_odb
from odb_example.train.sampler import EpochOrder, FollowsOrder, Plan, RankBatches
from odb_example.train.weightless import Samples, WithCopies, identities

__all__ = ["Batch", "OdbLoader", "OdbOptions", "PlannedLoader", "TrainLoader", "apply_odb", "build_loader"]

Collate = Callable[[list[Any]], Batch]


class TrainLoader(Protocol):
    """What a training loop sees of a loader.

    Attributes:
        order: which samples are left, in which epoch.
    """

    order: EpochOrder

    def __iter__(self) -> Iterator[Batch]:
        """Batches of what is left of this epoch; the same number on every rank, a multiple of the accumulation."""
        ...

    def set_epoch(self, epoch: int) -> None:
        """Go on to ``epoch``, never back."""
        ...

    def mark_done(self, trained: Iterable[int]) -> None:
        """Note what a step was trained on, by ``sample_index``, over all ranks; the epoch's last ends it."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Epoch and samples done, the same on every rank."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...

    def close(self) -> None: ...


class PlannedLoader(FollowsOrder, DataLoader):
    """Batches planned for a whole epoch, of rank ``rank``."""

    def __init__(
        self,
        samples: Samples,
        collate: Collate,
        order: EpochOrder,
        plan: Plan,
        *,
        lengths_seconds: float,
        rank: int,
        world_size: int,
        num_workers: int,
        prefetch_factor: int,
        accumulation_steps: int,
        start_method: str,
    ) -> None:
        """
        Args:
            lengths_seconds: what it took to learn the lengths the plan rests on; kept for the record.
        """
        super().__init__(
            WithCopies(samples, patches_counted=False),
            batch_sampler=RankBatches(
                order, plan, rank=rank, world_size=world_size, accumulation_steps=accumulation_steps
            ),
            collate_fn=collate,
            num_workers=num_workers,
            prefetch_factor=prefetch_factor if num_workers else None,
            worker_init_fn=prepare_sender,
            multiprocessing_context=multiprocessing.get_context(start_method) if num_workers else None,
            generator=torch.Generator().manual_seed(order.seed),
        )
        self.order = order
        self.lengths_seconds = lengths_seconds

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        iterator: Any = super().__iter__()
        try:
            yield from iterator
        finally:
            if self.num_workers:
                iterator._shutdown_workers()


def build_loader(
    kind: LoaderKind,
    dataset: Samples,
    collate: Collate,
    *,
    rank: int,
    world_size: int,
    seed: int,
    token_budget: int,
    buffer_size: int,
    max_patches: int,
    fixed_batch_size: int,
    num_workers: int,
    prefetch_factor: int,
    join: bool,
    group_order_flip: str,
    no_warmup: bool,
    accumulation_steps: int,
    loss_scaling: Literal["none", "exact", "approx"] = "none",
    multiprocessing_context: str | None = None,
    timeout_s: int = 1800,
) -> TrainLoader:
    """The loader of ``kind`` for this rank. ``odb`` still wants `apply_odb`, or a trainer's ``enable_odb``.

    Args:
        dataset: finished samples by position; ``indices``, where it has them, are the samples' identities.
        collate: pads finished samples into a plain dict and carries ODB's counts over.
        token_budget: cap of a group's padded tokens, for ``odb`` and ``oracle``. A longer sample travels alone.
        buffer_size: finished samples ODB collects before it groups them.
        prefetch_factor: samples (``odb``) or batches (the others) a worker prepares ahead. ODB's workers stand still
            between two rounds unless ``prefetch_factor * num_workers`` is twice the buffer.
        loss_scaling: ODB's own weighting of losses.
        multiprocessing_context: start method of the workers, fork by default.
        timeout_s: how long the ranks' collate processes wait for each other.

    Raises:
        UserError: no samples, ODB without workers, ODB over several ranks with another start method than fork, or a
            loader that needs lengths over a dataset that cannot tell them.
    """
    order = EpochOrder(identities(dataset), seed=seed)
    start_method = multiprocessing_context or "fork"
    if kind == "odb":
        options = OdbOptions(
            token_budget=token_budget, buffer_size=buffer_size, max_patches=max_patches, join=join,
            group_order_flip=group_order_flip, no_warmup=no_warmup, loss_scaling=loss_scaling,
        )  # fmt: skip
        return OdbLoader(
            dataset, collate, order, options, rank=rank, world_size=world_size, num_workers=num_workers,
            prefetch_factor=prefetch_factor, accumulation_steps=accumulation_steps, start_method=start_method,
            timeout_s=timeout_s,
        )  # fmt: skip
    lengths = plans.Lengths([], 0.0) if kind == "standard" else plans.measured_lengths(dataset)
    if kind == "standard":
        plan = plans.in_order(fixed_batch_size)
    elif kind == "group_by_length":
        plan = plans.length_grouped(lengths.tokens, fixed_batch_size, world_size)
    elif kind == "batch_rebalance":
        plan = plans.rebalanced(lengths.tokens, fixed_batch_size, world_size, accumulation_steps)
    elif kind == "oracle":
        plan = plans.token_budget(lengths.tokens, token_budget)
    else:
        raise UserError(f"no loader is called {kind}")
    return PlannedLoader(
        dataset, collate, order, plan, lengths_seconds=lengths.seconds, rank=rank, world_size=world_size,
        num_workers=num_workers, prefetch_factor=prefetch_factor, accumulation_steps=accumulation_steps,
        start_method=start_method,
    )  # fmt: skip
