"""Random loader configurations, each held to the same promises.

Every epoch gives each sample exactly once; all ranks take the same number of batches, whole accumulation windows; ODB
counts every row it was given; groups keep to the token budget; no process is left. ``main`` runs any number of them;
the suite keeps a fast selection.
"""

from __future__ import annotations

import math
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args

from odb_example.benchmarks.ranks import RankError, in_ranks
from odb_example.benchmarks.synthetic import LENGTH_MIXES, LengthMix, SyntheticSamples, collate, random_lengths
from odb_example.settings import LoaderKind

BOUND_S = 120.0
FIRST_IDENTITY = 700


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """One loader in one world."""

    kind: LoaderKind = "odb"
    ranks: int = 2
    samples: int = 100
    mix: LengthMix = "long_tail"
    token_budget: int = 512
    buffer_size: int = 32
    num_workers: int = 1
    prefetch_factor: int = 16
    epochs: int = 2
    accumulation_steps: int = 1
    fixed_batch_size: int = 4
    join: bool = True
    no_warmup: bool = False
    group_order_flip: str = "none"
    loss_scaling: Any = "none"
    seed: int = 0

    def dataset(self) -> SyntheticSamples:
        return SyntheticSamples(
            random_lengths(self.mix, self.samples, self.token_budget, self.seed), first_identity=FIRST_IDENTITY
        )


@dataclass(frozen=True, slots=True)
class Emitted:
    """One batch as a rank saw it: its epoch, identities (-1: weightless), padded tokens, and the count ODB gave it."""

    epoch: int
    identities: list[int]
    padded_tokens: int
    counted: int


def random_configuration(seed: int) -> Configuration:
    """A configuration drawn from the whole range that the loaders promise to serve; more than half of them are ODB."""
    draw = random.Random(seed)
    kinds: list[LoaderKind] = ["odb", "odb", "odb", "odb", *get_args(LoaderKind)]
    return Configuration(
        kind=draw.choice(kinds),
        ranks=draw.randint(1, 4),
        samples=draw.choice([draw.randint(1, 12), draw.randint(1, 400)]),
        mix=draw.choice(LENGTH_MIXES),
        token_budget=draw.choice([128, 512, 2048]),
        buffer_size=draw.choice([1, 4, 16, 64, 256]),
        num_workers=draw.randint(1, 3),
        prefetch_factor=draw.choice([1, 4, 32]),
        epochs=draw.randint(1, 3),
        accumulation_steps=draw.choice([1, 1, 2, 4]),
        fixed_batch_size=draw.choice([1, 3, 8]),
        join=draw.random() < 0.8,
        no_warmup=draw.random() < 0.5,
        group_order_flip=draw.choice(["none", "rank_epoch_random", "rank_window_random", "rank_window_balanced"]),
        loss_scaling=draw.choice(["none", "exact", "approx"]),
        seed=seed,
    )


def run_rank(rank: int, world_size: int, configuration: Configuration) -> list[Emitted]:
    """Every batch of one rank's loader over all epochs, in lock step with the others as a trainer would be."""
    import torch
    import torch.distributed as dist

    from odb_example.distributed import gather_objects
    from odb_example.train.loaders import OdbLoader, apply_odb, build_loader

    loader = build_loader(
        configuration.kind, configuration.dataset(), collate, rank=rank, world_size=world_size,
        seed=configuration.seed, token_budget=configuration.token_budget, buffer_size=configuration.buffer_size,
        max_patches=0, fixed_batch_size=configuration.fixed_batch_size, num_workers=configuration.num_workers,
        prefetch_factor=configuration.prefetch_factor, join=configuration.join,
        group_order_flip=configuration.group_order_flip, no_warmup=configuration.no_warmup,
        accumulation_steps=configuration.accumulation_steps, loss_scaling=configuration.loss_scaling,
        timeout_s=int(BOUND_S),
    )  # fmt: skip
    if isinstance(loader, OdbLoader):
        apply_odb(loader)
    emitted: list[Emitted] = []
    while loader.order.epoch < configuration.epochs:
        epoch, trained = loader.order.epoch, []
        for batch in loader:
            identities = batch["sample_index"].tolist()
            emitted.append(Emitted(epoch, identities, batch["input_ids"].numel(), batch.get("total_batch_size", 0)))
            trained += identities
            if world_size > 1:
                dist.all_reduce(torch.ones(1))
        for share in gather_objects(trained):
            loader.mark_done(share)
        if loader.order.epoch == epoch:
            break  # samples are missing; the caller says which
    return emitted


