"""How the loaders that are not ODB group an epoch: a plan turns the positions still to come into batches for all ranks.

`in_order` needs nothing; the others need every length beforehand, which `measured_lengths` reads and times. The two
strategies of transformers run through its own public samplers, given this epoch's order, so that they share one seed,
one epoch counter and one way to resume with everything else, and repeat no sample.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from transformers.trainer_pt_utils import BatchRebalanceSampler, get_length_grouped_indices

from odb_example.data.packing import pack
from odb_example.distributed import gather_objects
from odb_example.errors import UserError
from odb_example.train.sampler import Plan
from odb_example.train.weightless import Samples


@dataclass(frozen=True, slots=True)
class Lengths:
    """Finished length of every position, in tokens, and the seconds it took to learn them."""

    tokens: list[int]
    seconds: float


def measured_lengths(dataset: Samples) -> Lengths:
    """Every length of ``dataset``; ranks that share a process group share the work.

    Raises:
        UserError: the dataset cannot tell lengths.
    """
    length = getattr(dataset, "length", None)
    if length is None:
        raise UserError(
            f"{type(dataset).__name__} has no length(position), which this loader needs before it starts",
            "use --loader odb or standard",
        )
    start = time.perf_counter()
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    shares = gather_objects([length(position) for position in range(rank, len(dataset), ranks)])
    tokens = [0] * len(dataset)
    for owner, share in enumerate(shares):
        tokens[owner::ranks] = share
    return Lengths(tokens, time.perf_counter() - start)


def in_order(batch_size: int) -> Plan:
    """``batch_size`` rows at a time, in the epoch's order."""

    def plan(left: Sequence[int]) -> list[list[int]]:
        return _chunks(left, batch_size)

    return plan


def token_budget(tokens: Sequence[int], budget: int) -> Plan:
    """The oracle: sorted by length into groups of a padded size up to ``budget``, groups in random order."""

    def plan(left: Sequence[int]) -> list[list[int]]:
        groups = pack([tokens[position] for position in left], budget, order="shortest_first")
        # A group's first row stands anywhere in the epoch's random order, so this order of groups is random too.
        return [[left[place] for place in group] for group in sorted(groups)]

    return plan


def length_grouped(tokens: Sequence[int], batch_size: int, world_size: int) -> Plan:
    """transformers' ``group_by_length``: sorted by length inside random chunks of up to 50 steps."""

    def plan(left: Sequence[int]) -> list[list[int]]:
        places = get_length_grouped_indices(
            [tokens[position] for position in left], batch_size * world_size, generator=torch.Generator().manual_seed(0)
        )
        return _chunks([left[place] for place in places], batch_size)

    return plan


def rebalanced(tokens: Sequence[int], batch_size: int, world_size: int, accumulation_steps: int) -> Plan:
    """transformers' ``batch_rebalance``: a step's samples, cut into batches of about the same cost.

    The last samples form a smaller step; where they are fewer than its batches, each travels alone (transformers would
    repeat others to fill it).
    """
    batches = world_size * accumulation_steps

    def plan(left: Sequence[int]) -> list[list[int]]:
        whole = len(left) - len(left) % (batches * batch_size)
        rest = left[whole:]
        planned = steps(left[:whole], batches * batch_size)
        return planned + (steps(rest, len(rest)) if len(rest) >= batches else [[position] for position in rest])

    def steps(positions: Sequence[int], samples_per_step: int) -> list[list[int]]:
        if not positions:
            return []
        of_rank = [
            BatchRebalanceSampler(
                [tokens[position] for position in positions], samples_per_step, world_size, accumulation_steps,
                shuffle=False, rank=rank,
            )
            for rank in range(world_size)
        ]  # fmt: skip
        return [[positions[place] for place in batch] for turn in zip(*of_rank, strict=True) for batch in turn]

    return plan


def _chunks(positions: Sequence[int], size: int) -> list[list[int]]:
    return [list(positions[start : start + size]) for start in range(0, len(positions), size)]
