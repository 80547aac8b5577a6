"""Which samples are still to come in this epoch, in what order, and which of them are this rank's.

One permutation per seed and epoch, the same on every rank, less what is already trained on. Every rank gets the same
number of entries: where the samples do not divide, weightless copies (`odb_example.train.weightless`) make up the
rest. ODB needs that too: with unequal counts its ranks take different numbers of steps, or it drops samples of the
last round.

The epoch counter is the sampler's own. `mark_done` is told what was trained on, over all ranks; when that is everything
the next epoch begins. So an epoch that was stopped half-way continues with the rest, on any number of ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from torch.utils.data import Sampler

from odb_example.errors import UserError
from odb_example.train.weightless import NO_SAMPLE, copy_of

Plan = Callable[[Sequence[int]], list[list[int]]]


class EpochOrder:
    """The state of an epoch: its number, its order, and what of it is done."""

    def __init__(self, identities: Sequence[int], *, seed: int) -> None:
        """
        Args:
            identities: the ``sample_index`` of every position of the dataset; what `mark_done` speaks of.

        Raises:
            UserError: no samples.
        """
        if not identities:
            raise UserError("there are no samples to train on", "raise --train-size or lower --val-size")
        self.identities = list(identities)
        self.seed = seed
        self.epoch = 0
        self.done: set[int] = set()

    def left(self) -> list[int]:
        """Positions still to come, in the order of this epoch."""
        order = np.random.default_rng([self.seed, self.epoch]).permutation(len(self.identities)).tolist()
        return [position for position in order if self.identities[position] not in self.done]

    def set_epoch(self, epoch: int) -> None:
        """Go on to ``epoch``. Never back: a trainer that counts from its own start would undo a resumed state."""
        if epoch > self.epoch:
            self.epoch, self.done = epoch, set()

    def mark_done(self, trained: Iterable[int]) -> None:
        """Note the ``sample_index`` values of a step, over all ranks (-1 is passed over); the last ends the epoch."""
        self.done.update(index for index in trained if index != NO_SAMPLE)
        if len(self.done) >= len(self.identities):
            self.epoch, self.done = self.epoch + 1, set()

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "done": sorted(self.done)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """
        Raises:
            UserError: the state speaks of samples that this split does not hold.
        """
        strangers = set(state["done"]) - set(self.identities)
        if strangers:
            raise UserError(
                f"the checkpoint was trained on {len(strangers)} samples that this split does not hold,"
                f" sample_index {min(strangers)} first",
                "resume with the data and split it was made with",
            )
        self.epoch, self.done = int(state["epoch"]), set(state["done"])


class FollowsOrder:
    """What a loader says about its epoch, all of it its order's words."""

    order: EpochOrder

    def set_epoch(self, epoch: int) -> None:
        self.order.set_epoch(epoch)

    def mark_done(self, trained: Iterable[int]) -> None:
        self.order.mark_done(trained)

    def state_dict(self) -> dict[str, Any]:
        return self.order.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.order.load_state_dict(state)

    def close(self) -> None:
        """Nothing outlives an iteration; here so that every loader can be closed alike."""


class RankShare(Sampler[int]):
    """This rank's positions, one at a time: every ``world_size``-th of what is left, and at most one copy."""

    def __init__(self, order: EpochOrder, *, rank: int, world_size: int) -> None:
        self.order, self.rank, self.world_size = order, rank, world_size

    def __iter__(self) -> Iterator[int]:
        left = self.order.left()
        missing = -len(left) % self.world_size
        return iter((left + [copy_of(position) for position in left[:1] * missing])[self.rank :: self.world_size])

    def __len__(self) -> int:
        return math.ceil(len(self.order.left()) / self.world_size)


class RankBatches(Sampler[list[int]]):
    """This rank's batches of a plan that is made for all ranks at once.

    The plan's batches are dealt in turn: ``world_size`` of them are one step of all ranks. Weightless batches make the
    last one whole, and the accumulation window with it.
    """

    def __init__(self, order: EpochOrder, plan: Plan, *, rank: int, world_size: int, accumulation_steps: int) -> None:
        self.order, self.plan = order, plan
        self.rank, self.world_size, self.accumulation_steps = rank, world_size, accumulation_steps

    def __iter__(self) -> Iterator[list[int]]:
        left = self.order.left()
        batches = self.plan(left) if left else []
        missing = -len(batches) % (self.world_size * self.accumulation_steps)
        yield from (batches + [[copy_of(left[0])]] * missing)[self.rank :: self.world_size]

    def __len__(self) -> int:
        """Batches of a whole epoch on this rank, also where a part of it is already done."""
        return self._whole_epoch

    @cached_property
    def _whole_epoch(self) -> int:
        window = self.world_size * self.accumulation_steps
        return _round_up(len(self.plan(range(len(self.order.identities)))), window) // self.world_size


def _round_up(value: int, step: int) -> int:
    return math.ceil(value / step) * step