def broken_promises(configuration: Configuration) -> Iterator[str]:
    """Run ``configuration`` and yield every promise it broke, in words."""
    try:
        answers = in_ranks(run_rank, configuration.ranks, configuration, timeout_s=BOUND_S)
    except RankError as failure:
        yield str(failure)
        return
    for rank, answer in enumerate(answers):
        if answer.left_running:
            yield f"rank {rank} left running: {answer.left_running}"
    batches: list[list[Emitted]] = [answer.value for answer in answers]
    yield from _coverage(configuration, batches)
    yield from _lock_step(configuration, batches)
    if configuration.kind == "odb":
        counted = sum(batch.counted for batch in batches[0])
        share = math.ceil(configuration.samples / configuration.ranks)
        if counted != (expected := share * configuration.ranks * configuration.epochs):
            yield f"ODB counted {counted} samples, the ranks were given {expected}"
        yield from _budget(configuration, batches)


def _coverage(configuration: Configuration, batches: list[list[Emitted]]) -> Iterator[str]:
    wanted = range(FIRST_IDENTITY, FIRST_IDENTITY + configuration.samples)
    for epoch in range(configuration.epochs):
        seen = Counter(i for rank in batches for batch in rank if batch.epoch == epoch for i in batch.identities)
        copies = seen.pop(-1, 0)
        missing = [identity for identity in wanted if not seen[identity]]
        twice = [identity for identity, times in seen.items() if times > 1]
        if missing or twice:
            yield f"epoch {epoch}: {len(missing)} samples missing {missing[:5]}, {len(twice)} repeated {twice[:5]}"
        window = configuration.ranks * configuration.accumulation_steps
        most = configuration.ranks - 1 + window if configuration.kind == "odb" else window - 1
        if copies > most:
            yield f"epoch {epoch}: {copies} weightless rows, at most {most} are needed"


def _lock_step(configuration: Configuration, batches: list[list[Emitted]]) -> Iterator[str]:
    for epoch in range(configuration.epochs):
        counts = [sum(batch.epoch == epoch for batch in rank) for rank in batches]
        if len(set(counts)) > 1 or counts[0] % configuration.accumulation_steps:
            yield f"epoch {epoch}: batches per rank {counts}, accumulation {configuration.accumulation_steps}"


def _budget(configuration: Configuration, batches: list[list[Emitted]]) -> Iterator[str]:
    for rank in batches:
        for batch in rank:
            if len(batch.identities) > 1 and batch.padded_tokens > configuration.token_budget:
                yield f"{len(batch.identities)} rows of {batch.padded_tokens} padded tokens exceed the token budget"


def main(count: int, first_seed: int = 0) -> int:
    """Run ``count`` random configurations; a line each on stderr. Returns how many broke a promise."""
    broken = 0
    start = time.monotonic()
    for seed in range(first_seed, first_seed + count):
        configuration = random_configuration(seed)
        began = time.monotonic()
        faults = list(broken_promises(configuration))
        broken += bool(faults)
        verdict = "broken" if faults else "kept"
        print(f"{seed}: {verdict} in {time.monotonic() - began:.1f} s, {configuration}", file=sys.stderr)
        for fault in faults:
            print(f"    {fault}", file=sys.stderr)
    print(f"{count} random configurations, {broken} broken, {time.monotonic() - start:.0f} s")
    return broken
