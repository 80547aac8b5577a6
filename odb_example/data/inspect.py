"""The inspect command: finished samples before anything is trained on them.

Looks closely at some image rows and a quarter as many text rows, and measures many more by their headers. The report is
JSON of the reference's fields, on stdout or in a file; on stderr stands what a person reads: lengths by source, how
full ODB's batches will be, three samples with what the loss sees marked; beside it lies a histogram.
"""

from __future__ import annotations

import json
import random
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from odb_example.data.collate import Collator
from odb_example.data.fill import Fill, expected_fill
from odb_example.data.histogram import draw_lengths
from odb_example.data.inspection import Inspected, inspect_sample, vision_token_ids
from odb_example.data.lengths import Selection, SourceLengths, by_source, measure_evenly
from odb_example.data.masked_text import CLOSE, OPEN, masked_text
from odb_example.data.records import RecordError
from odb_example.data.samples import FinishedSamples, Sample, SampleError, SampleMaker
from odb_example.data.store import Store
from odb_example.files import require_replaceable, write_json
from odb_example.models.loading import ensure_model, load_processor
from odb_example.settings import Settings

_MEASURED = 2000  # records behind the figures by source
_EPOCH = 50_000  # samples at most in the epoch that ODB's batches are expected of


@dataclass(frozen=True, slots=True)
class Failure:
    """A record that cannot become a sample, or whose sample breaks a promise."""

    index: int
    error: str


@dataclass(frozen=True, slots=True)
class InspectReport:
    """What was found.

    Attributes:
        inspected: rows looked at closely.
        lengths: figures by source over the measured records, ``all`` last.
        fill: ODB's batches over an epoch like the measured records; None where none could be measured.
        histogram: the picture; None where there is nothing to draw.
    """

    settings: Settings
    model: str
    num_records: int
    vision_token_ids: list[int]
    inspected: tuple[Inspected, ...]
    failures: tuple[Failure, ...]
    lengths: tuple[SourceLengths, ...]
    fill: Fill | None
    histogram: Path | None

    def to_json(self) -> dict[str, Any]:
        """The reference's fields, then ours."""
        return {
            "model": self.model,
            "processor_backend": self.settings.processor_backend,
            "max_length": self.settings.max_length,
            "image_max_pixels": self.settings.image_max_pixels,
            "num_records": self.num_records,
            "vision_token_ids": self.vision_token_ids,
            "inspected": [inspected.to_json() for inspected in self.inspected],
            "failures": [asdict(failure) for failure in self.failures],
            "token_budget": self.settings.token_budget,
            "buffer_size": self.settings.buffer_size,
            "lengths": [figures.to_json() for figures in self.lengths],
            "expected_fill": asdict(self.fill) if self.fill else None,
            "histogram": str(self.histogram) if self.histogram else None,
        }


def inspect_data(settings: Settings) -> InspectReport:
    """Inspect the store of ``settings`` with its model's processor; report, summary and picture are written.

    Raises:
        UserError: no such store or model, or one that does not fit the backend.
    """
    model = ensure_model(settings)
    processor = load_processor(
        model, image_max_pixels=settings.image_max_pixels, trust_remote_code=settings.trust_remote_code
    )
    store = Store.open(settings.data)
    maker = SampleMaker(processor, max_length=settings.max_length, backend=settings.processor_backend)
    samples = FinishedSamples(store, range(len(store)), maker)
    collator = Collator(processor.tokenizer.pad_token_id)

    closely: list[tuple[Inspected, Sample]] = []
    failures: list[Failure] = []
    for position in _rows(samples, settings.num_samples, failures):
        try:
            inspected, sample, broken = inspect_sample(samples, position, collator)
        except SampleError as error:
            failures.append(Failure(position, str(error)))
            continue
        closely.append((inspected, sample))
        failures += [Failure(position, problem) for problem in broken]
    selection = measure_evenly(samples, _MEASURED)
    known = {failure.index for failure in failures}
    failures += [Failure(index, problem) for index, problem in selection.failures if index not in known]
    report = InspectReport(
        settings=settings,
        model=model,
        num_records=len(store),
        vision_token_ids=vision_token_ids(processor),
        inspected=tuple(inspected for inspected, _ in closely),
        failures=tuple(failures),
        lengths=tuple(by_source(selection)),
        fill=_fill(selection, len(store), settings),
        histogram=_histogram(selection, settings),
    )
    _print_summary(report, closely, processor)
    if settings.inspect_output:
        require_replaceable(Path(settings.inspect_output), "inspection", b"{")
        write_json(Path(settings.inspect_output), report.to_json())
    else:
        json.dump(report.to_json(), sys.stdout, indent=2, ensure_ascii=False, allow_nan=False)
        print()
    return report


