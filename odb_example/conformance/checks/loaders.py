"""A loader groups: each sample once an epoch over all ranks, ranks in step, the budget kept, rows what they say.

A row with ``sample_index`` -1 weighs nothing (it makes up for a missing one) and is passed over.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, nullcontext
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader

from odb_example.conformance.check import NotApplicable, needs
from odb_example.conformance.checks.collate import unpad
from odb_example.conformance.expect import expect, expect_equal, identical
from odb_example.conformance.pipeline import Batch, Pipeline
from odb_example.conformance.ranks import in_ranks

Epoch = list[list[Batch]]  # batches by rank
BATCHES_THAT_DIFFER = 14
"""Of so many, two of four orders are alike by chance in 1 case of 10^10 (6 pairs, 14! orders), of 3 in most cases."""


@needs("loader", "records")
def every_sample_comes_once(pipeline: Pipeline) -> None:
    """Over all ranks an epoch holds every sample exactly once, on 1, 2 and 8 ranks and an odd number."""
    for kind in pipeline.loader_kinds:
        for world in _worlds(pipeline):
            _expect_once(pipeline, _epoch(pipeline, kind, world), f"{kind} loader on {_ranks(world)}")


@needs("loader")
def ranks_take_equal_steps(pipeline: Pipeline) -> None:
    """Every rank gets the same number of batches, or the others wait for ever in a collective."""
    for kind in pipeline.loader_kinds:
        for world in _worlds(pipeline)[1:]:
            _expect_in_step(_epoch(pipeline, kind, world), f"{kind} loader on {_ranks(world)}")


@needs("loader", "token_budget", "budget_kinds")
def batches_keep_the_budget(pipeline: Pipeline) -> None:
    """A batch of several rows stays within the padded-token budget; only a longer sample may exceed it, alone."""
    for kind in set(pipeline.budget_kinds) & set(pipeline.loader_kinds):
        _expect_budget(pipeline, _epoch(pipeline, kind, 1), kind)


@needs("loader", "sample")
def rows_are_the_samples_they_say(pipeline: Pipeline) -> None:
    """A row's tokens and labels are those of the sample its index names."""
    for kind in pipeline.loader_kinds:
        _expect_rows(pipeline, _epoch(pipeline, kind, 2), kind)


@needs("loader")
def epochs_differ_and_seeds_repeat(pipeline: Pipeline) -> None:
    """A new epoch has a new order, the same one on every rank; the same loader made again has the same order."""
    for kind in pipeline.loader_kinds:
        first = _order(_epoch(pipeline, kind, 2))
        again = _order(_read(pipeline, kind, 2))
        expect_equal(
            again,
            first,
            unit="sample",
            claim=f"the {kind} loader made again with the same seed has another order",
            likely="the shuffle draws from the global random state",
        )
        orders = {tuple(first), *(tuple(_order(_read(pipeline, kind, 2, epoch=epoch))) for epoch in (1, 2, 3))}
        batches = sum(len(share) for share in _epoch(pipeline, kind, 2))
        expect(
            len(orders) >= (4 if batches >= BATCHES_THAT_DIFFER else 2),
            claim=f"the {kind} loader repeats the order of an epoch: {len(orders)} of 4 are different",
            likely="set_epoch does not reach the sampler" if len(orders) == 1 else "set_epoch comes an epoch late",
        )


@needs("loader", "records")
def a_stopped_epoch_goes_on(pipeline: Pipeline) -> None:
    """A loader with the state of another one gives what that one had left, each sample once, none again."""
    assert pipeline.loader is not None
    for kind in pipeline.loader_kinds:
        loaders = _loaders(pipeline, kind, 2)
        for loader in loaders:
            for method in ("state_dict", "load_state_dict"):
                if not hasattr(loader, method):
                    raise NotApplicable(f"`{method}` of the loader")
        done: list[Batch] = []
        for loader in loaders:
            with closing(iter(loader)) as batches:
                done += [batch for batch, _ in zip(batches, range(3), strict=False)]
        trained = [index for batch in done for index in _indices(batch)]
        for loader in loaders:
            if hasattr(loader, "mark_done"):
                loader.mark_done(trained)
        state = loaders[0].state_dict()
        resumed = _loaders(pipeline, kind, 1)
        resumed[0].load_state_dict(state)
        rest = [index for batch in resumed[0] for index in _indices(batch)]
        again = sorted(set(trained) & set(rest))
        expect(
            not again,
            claim=f"the {kind} loader, resumed, repeats {len(again)} samples that were trained on",
            came=[pipeline.named(index) for index in again[:5]],
            likely="the position is not in the state, so the epoch begins anew",
        )
        lost = sorted(set(range(pipeline.size)) - set(trained) - set(rest))
        expect(
            not lost,
            claim=f"the {kind} loader, resumed, never gives {len(lost)} samples",
            came=[pipeline.named(index) for index in lost[:5]],
            likely="batches that were read ahead count as trained on, or batches are skipped on another rank count",
        )


