"""The ODB loader: torch's DataLoader as `odb.apply` needs it, with what ODB 0.1.2 leaves open closed around it.

Samples come in one at a time and finished; batches come out, grouped by ODB up to a padded-token budget. Added here: a
class of its own (ODB patches ``__len__`` of the loader's *type*), the end of every iteration's processes at a known
point, checks that nothing between samples and trainer loses ODB's counts, and weightless batches that make the last
accumulation window whole. Importing this module puts `odb_example.compat` in place.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch.utils.data import DataLoader

from odb_example import compat
from odb_example.errors import UserError
from odb_example.handover import prepare_sender
from odb_example.train.sampler import EpochOrder, FollowsOrder, RankShare
from odb_example.train.weightless import Samples, WithCopies, copy_of

compat.install()

import odb  # noqa: E402
from odb.constants import ODB_STEP_INFO_KEY, TOTAL_BATCH_SIZE_KEY, TOTAL_TOKENS_KEY  # noqa: E402
from odb.step_info import ODBStepInfo  # noqa: E402

Batch = dict[str, Any]
SMALL_WORLD = 16
ODB_FIRST_SEED = 67108


@dataclass(frozen=True, slots=True, kw_only=True)
class OdbOptions:
    """What `odb.apply` is told. ``loss_scaling`` is ODB's own weighting; our exact objectives need none of it."""

    token_budget: int
    buffer_size: int
    max_patches: int = 0
    join: bool = True
    group_order_flip: str = "none"
    no_warmup: bool = False
    loss_scaling: Literal["none", "exact", "approx"] = "none"

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of `odb.apply`, also taken by ``enable_odb`` and ``configure_trainer``."""
        return asdict(self)


class OdbLoader(FollowsOrder, DataLoader):
    """Batches of one rank. Made by `odb_example.train.loaders.build_loader`; applied by `apply_odb` or a trainer."""

    def __init__(
        self,
        samples: Samples,
        collate: Callable[[list[Any]], Batch],
        order: EpochOrder,
        options: OdbOptions,
        *,
        rank: int,
        world_size: int,
        num_workers: int,
        prefetch_factor: int,
        accumulation_steps: int,
        start_method: str,
        timeout_s: int,
    ) -> None:
        if world_size > 1 and start_method != "fork":
            raise UserError(
                f"ODB cannot group over {world_size} ranks with {start_method} workers: its collate process would not"
                " be in the process group",
                "use fork",
            )
        if num_workers < 1:
            raise UserError("ODB needs at least one loader process", "give --num-workers 1 or more")
        super().__init__(
            WithCopies(samples, patches_counted=options.max_patches > 0),
            batch_size=1,
            sampler=RankShare(order, rank=rank, world_size=world_size),
            collate_fn=collate,
            num_workers=num_workers,
            prefetch_factor=prefetch_factor,
            worker_init_fn=_hand_over,
            multiprocessing_context=multiprocessing.get_context(start_method),
            generator=torch.Generator().manual_seed(order.seed),
        )
        self.order = order
        self.options = options
        self.accumulation_steps = accumulation_steps
        self.timeout_s = timeout_s
        self._set_odb_variables(world_size, timeout_s)

    @staticmethod
    def _set_odb_variables(world_size: int, timeout_s: int) -> None:
        """ODB takes these from the environment alone; what a person has set stays."""
        # Despite its name it bounds every exchange between the ranks, so one slow rank would end the job after 60 s.
        os.environ.setdefault("ODB_GROUP_INIT_TIMEOUT_SEC", str(timeout_s))
        if world_size <= SMALL_WORLD:  # spreads connections of large jobs; costs up to 2 s an epoch
            os.environ.setdefault("ODB_ITERATOR_STARTUP_JITTER_SEC", "0")

    def __len__(self) -> int:
        # `TypeError` is how torch and transformers learn that the number of batches is not known beforehand.
        raise TypeError("the number of batches is not known before ODB has grouped the samples")

    def __iter__(self) -> Generator[Batch, None, None]:  # type: ignore[override]
        """
        Raises:
            UserError: the collator returns no plain dict, or drops ODB's counts.
        """
        if not getattr(self, "_odb_enabled", False):
            raise UserError("this loader has no ODB yet", "call apply_odb(loader) or hand it to enable_odb")
        compat.next_iteration()
        # ODB shuffles a round's groups by a counter that starts anew with every process: tie it to the epoch.
        self._iter_random_seed = ODB_FIRST_SEED + self.order.seed + self.order.epoch - 1
        first = next(iter(self.sampler), None)
        taken = 0
        with closing(self._grouped()) as batches:
            for batch in batches:
                taken += 1
                yield batch
        missing = -taken % self.accumulation_steps
        if missing:
            assert first is not None
            copy = self.dataset[first if first < 0 else copy_of(first)]
            for _ in range(missing):
                yield {**self.collate_fn([copy]), ODB_STEP_INFO_KEY: ODBStepInfo(0)}

    def _grouped(self) -> Generator[Batch, None, None]:
        iterator: Any = super().__iter__()
        # ODB's shutdown writes a last word into this queue. A collate process that ended while it held the queue's lock
        # leaves that word unwritten for ever, and the interpreter would wait for it at exit.
        iterator._collate_queue.cancel_join_thread()
        exhausted = False
        try:
            for batch in iterator:
                self._check(batch)
                yield batch
            exhausted = True
        finally:
            # No reference to the iterator outlives this call: closed by a later garbage collection it would take the
            # next epoch's processes for its own.
            if not iterator._shutdown:
                if exhausted:
                    iterator._collate_process.join(self.timeout_s)  # it may still serve the other ranks
                else:
                    iterator._join_mode = False  # they stop too, or this rank failed: wait 10 s for them, not 35
                iterator._shutdown_workers()

    def _check(self, batch: Any) -> None:
        if type(batch) is not dict:
            raise UserError(
                f"the collator returned a {type(batch).__name__}; ODB counts and weighs plain dicts only",
                "return a dict",
            )
        needed = {TOTAL_BATCH_SIZE_KEY} | ({TOTAL_TOKENS_KEY} if self.options.loss_scaling != "none" else set())
        if not needed <= batch.keys():
            raise UserError(
                f"the collator dropped {', '.join(sorted(needed - batch.keys()))}; epochs would be counted wrong",
                "carry every key of the samples that is listed in odb.constants over into the batch",
            )


def apply_odb(loader: OdbLoader) -> Any:
    """`odb.apply` with the loader's own options; returns ODB's handle. For a loop that is not transformers' Trainer."""
    return odb.apply(loader, **loader.options.arguments())


def _hand_over(worker: int) -> None:
    """Small tensors by value, large ones by name: a descriptor each would run out while a buffer is held."""
    prepare_sender(worker)
    torch.multiprocessing.set_sharing_strategy("file_system")
