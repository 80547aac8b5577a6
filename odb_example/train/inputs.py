"""What a run trains on: the store (copied to a fast local folder if asked for), its split, samples, collator."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from odb_example import distributed
from odb_example.data.collate import Collator
from odb_example.data.samples import FinishedSamples, SampleMaker
from odb_example.data.splits import Split, make_split
from odb_example.data.store import Store
from odb_example.distributed import Ranks
from odb_example.errors import UserError
from odb_example.settings import Settings


@dataclass(frozen=True, slots=True)
class Inputs:
    """Samples to train on and to evaluate, and where they come from."""

    store: Store
    split: Split
    training: FinishedSamples
    evaluation: FinishedSamples
    collate: Collator


def open_inputs(settings: Settings, processor: Any, ranks: Ranks) -> Inputs:
    """Open the store, split it, and make samples of both sides on demand.

    Raises:
        UserError: no such store, a split it cannot give, or fewer training records than ranks.
    """
    store = Store.open(local_copy(settings, ranks) if settings.source_data or settings.local_data else settings.data)
    split = make_split(
        len(store),
        mode=settings.split_mode,
        val_size=settings.val_size,
        split_seed=settings.split_seed,
        train_size=settings.train_size,
    )
    if len(split.train) < ranks.world_size:
        raise UserError(
            f"{len(split.train)} training records are fewer than {ranks.world_size} ranks",
            "lower --num-processes or raise --train-size",
        )
    maker = SampleMaker(processor, max_length=settings.max_length, backend=settings.processor_backend)
    return Inputs(
        store=store,
        split=split,
        training=FinishedSamples(store, split.train.tolist(), maker),
        evaluation=FinishedSamples(store, split.evaluation.tolist(), maker),
        collate=Collator(pad_token_id=processor.tokenizer.pad_token_id),
    )


def local_copy(settings: Settings, ranks: Ranks) -> Path:
    """Copy the source store to the local folder unless it is there already; one rank of each machine copies.

    The copy is made beside its target and renamed, so that a copy that was stopped is never taken for a store.

    Raises:
        UserError: source and target are one, or no target is named.
    """
    source = Path(settings.source_data or settings.data)
    if settings.local_data is None:
        raise UserError("--source-data without --local-data", "name the local folder to copy to")
    target = Path(settings.local_data)
    if source.resolve() == target.resolve():
        raise UserError(f"--source-data and --local-data are both {target}", "name two folders")
    if ranks.local_rank == 0:
        wanted = Store.open(source).fingerprint
        there = target.exists() and Store.open(target).fingerprint == wanted
        if settings.force_local_copy or not there:
            _copy(source, target)
    distributed.barrier()
    return target


def _copy(source: Path, target: Path) -> None:
    workshop = target.with_name(f".{target.name}.copying")
    shutil.rmtree(workshop, ignore_errors=True)
    try:
        shutil.copytree(source, workshop)
        shutil.rmtree(target, ignore_errors=True)
        workshop.rename(target)
    except OSError as error:
        shutil.rmtree(workshop, ignore_errors=True)
        raise UserError(
            f"cannot copy {source} to {target}: {error.strerror or error}", "free some space or name another folder"
        ) from error