@needs("loader")
def other_loaders_keep_their_length(pipeline: Pipeline) -> None:
    """Making and reading a loader changes nothing about other DataLoaders of the process."""
    for kind in pipeline.loader_kinds:
        _epoch(pipeline, kind, 1)
    _expect_length()


@needs("loader", "records", "process_kinds", processes=True)
def odb_gives_every_sample_once(pipeline: Pipeline) -> None:
    """ODB's epoch on one rank: each sample once, the budget kept, rows and counts true, nothing left behind."""
    before = _children()
    for kind in pipeline.process_kinds:
        batches: list[Batch] = [_plain(batch) for batch in _read(pipeline, kind, 1)[0]]
        _expect_whole(pipeline, [batches], kind)
    _expect_length()
    left = _children() - before
    expect(
        not left,
        claim=f"the {kind} loader leaves {len(left)} processes behind after an epoch",
        likely="the collate process outlives the iterator; end it in the iterator's finally",
    )


@needs("loader", "records", "process_kinds", processes=True)
def odb_keeps_two_ranks_in_step(pipeline: Pipeline) -> None:
    """ODB's epoch over two communicating ranks: each sample once, equal steps, and the counts of a step are its sum."""
    for kind in pipeline.process_kinds:
        ranks = in_ranks(2, lambda rank, world, kind=kind: _digest_of_rank(pipeline, kind, rank, world))  # type: ignore[misc]
        _expect_whole(pipeline, ranks, kind)


def _expect_whole(pipeline: Pipeline, epoch: Epoch, kind: str) -> None:
    where = f"{kind} loader on {_ranks(len(epoch))}"
    _expect_once(pipeline, epoch, where)
    _expect_in_step(epoch, where)
    if pipeline.token_budget is not None and kind in pipeline.budget_kinds:
        _expect_budget(pipeline, epoch, kind)
    if pipeline.sample is not None:
        _expect_rows(pipeline, epoch, kind)
    for step, batches in enumerate(zip(*epoch, strict=True)):
        said = {total for total in (_said_total(batch) for batch in batches) if total is not None}
        rows = sum(len(_indices(batch)) for batch in batches)
        expect(
            not said or said == {rows},
            claim=f"step {step} of the {where} says it holds {sorted(said)} samples and holds {rows}",
            likely="a group's `total_batch_size` is that of one rank, or rows were added after it was counted",
        )


def _expect_once(pipeline: Pipeline, epoch: Epoch, where: str) -> None:
    counts = Counter(_order(epoch))
    repeated = sorted(index for index, count in counts.items() if count > 1)
    missing = sorted(set(range(pipeline.size)) - set(counts))
    lost = f", {len(missing)} never, {pipeline.named(missing[0])} among them" if missing else ""
    expect(
        not repeated,
        claim=f"{where}: {len(repeated)} of {pipeline.size} samples come more than once in an epoch{lost}",
        expected="each sample once",
        came=", ".join(f"{pipeline.named(index)} {counts[index]} times" for index in repeated[:4]),
        likely="the sampler repeats samples to fill the last step or the last rank's share; trim them, or give the "
        "copies index -1 and no label"
        if not missing
        else "each rank draws from an order of its own; seed the shuffle alike on every rank"
        if len(epoch) > 1
        else "samples are drawn with replacement, or an index stands in the place of another",
    )
    expect(
        not missing,
        claim=f"{where}: {len(missing)} of {pipeline.size} samples never come",
        expected="each sample once",
        came=", ".join(pipeline.named(index) for index in missing[:4]),
        likely="the last, partial batch or share is dropped (drop_last), or a group is lost between ranks",
    )


def _expect_in_step(epoch: Epoch, where: str) -> None:
    steps = [len(batches) for batches in epoch]
    expect(
        len(set(steps)) == 1,
        claim=f"{where}: the ranks get different numbers of batches",
        expected="equal numbers",
        came=steps,
        likely="groups are counted per rank; the rank with more of them hangs in its next collective",
    )


def _expect_budget(pipeline: Pipeline, epoch: Epoch, kind: str) -> None:
    for batches in epoch:
        for number, batch in enumerate(batches):
            rows, width = batch["input_ids"].shape
            expect(
                rows == 1 or rows * width <= (pipeline.token_budget or 0),
                claim=f"batch {number} of the {kind} loader has {rows} x {width} = {rows * width} padded tokens",
                expected=f"at most token_budget = {pipeline.token_budget}",
                likely="the sum of true lengths is held against the budget where the padded size (rows x longest) "
                "must be, or lengths before expansion are used",
            )


