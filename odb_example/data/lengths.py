"""Lengths of a data set by source: what a budget, a cap and a person need to know of it.

Measures an even selection of records from their text and image headers (`SampleMaker.measure`), so it costs no pixels.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from odb_example.data.records import RecordError
from odb_example.data.samples import FinishedSamples, Measured, SampleError

QUANTILES = {"min": 0.0, "p10": 0.1, "p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}


@dataclass(frozen=True, slots=True)
class SourceLengths:
    """One source in figures: quantiles of tokens and of label tokens, mean share of visual tokens."""

    source: str
    records: int
    tokens: Mapping[str, int]
    labels: Mapping[str, int]
    visual_share: float

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Selection:
    """Records that were measured, and those that cannot become a sample: (store index, problem)."""

    measured: tuple[tuple[str, Measured], ...]
    failures: tuple[tuple[int, str], ...]

    @property
    def lengths(self) -> list[int]:
        """Tokens of each measured record."""
        return [measured.length for _, measured in self.measured]


def measure_evenly(samples: FinishedSamples, limit: int) -> Selection:
    """At most ``limit`` records, spread evenly over the data set."""
    count = min(limit, len(samples))
    measured: list[tuple[str, Measured]] = []
    failures: list[tuple[int, str]] = []
    for position in np.linspace(0, len(samples) - 1, count).round().astype(int).tolist():
        try:
            record = samples.record(position)
            measured.append((record.source, samples.maker.measure(record, samples.store.image_bytes)))
        except (SampleError, RecordError) as error:
            failures.append((samples.indices[position], str(error)))
    return Selection(tuple(measured), tuple(failures))


def by_source(selection: Selection) -> list[SourceLengths]:
    """Figures of each source, in order of name, and of ``all`` last."""
    groups: dict[str, list[Measured]] = defaultdict(list)
    for source, measured in selection.measured:
        groups[source].append(measured)
    named = [(source, groups[source]) for source in sorted(groups)]
    everything = [measured for _, measured in selection.measured]
    return [_figures(source, group) for source, group in [*named, ("all", everything)] if group]


def _figures(source: str, group: Sequence[Measured]) -> SourceLengths:
    tokens = sum(measured.length for measured in group)
    return SourceLengths(
        source,
        len(group),
        _quantiles([measured.length for measured in group]),
        _quantiles([measured.label_tokens for measured in group]),
        sum(measured.visual_tokens for measured in group) / tokens,
    )


def _quantiles(values: Sequence[int]) -> dict[str, int]:
    """The value at ``round((n - 1) * q)`` of the sorted ones: the reference's rule, an observed value always."""
    ordered = sorted(values)
    return {name: ordered[round((len(ordered) - 1) * share)] for name, share in QUANTILES.items()}
