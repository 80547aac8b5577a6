"""What one optimizer step holds, counted before it is trained on: per rank, then over all ranks."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields

import torch
import torch.distributed as dist

from odb_example.train.objective import normaliser


@dataclass(frozen=True, slots=True)
class StepCounts:
    """Counts of one optimizer step.

    Rows that weigh nothing (copies that make up a missing row or batch) are no samples and hold no tokens; in a batch
    with real rows they are part of its padding.

    Attributes:
        samples: rows trained on.
        labelled_samples: rows with at least one predicted label.
        label_tokens: predicted labels.
        input_tokens: tokens the attention mask shows.
        padded_tokens: tokens of the padded batches.
        groups: batches with samples.
        idle: weightless batches, which only keep the ranks in step.
        repeated: weightless rows beside real ones.
        text_only: batches that got a masked blank image (`odb_example.train.text_only`).
        largest_batch_tokens: padded tokens of the largest batch of any rank.
    """

    samples: int = 0
    labelled_samples: int = 0
    label_tokens: int = 0
    input_tokens: int = 0
    padded_tokens: int = 0
    groups: int = 0
    idle: int = 0
    repeated: int = 0
    text_only: int = 0
    largest_batch_tokens: int = 0

    def merge(self, other: StepCounts) -> StepCounts:
        """Counts of both together: sums, and the larger of the largest."""
        return StepCounts(
            *(
                max(getattr(self, f.name), getattr(other, f.name))
                if f.name == "largest_batch_tokens"
                else getattr(self, f.name) + getattr(other, f.name)
                for f in fields(self)
            )
        )


def count_batch(batch: Mapping[str, torch.Tensor]) -> StepCounts:
    """Counts of one padded batch with ``sample_index`` beside it: -1, or nothing, for a row that weighs nothing."""
    weighs = batch["sample_index"] >= 0
    real = int(weighs.sum())
    if not real:
        return StepCounts(idle=1)
    labels, attended = batch["labels"], batch["attention_mask"]
    return StepCounts(
        samples=real,
        labelled_samples=normaliser(labels, "sample"),
        label_tokens=normaliser(labels, "token"),
        input_tokens=int(attended[weighs].sum()),
        padded_tokens=attended.numel(),
        groups=1,
        repeated=attended.shape[0] - real,
        text_only=int("pixel_values" not in batch),
        largest_batch_tokens=attended.numel(),
    )


def merged(counts: Iterable[StepCounts]) -> StepCounts:
    """Counts of several batches, or of several ranks, together."""
    return functools.reduce(StepCounts.merge, counts, StepCounts())


def over_ranks(counts: StepCounts, device: torch.device) -> tuple[StepCounts, ...]:
    """The counts of every rank, in rank order; one collective."""
    if not dist.is_initialized():
        return (counts,)
    mine = torch.tensor([getattr(counts, f.name) for f in fields(counts)], dtype=torch.int64, device=device)
    every = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(every, mine)
    return tuple(StepCounts(*row) for row in torch.stack(every).tolist())
