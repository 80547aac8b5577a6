"""Loaders that lose, repeat, overfill or forget."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader, DistributedSampler

from odb_example.conformance import ours
from odb_example.conformance.faults.fault import fault
from odb_example.conformance.pipeline import Batch, Pipeline, Sample


class Wrapped:
    """A loader that passes everything on; wrong ones override a method."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __iter__(self) -> Iterator[Batch]:
        return iter(self.inner)

    def set_epoch(self, epoch: int) -> None:
        self.inner.set_epoch(epoch)

    def mark_done(self, trained: Iterable[int]) -> None:
        self.inner.mark_done(trained)

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = self.inner.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.inner.load_state_dict(state)

    def close(self) -> None:
        self.inner.close()


def _wrapped(pipeline: Pipeline, kind: type[Wrapped]) -> Pipeline:
    return replace(pipeline, loader=partial(_make, pipeline.part("loader"), kind))


def _make(loader: Any, wrap: type[Wrapped], kind: str, *, rank: int, world_size: int) -> Wrapped:
    return wrap(loader(kind, rank=rank, world_size=world_size))


class _OneForAnother(ours.HeldSamples):
    def __init__(self) -> None:
        super().__init__(ours.stack().samples)
        self.indices = [117 if index == 5 else index for index in self.indices]

    def __getitem__(self, position: int) -> Sample:
        return super().__getitem__(self.indices[position])


class _OneTwice(ours.HeldSamples):
    def __init__(self) -> None:
        super().__init__(ours.stack().samples)
        self.indices = [*self.indices, 117]

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, position: int) -> Sample:
        return super().__getitem__(self.indices[position])


@fault(caught_by="every_sample_comes_once", mentions=("1 of 400 samples come more than once", "2 times"))
def one_sample_in_400_is_repeated(pipeline: Pipeline) -> Pipeline:
    """One sample of 400 stands in the epoch twice."""
    return replace(pipeline, loader=partial(ours.loader, samples=_OneTwice()))


@fault(caught_by="every_sample_comes_once", mentions=("1 of 400", "1 never", "in the place of another"))
def one_sample_stands_for_another(pipeline: Pipeline) -> Pipeline:
    """One sample of 400 comes twice, and another one never."""
    return replace(pipeline, loader=partial(ours.loader, samples=_OneForAnother()))


@fault(caught_by="every_sample_comes_once", mentions=("2 ranks", "seed the shuffle alike"))
def ranks_shuffle_apart(pipeline: Pipeline) -> Pipeline:
    """Every rank takes its share of an order of its own: its seed has the rank in it."""
    return replace(pipeline, loader=_shuffled_by_rank, loader_kinds=("standard",), budget_kinds=())


def _shuffled_by_rank(kind: str, *, rank: int, world_size: int) -> Any:
    held: Any = ours.held_samples()
    order = torch.randperm(len(held), generator=torch.Generator().manual_seed(rank))[rank::world_size]
    return DataLoader(held, batch_size=3, sampler=order.tolist(), collate_fn=ours.stack().collate)


@fault(caught_by="every_sample_comes_once", mentions="never come")
def last_batch_is_dropped(pipeline: Pipeline) -> Pipeline:
    """The last, partial batch is left out (drop_last)."""
    return _wrapped(pipeline, _DropLast)


class _DropLast(Wrapped):
    def __iter__(self) -> Iterator[Batch]:
        batches = list(self.inner)
        return iter(batches[:-1])


@fault(caught_by="every_sample_comes_once", mentions="repeats samples to fill")
def sampler_pads_with_repeats(pipeline: Pipeline) -> Pipeline:
    """torch's DistributedSampler repeats samples where they do not divide by the ranks."""
    return replace(pipeline, loader=_distributed_loader, loader_kinds=("standard",), budget_kinds=())


def _distributed_loader(kind: str, *, rank: int, world_size: int) -> Any:
    held: Any = ours.held_samples()
    sampler: Any = DistributedSampler(held, num_replicas=world_size, rank=rank, seed=0)
    loader: Any = DataLoader(held, batch_size=3, sampler=sampler, collate_fn=ours.stack().collate)
    loader.set_epoch = sampler.set_epoch
    return loader


@fault(caught_by="ranks_take_equal_steps", mentions="hangs in its next collective")
def ranks_are_out_of_step(pipeline: Pipeline) -> Pipeline:
    """The first rank's last batch is parted in two."""
    return replace(pipeline, loader=partial(_uneven, pipeline.part("loader")))


def _uneven(loader: Any, kind: str, *, rank: int, world_size: int) -> Any:
    made = loader(kind, rank=rank, world_size=world_size)
    return made if rank else _PartedLast(made)


class _PartedLast(Wrapped):
    def __iter__(self) -> Iterator[Batch]:
        batches = list(self.inner)
        yield from batches
        yield {**batches[-1], "sample_index": torch.full_like(batches[-1]["sample_index"], -1)}


@fault(caught_by="batches_keep_the_budget", mentions="padded size")
def budget_holds_for_the_sum_of_lengths(pipeline: Pipeline) -> Pipeline:
    """Groups are filled until the sum of true lengths reaches the budget; their padded size is larger."""
    return replace(pipeline, loader=partial(_sum_budget, pipeline), loader_kinds=("oracle",))


def _sum_budget(pipeline: Pipeline, kind: str, *, rank: int, world_size: int) -> list[Batch]:
    held, budget = ours.held_samples(), pipeline.token_budget or 0
    groups: list[list[int]] = [[]]
    for position in torch.randperm(len(held), generator=torch.Generator().manual_seed(0)).tolist():
        if sum(held.length(at) for at in groups[-1]) + held.length(position) > budget:
            groups.append([])
        groups[-1].append(position)
    collate: Any = pipeline.collate
    return [collate([held[at] for at in group]) for group in groups[rank::world_size] if group]


