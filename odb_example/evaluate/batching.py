"""Token-budget batches of an evaluation: who scores what, and worker processes that prepare it.

In: a data set of finished samples that knows their lengths, and a function that scores one padded batch. Out: one
value a sample, on every rank, by its place. Groups are packed by length, so little is padded, and dealt so that every
rank has about the same number of padded tokens; a rank that is done takes over what a slower one has not begun.
Worker processes prepare batches while the model runs. A sample that cannot be made comes back with its reason instead
of ending the run. Neither grouping nor rank count changes which value a sample gets, beyond the kernels' float noise.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader, Dataset

from odb_example import distributed
from odb_example.data.packing import pack, padded_tokens
from odb_example.distributed import Ranks
from odb_example.errors import UserError
from odb_example.evaluate.partial import PartialRows
from odb_example.handover import prepare_sender

Batch = dict[str, Any]
Sample = Mapping[str, torch.Tensor]
Collate = Callable[[Sequence[Any]], Batch]


class SizedSamples(Protocol):
    """Finished samples by place; one that cannot be made raises a `UserError`, in ``length`` or on access."""

    def __len__(self) -> int: ...
    def __getitem__(self, position: int) -> Sample: ...
    def length(self, position: int) -> int: ...


@dataclass(frozen=True, slots=True)
class Prepared:
    """A padded batch (None if no sample of the group could be made), the places of its rows, and refused places."""

    batch: Batch | None
    positions: list[int]
    refused: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """One value a sample by place, reasons of those refused, and what it took on this rank.

    ``padded_tokens`` and ``tokens`` are those of its batches, ``seconds`` its wall time.
    """

    values: dict[int, Any]
    refused: dict[int, str]
    batches: int
    padded_tokens: int
    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How batches are made; nothing here changes a figure.

    ``prefetch_factor`` is in batches a worker; ``log_every`` in batches, 0 for silence.
    """

    token_budget: int
    num_workers: int = 0
    prefetch_factor: int | None = None
    log_every: int = 0
    label: str = "evaluation"


def score_samples(
    samples: SizedSamples,
    collate: Collate,
    score: Callable[[Batch], Sequence[Any]],
    ranks: Ranks,
    effort: Effort,
    partial: PartialRows | None = None,
) -> Scored:
    """Score every sample once over all ranks; the result is whole on every rank.

    Args:
        score: one JSON-able value a row of a padded batch that lies on the rank's device.
        partial: rows that need no scoring any more, and where new ones are kept.
    """
    started = time.perf_counter()
    values: dict[int, Any] = dict(partial.done) if partial else {}
    todo = [position for position in range(len(samples)) if position not in values]
    lengths, refused = measure_lengths(samples, todo, ranks)
    places = sorted(lengths)
    shares = share_groups([lengths[place] for place in places], effort.token_budget, ranks.world_size)
    taken = distributed.take([len(share) for share in shares], ranks)
    groups = ([places[number] for number in shares[owner][turn]] for owner, turn in taken)
    local: dict[int, Any] = {}
    batches = padded = 0
    workers = min(effort.num_workers, len(shares[ranks.rank]))
    for prepared in prepared_batches(samples, groups, collate, replace(effort, num_workers=workers), ranks.device):
        batches += 1
        refused |= prepared.refused
        if prepared.batch is not None:
            batch = {name: _moved(value, ranks.device) for name, value in prepared.batch.items()}
            padded += batch["input_ids"].numel()
            rows = dict(zip(prepared.positions, score(batch), strict=True))
            local |= rows
            if partial:
                partial.add(rows)
        if effort.log_every and batches % effort.log_every == 0 and ranks.is_main:
            rate = len(local) / (time.perf_counter() - started)
            share = f"{len(local)} of about {len(places) // ranks.world_size} samples"
            line = f"{effort.label}: batch {batches}, {share}, {rate:.1f} samples/s on this rank"
            print(line, file=sys.stderr, flush=True)
    for theirs, not_made in distributed.gather_objects((local, refused)):
        values |= theirs
        refused |= not_made
    return Scored(
        values=dict(sorted(values.items())), refused=dict(sorted(refused.items())), batches=batches,
        padded_tokens=padded, tokens=sum(lengths[place] for place in local),
        seconds=time.perf_counter() - started,
    )  # fmt: skip


def measure_lengths(
    samples: SizedSamples, positions: Sequence[int], ranks: Ranks
) -> tuple[dict[int, int], dict[int, str]]:
    """Lengths in tokens of the samples at ``positions``, each measured by one rank, and why others have none."""
    lengths: dict[int, int] = {}
    refused: dict[int, str] = {}
    for position in positions[ranks.rank :: ranks.world_size]:
        try:
            lengths[position] = samples.length(position)
        except UserError as error:
            refused[position] = str(error)
    for theirs, not_made in distributed.gather_objects((lengths, refused)):
        lengths |= theirs
        refused |= not_made
    return lengths, refused


def share_groups(lengths: Sequence[int], token_budget: int, world_size: int) -> list[list[list[int]]]:
    """Groups of positions for each rank: packed by length, then dealt so that padded tokens are even.

    Largest groups first, each to the rank with the least so far.
    """
    groups = pack(lengths, token_budget, order="longest_first")
    groups.sort(key=lambda group: padded_tokens(lengths, group), reverse=True)
    shares: list[list[list[int]]] = [[] for _ in range(world_size)]
    loads = [0] * world_size
    for group in groups:
        rank = loads.index(min(loads))
        shares[rank].append(group)
        loads[rank] += padded_tokens(lengths, group)
    return shares


def prepared_batches(
    samples: SizedSamples, groups: Iterable[list[int]], collate: Collate, effort: Effort, device: torch.device
) -> Iterator[Prepared]:
    """Collated batches of ``groups``, in order; with no workers, made in this process as they are asked for."""
    loader = DataLoader(
        _Attempts(samples),
        batch_sampler=groups,
        collate_fn=_Collate(collate),
        num_workers=effort.num_workers,
        prefetch_factor=effort.prefetch_factor if effort.num_workers else None,
        worker_init_fn=prepare_sender,
        pin_memory=device.type == "cuda",
    )
    return iter(loader)


def _moved(value: Any, device: torch.device) -> Any:
    return value.to(device, non_blocking=True) if isinstance(value, torch.Tensor) else value


@dataclass(frozen=True, slots=True)
class _Attempt:
    position: int
    sample: Sample | None
    refusal: str = ""


class _Attempts(Dataset[_Attempt]):
    """The samples, with a refusal as a value: an exception in a worker would end the run."""

    def __init__(self, samples: SizedSamples) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, position: int) -> _Attempt:
        try:
            return _Attempt(position, self.samples[position])
        except UserError as error:
            return _Attempt(position, None, str(error))


@dataclass(frozen=True, slots=True)
class _Collate:
    collate: Collate

    def __call__(self, attempts: Sequence[_Attempt]) -> Prepared:
        made = [attempt for attempt in attempts if attempt.sample is not None]
        refused = {attempt.position: attempt.refusal for attempt in attempts if attempt.sample is None}
        batch = self.collate([attempt.sample for attempt in made]) if made else None
        return Prepared(batch, [attempt.position for attempt in made], refused)