def _rows(samples: FinishedSamples, num_images: int, failures: list[Failure]) -> list[int]:
    """Positions of the first ``num_images`` image rows and a quarter as many text rows, in order."""
    wanted = {True: num_images, False: num_images // 4}
    rows: list[int] = []
    for position in range(len(samples)):
        if not any(wanted.values()):
            break
        try:
            kind = bool(samples.record(position).images)
        except RecordError as error:
            failures.append(Failure(position, str(error)))
            continue
        if wanted[kind]:
            wanted[kind] -= 1
            rows.append(position)
    return rows


def _fill(selection: Selection, num_records: int, settings: Settings) -> Fill | None:
    """ODB's batches over an epoch of samples drawn from the measured ones."""
    if not selection.lengths:
        return None
    drawn = random.Random(settings.seed).choices(selection.lengths, k=min(num_records, _EPOCH))
    return expected_fill(
        drawn,
        token_budget=settings.token_budget,
        buffer_size=settings.buffer_size,
        warm_up=not settings.no_warmup,
    )


def _histogram(selection: Selection, settings: Settings) -> Path | None:
    if not selection.measured:
        return None
    tokens: dict[str, list[int]] = defaultdict(list)
    for source, measured in selection.measured:
        tokens[source].append(measured.length)
    output = settings.inspect_output
    path = Path(output).with_suffix(".png") if output else Path(settings.output_root, "inspect", "lengths.png")
    caps = {"max length": settings.max_length, "token budget": settings.token_budget}
    draw_lengths(path, tokens, [measured.label_tokens for _, measured in selection.measured], caps=caps)
    return path


def _print_summary(report: InspectReport, closely: Sequence[tuple[Inspected, Sample]], processor: Any) -> None:
    console = Console(stderr=True, highlight=False, width=None if sys.stderr.isatty() else 120)
    measured = sum(figures.records for figures in report.lengths if figures.source == "all")
    console.print(f"{report.num_records} records, {len(report.inspected)} inspected, {measured} measured by header")
    console.print(_lengths_table(report.lengths))
    if report.fill:
        fill, settings = report.fill, report.settings
        console.print(
            f"ODB at a budget of {settings.token_budget} tokens and a buffer of {settings.buffer_size}, expected for "
            f"one epoch: {fill.rows:.1f} samples a batch, {fill.fill:.0%} of the budget filled, {fill.padding:.1%} "
            f"padding, {fill.over_budget} samples above the budget",
            soft_wrap=True,
        )
    if report.histogram:
        console.print(f"histogram: {report.histogram}", soft_wrap=True)
    if closely:
        console.print(f"three samples, what the loss sees in {OPEN} {CLOSE}:")
    for inspected, sample in _three(closely):
        console.print(f"[{inspected.index}] {inspected.source}, {inspected.input_length} tokens", markup=False)
        console.print(masked_text(sample, processor), soft_wrap=True)
    for failure in report.failures:
        console.print(f"failure: record {failure.index}: {failure.error}", style="red", markup=False, soft_wrap=True)


def _lengths_table(lengths: Sequence[SourceLengths]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("source")
    for name in ("records", "tokens p10", "p50", "p90", "max", "labels p10", "p50", "p90", "max", "visual"):
        table.add_column(name, justify="right")
    for figures in lengths:
        shown = [figures.records]
        shown += [values[name] for values in (figures.tokens, figures.labels) for name in ("p10", "p50", "p90", "max")]
        table.add_row(figures.source, *map(str, shown), f"{figures.visual_share:.0%}")
    return table


def _three(closely: Sequence[tuple[Inspected, Sample]]) -> list[tuple[Inspected, Sample]]:
    """The shortest, the middle and the longest."""
    ordered = sorted(closely, key=lambda pair: pair[0].input_length)
    places = sorted({0, len(ordered) // 2, len(ordered) - 1}) if ordered else []
    return [ordered[place] for place in places]