def _expect_rows(pipeline: Pipeline, epoch: Epoch, kind: str) -> None:
    known = dict(pipeline.numbered)
    for number, batch in enumerate(batch for batches in epoch for batch in batches):
        for row, index in enumerate(batch["sample_index"].tolist()):
            if index not in known:
                continue
            sample = known[index]
            for field in ("input_ids", "labels"):
                came = unpad(batch, row, field, len(sample["input_ids"]), pipeline.padding_side)
                if not identical(came, sample[field]):
                    is_another = any(
                        torch.equal(unpad(batch, row, field, len(one[field]), pipeline.padding_side), one[field])
                        for one in known.values()
                    )
                    expect_equal(
                        came,
                        sample[field],
                        unit="token",
                        claim=f"row {row} of batch {number} of the {kind} loader is not sample "
                        f"{pipeline.named(index)}, whose index it carries (`{field}`)",
                        likely="rows are sorted or filtered after their indices were collected; resume and records "
                        "then speak of other samples"
                        if is_another
                        else f"`{field}` are changed between dataset item and batch: see collator_only_pads",
                    )


def _worlds(pipeline: Pipeline) -> tuple[int, ...]:
    """Numbers of ranks, one of them such that the samples do not divide by it: there loaders repeat or drop."""
    odd = next(world for world in (3, 5, 7, 11) if pipeline.size % world or world == 11)
    return tuple(world for world in (1, 2, odd, 8) if world <= pipeline.size)


def _expect_length() -> None:
    try:
        came: object = len(DataLoader(list(range(8)), batch_size=2))  # type: ignore[arg-type]
    except TypeError as error:
        came = error
    expect_equal(
        came,
        4,
        claim="len() of every DataLoader in the process is broken",
        likely="`type(dataloader).__len__` is patched on torch's own DataLoader; give your loader a class of its own",
    )


def _epoch(pipeline: Pipeline, kind: str, world: int) -> Epoch:
    return pipeline.once(("epoch", kind, world), ("loader",), lambda: _read(pipeline, kind, world))


def _read(pipeline: Pipeline, kind: str, world: int, epoch: int = 0) -> Epoch:
    read = []
    for loader in _loaders(pipeline, kind, world):
        if epoch and not hasattr(loader, "set_epoch"):
            raise NotApplicable("`set_epoch` of the loader")
        if hasattr(loader, "set_epoch"):
            loader.set_epoch(epoch)
        with closing(loader) if hasattr(loader, "close") else nullcontext():
            read.append(_until_the_end(pipeline, loader, kind))
    return read


def _until_the_end(pipeline: Pipeline, loader: Iterable[Batch], kind: str) -> list[Batch]:
    """All batches of an epoch; more than there can be would fill the memory before anyone knew why."""
    most = 2 * pipeline.size + 100 if pipeline.records is not None else 100_000
    batches = list(islice(loader, most + 1))
    expect(
        len(batches) <= most,
        claim=f"the {kind} loader does not end: more than {most} batches in an epoch of {pipeline.size} samples",
        likely="a sampler or an iterable that begins anew by itself (cycle); an epoch ends",
    )
    return batches


def _loaders(pipeline: Pipeline, kind: str, world: int) -> list[Any]:
    assert pipeline.loader is not None
    made = [pipeline.loader(kind, rank=rank, world_size=world) for rank in range(world)]
    if not hasattr(made[0], "set_epoch") and "sample_index" not in next(iter(made[0])):
        raise NotApplicable("batches with `sample_index` (rows,): the index of each row's sample")
    return made


def _digest_of_rank(pipeline: Pipeline, kind: str, rank: int, world: int) -> list[Batch]:
    assert pipeline.loader is not None
    loader: Any = pipeline.loader(kind, rank=rank, world_size=world)
    return [_plain(batch) for batch in loader]


def _plain(batch: Batch) -> dict[str, Any]:
    """What the checks read of a batch, light enough to travel between processes."""
    kept = {name: batch[name].clone() for name in ("input_ids", "labels", "sample_index", "attention_mask")}
    return {**kept, "said_total": _said_total(batch)}


def _said_total(batch: Batch) -> int | None:
    if "said_total" in batch:
        said: int | None = batch["said_total"]
        return said
    if "total_batch_size" in batch:
        return int(torch.as_tensor(batch["total_batch_size"]).flatten()[0])
    info = batch.get("odb_step_info")
    return None if info is None else int(info.all_samples_this_step)


def _order(epoch: Epoch) -> list[int]:
    """Indices in the order of training: step by step, rank by rank."""
    longest = max(len(batches) for batches in epoch)
    return [
        index
        for step in range(longest)
        for batches in epoch
        if step < len(batches)
        for index in _indices(batches[step])
    ]


def _indices(batch: Batch) -> list[int]:
    return [index for index in batch["sample_index"].tolist() if index >= 0]


def _children() -> set[int]:
    with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as stream:
        return {int(word) for word in stream.read().split()}


def _ranks(world: int) -> str:
    return "1 rank" if world == 1 else f"{world} ranks"


_Work = Callable[[int, int], Sequence[Batch]]
