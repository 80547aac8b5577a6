"""What a run leaves behind beside its model: one value a step, and the files made from them.

`Recorder` takes one `StepRecord` per optimizer step. ``steps.jsonl`` holds them, ``train_metrics_{loader}.json`` the
Trainer's log history, ``train_summary_{loader}.json`` the run in figures, ``run_settings.yaml`` what repeats it.
Samples are counted when they were trained on (emitted), never as steps x batch x ranks, which counts repeats and short
batches as full.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from odb_example.files import read_json_lines, write_json_lines
from odb_example.train.counts import StepCounts

STEPS_FILE = "steps.jsonl"


@dataclass(frozen=True, slots=True)
class RankShare:
    """What one rank did of a step: the differences between ranks are time in which the faster ones wait."""

    samples: int
    input_tokens: int
    padded_tokens: int


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One optimizer step, counts summed over all ranks.

    Attributes:
        step: 1 for the first.
        epoch: passes over the training split so far, from samples.
        emitted_samples: samples trained on since the run's first step, this one included.
        seconds: wall time of the step on rank 0.
        wait_seconds: the part of it in which rank 0 waited for batches.
        loss: the objective itself, unscaled, over all ranks; None where the step had no label.
        grad_norm: before clipping.
        lr: learning rate that the step was taken with.
        ranks: per rank, in rank order, what it did of it.
    """

    step: int
    epoch: float
    emitted_samples: int
    samples: int
    label_tokens: int
    input_tokens: int
    padded_tokens: int
    largest_batch_tokens: int
    groups: int
    idle: int
    text_only_groups: int
    repeated_rows: int
    seconds: float
    wait_seconds: float
    loss: float | None
    grad_norm: float | None
    lr: float
    ranks: tuple[RankShare, ...] = ()


@dataclass(frozen=True, slots=True)
class Totals:
    """A run in figures; see `StepRecord` for the words."""

    steps: int
    emitted_samples: int
    label_tokens: int
    input_tokens: int
    padded_tokens: int
    largest_batch_tokens: int
    groups: int
    idle: int
    text_only_groups: int
    repeated_rows: int
    wait_seconds: float

    @classmethod
    def of(cls, records: Sequence[StepRecord]) -> Totals:
        def total(name: str) -> Any:
            return sum(getattr(record, name) for record in records)

        return cls(
            steps=len(records),
            emitted_samples=total("samples"),
            largest_batch_tokens=max((record.largest_batch_tokens for record in records), default=0),
            **{f.name: total(f.name) for f in fields(cls)[2:] if f.name != "largest_batch_tokens"},
        )

    @property
    def padding_ratio(self) -> float:
        """Share of padded positions: padding costs what tokens cost and teaches nothing."""
        return 1 - self.input_tokens / self.padded_tokens if self.padded_tokens else 0.0

    def fill(self, token_budget: int) -> float | None:
        """Mean share of a group's token budget that holds real tokens; None before the first group."""
        return self.input_tokens / (self.groups * token_budget) if self.groups else None


class Recorder:
    """Collects `StepRecord`s in order; counts arrive before a step is trained on, figures after it."""

    def __init__(self, num_train_samples: int, earlier: Iterable[StepRecord] = ()) -> None:
        self.records = list(earlier)
        self.resumed_after = len(self.records)
        self.num_train_samples = num_train_samples

    @property
    def emitted_samples(self) -> int:
        return self.records[-1].emitted_samples if self.records else 0

    def add(
        self,
        counts: StepCounts,
        ranks: Sequence[StepCounts] = (),
        *,
        seconds: float,
        wait_seconds: float,
        loss: float,
        grad_norm: float | None,
        lr: float,
    ) -> StepRecord:
        """Record one finished step."""
        emitted = self.emitted_samples + counts.samples
        record = StepRecord(
            step=len(self.records) + 1,
            epoch=emitted / self.num_train_samples,
            emitted_samples=emitted,
            samples=counts.samples,
            label_tokens=counts.label_tokens,
            input_tokens=counts.input_tokens,
            padded_tokens=counts.padded_tokens,
            largest_batch_tokens=counts.largest_batch_tokens,
            groups=counts.groups,
            idle=counts.idle,
            text_only_groups=counts.text_only,
            repeated_rows=counts.repeated,
            seconds=seconds,
            wait_seconds=wait_seconds,
            loss=_finite(loss) if counts.label_tokens else None,
            grad_norm=_finite(grad_norm),
            lr=lr,
            ranks=tuple(RankShare(rank.samples, rank.input_tokens, rank.padded_tokens) for rank in ranks),
        )
        self.records.append(record)
        return record

    @property
    def totals(self) -> Totals:
        """Figures of the whole run, an earlier part it was resumed from included."""
        return Totals.of(self.records)

    @property
    def own_totals(self) -> Totals:
        """Figures of this process alone: what its wall time bought."""
        return Totals.of(self.records[self.resumed_after :])

    def write(self, folder: Path) -> None:
        """Write ``steps.jsonl``, whole."""
        write_json_lines(folder / STEPS_FILE, (asdict(record) for record in self.records))


def read_steps(folder: Path, up_to: int) -> list[StepRecord]:
    """The first ``up_to`` records of a run folder's ``steps.jsonl``."""
    rows = [row for row, _ in zip(read_json_lines(folder / STEPS_FILE), range(up_to), strict=False)]
    return [StepRecord(**{**row, "ranks": tuple(RankShare(**rank) for rank in row["ranks"])}) for row in rows]


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