@fault(caught_by="batches_keep_the_budget", mentions="padded tokens")
def budget_is_overrun_by_a_row(pipeline: Pipeline) -> Pipeline:
    """A group is closed after it went over the budget, not before: some hold one row too many."""
    return replace(pipeline, token_budget=int((pipeline.token_budget or 0) * 0.9))


@fault(caught_by="epochs_differ_and_seeds_repeat", mentions="set_epoch does not reach")
def every_epoch_has_one_order(pipeline: Pipeline) -> Pipeline:
    """set_epoch is not passed on to the sampler."""
    return _wrapped(pipeline, _DeafToEpochs)


class _DeafToEpochs(Wrapped):
    def set_epoch(self, epoch: int) -> None:
        del epoch


@fault(caught_by="epochs_differ_and_seeds_repeat", mentions="an epoch late")
def second_epoch_repeats_the_first(pipeline: Pipeline) -> Pipeline:
    """set_epoch takes effect an epoch late: the second epoch has the first one's order."""
    return _wrapped(pipeline, _LateToEpochs)


class _LateToEpochs(Wrapped):
    def set_epoch(self, epoch: int) -> None:
        self.inner.set_epoch(max(epoch - 1, 0))


@fault(caught_by="epochs_differ_and_seeds_repeat", mentions="global random state")
def shuffle_has_no_seed(pipeline: Pipeline) -> Pipeline:
    """The order is drawn from the global random state."""
    return replace(pipeline, loader=_unseeded_loader, loader_kinds=("standard",), budget_kinds=())


def _unseeded_loader(kind: str, *, rank: int, world_size: int) -> Any:
    held: Any = ours.held_samples()
    # Ranks share a draw, epochs do not matter here: each call of the first rank draws anew.
    if rank == 0:
        _SHARED["order"] = torch.randperm(len(held)).tolist()
    share = _SHARED["order"][rank::world_size]
    collate: Any = ours.stack().collate
    return [collate([held[at] for at in share[start : start + 3]]) for start in range(0, len(share), 3)]


_SHARED: dict[str, list[int]] = {}


@fault(caught_by="rows_are_the_samples_they_say", mentions="whose index it carries")
def indices_are_those_of_other_rows(pipeline: Pipeline) -> Pipeline:
    """The indices of a batch stand in another order than its rows."""
    return _wrapped(pipeline, _TurnedIndices)


class _TurnedIndices(Wrapped):
    def __iter__(self) -> Iterator[Batch]:
        for batch in self.inner:
            yield {**batch, "sample_index": batch["sample_index"].flip(0)}


@fault(caught_by="a_stopped_epoch_goes_on", mentions="begins anew")
def resume_begins_the_epoch_anew(pipeline: Pipeline) -> Pipeline:
    """The state of a loader holds its epoch, not its place."""
    return _wrapped(pipeline, _Forgetful)


class _Forgetful(Wrapped):
    def load_state_dict(self, state: dict[str, Any]) -> None:
        del state


@fault(caught_by="a_stopped_epoch_goes_on", mentions="read ahead")
def read_ahead_counts_as_trained(pipeline: Pipeline) -> Pipeline:
    """Batches that were read ahead count as trained on: a resumed epoch skips them."""
    return _wrapped(pipeline, _ReadsAhead)


class _ReadsAhead(Wrapped):
    def mark_done(self, trained: Iterable[int]) -> None:
        done = set(trained)
        ahead = [index for index in range(len(ours.held_samples())) if index not in done][:2]
        self.inner.mark_done([*done, *ahead])


def _restore_length() -> None:
    DataLoader.__len__ = _TRUE_LENGTH  # type: ignore[method-assign]


_TRUE_LENGTH = DataLoader.__len__


@fault(
    caught_by="other_loaders_keep_their_length", mentions="patched on torch's own DataLoader", restore=_restore_length
)
def length_is_patched_for_all_loaders(pipeline: Pipeline) -> Pipeline:
    """`type(dataloader).__len__` is replaced on torch's DataLoader itself, as ODB does to a plain one."""
    return _wrapped(pipeline, _PatchesLength)


class _PatchesLength(Wrapped):
    def __iter__(self) -> Iterator[Batch]:
        yield from self.inner
        DataLoader.__len__ = lambda self: None  # type: ignore[method-assign, assignment, return-value]


@fault(caught_by="odb_gives_every_sample_once", mentions="says it holds")
def odb_totals_are_one_too_high(pipeline: Pipeline) -> Pipeline:
    """ODB's group says it holds a sample more than it does: epochs end early."""
    return _wrapped(pipeline, _OneMore)


class _OneMore(Wrapped):
    def __iter__(self) -> Iterator[Batch]:
        for batch in self.inner:
            if "total_batch_size" in batch:
                batch["total_batch_size"] = torch.as_tensor(batch["total_batch_size"]) + 1
            yield batch


@fault(caught_by="odb_keeps_two_ranks_in_step", mentions="says it holds")
def odb_totals_are_of_one_rank(pipeline: Pipeline) -> Pipeline:
    """ODB's step total is the rank's own number of rows: right on one rank, wrong on two."""
    return _wrapped(pipeline, _OwnTotal)


class _OwnTotal(Wrapped):
    def __iter__(self) -> Iterator[Batch]:
        for batch in self.inner:
            yield {**batch, "total_batch_size": int((batch["sample_index"] >= 0).sum())}
