"""A run as a value: its documents, steps, losses and predictions, and what it lacks.

`Run.find` returns a value *with the file and field it was read from*; that is how every figure stays traceable.
`odb_example.report.reading` makes runs from folders and public records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Fact:
    """A value and where it stands: ``file: field``."""

    value: Any
    source: str


@dataclass(frozen=True, slots=True)
class Document:
    """One JSON or YAML object and the name of its file, relative to the run."""

    file: str
    value: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Gap:
    """Something a complete run would have. ``part`` is training, validation or benchmark."""

    part: str
    file: str
    reason: str


@dataclass(frozen=True, slots=True)
class RankShare:
    """What one rank did of a step."""

    samples: int
    input_tokens: int
    padded_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One optimizer step, summed over ranks. Tokens count visual tokens; ``seconds`` is wall time of the step.

    ``idle`` counts batches that only kept the ranks in step; ``wait_seconds`` is the wait for data on rank 0.
    """

    step: int
    samples: int
    label_tokens: int | None
    input_tokens: int | None
    padded_tokens: int | None
    peak_tokens: int | None
    groups: int | None
    idle: int | None
    seconds: float | None
    loss: float | None
    grad_norm: float | None
    lr: float | None
    wait_seconds: float | None = None
    ranks: tuple[RankShare, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleLoss:
    """One held-out sample: summed negative log-likelihood (nats) of its ``label_tokens`` labels."""

    id: str
    source: str
    length: int | None
    nll: float
    label_tokens: int

    @property
    def loss(self) -> float:
        """Mean over the sample's own label tokens."""
        return self.nll / self.label_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """One scored benchmark row. ``scores`` are log-probabilities of the valid letters."""

    sample_id: str
    subject: str
    category: str
    question: str
    options: tuple[str, ...]
    letters: tuple[str, ...]
    truth: str
    prediction: str
    correct: bool
    scores: Mapping[str, float]
    margin: float | None
    num_images: int
    option_status: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Everything one training run and its evaluations left behind."""

    name: str
    path: Path
    loader: str
    from_record: bool
    documents: Mapping[str, Document]
    log: tuple[Mapping[str, Any], ...]
    steps: tuple[Step, ...]
    samples: tuple[SampleLoss, ...]
    predictions: tuple[Prediction, ...]
    excluded: tuple[Mapping[str, Any], ...]
    gaps: tuple[Gap, ...]

    def find(self, *places: str) -> Fact | None:
        """The first of ``document.field.field`` that is there and not null."""
        for place in places:
            name, *fields = place.split(".")
            document = self.documents.get(name)
            value: Any = document.value if document else None
            for field in fields:
                value = value.get(field) if isinstance(value, Mapping) else None
            if document is not None and value is not None:
                return Fact(value, ": ".join((document.file, *([".".join(fields)] if fields else []))))
        return None

    def value(self, *places: str) -> Any:
        """`find` without the source; None where nothing was found."""
        fact = self.find(*places)
        return fact.value if fact else None

    def number(self, *places: str) -> float | None:
        """`value`, where it is a number."""
        value = self.value(*places)
        return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None

    @property
    def seed(self) -> int | None:
        """The training seed."""
        return self.value("settings.seed", "summary.seed", "summary.config.seed")

    @property
    def finished(self) -> bool:
        """Whether training wrote its summary."""
        return "summary" in self.documents

    def gap(self, part: str) -> Gap | None:
        """Why ``part`` is missing or incomplete."""
        return next((gap for gap in self.gaps if gap.part == part), None)
