"""Which records can become a sample, and how long each is, known before training starts.

A record that fails in the middle of a run would end it, and one left out there would break ODB's count; so every record
is tried first: its images decoded, its text encoded, its length computed, no pixels resized. Results are kept in one
file per question (data, processor, cap, indices), so that asking again costs nothing.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from torch.utils.data import DataLoader, Dataset

from odb_example.data.chat import template_source
from odb_example.data.records import RecordError
from odb_example.data.samples import FinishedSamples, SampleError
from odb_example.errors import UserError
from odb_example.files import read_json, write_json, write_json_lines
from odb_example.progress import Progress

RULES = 1  # raise it when the same record would come out otherwise
REFUSED_NAME = "refused.jsonl"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A record that cannot become a sample: where it is in the store, and why."""

    index: int
    id: str
    source: str
    reason: str
    problem: str


@dataclass(frozen=True, slots=True)
class Scan:
    """What trying every record of a data set gave.

    Attributes:
        lengths: tokens of each sample in the data set's order; 0 where the record was refused.
    """

    lengths: tuple[int, ...]
    refused: tuple[Refusal, ...]

    def describe(self) -> str:
        """The refusals in one line, commonest reason first."""
        reasons = Counter(refusal.reason for refusal in self.refused).most_common()
        counted = ", ".join(f"{reason} {count}" for reason, count in reasons)
        return f"{len(self.refused)} of {len(self.lengths)} records cannot become a sample ({counted})"


def scan(samples: FinishedSamples, *, workers: int = 0, cache: Path | None = None) -> Scan:
    """Try every record of ``samples``.

    Args:
        workers: processes to share the work.
        cache: folder that keeps results by what they depend on.
    """
    kept = cache / f"scan-{scan_key(samples)}.json" if cache is not None else None
    if kept is not None and kept.is_file():
        stored = read_json(kept)
        return Scan(tuple(stored["lengths"]), tuple(Refusal(**refusal) for refusal in stored["refused"]))
    result = _collected(_tried(samples, workers))
    if kept is not None:
        write_json(kept, {"lengths": result.lengths, "refused": [asdict(refusal) for refusal in result.refused]})
    return result


def sound(
    samples: FinishedSamples,
    on_bad_record: Literal["refuse", "skip"],
    *,
    workers: int = 0,
    cache: Path | None = None,
    report: Path | None = None,
) -> tuple[FinishedSamples, Scan]:
    """``samples`` without the records that cannot become one, and what was found.

    Args:
        on_bad_record: ``refuse`` stops at any such record, ``skip`` leaves it out.
        report: folder for `refused.jsonl`, written where anything was refused.

    Returns:
        The data set that is left, and a scan of exactly that: same length, same order, refusals kept.

    Raises:
        UserError: there are such records and they are to be refused, or nothing is left.
    """
    found = scan(samples, workers=workers, cache=cache)
    if not found.refused:
        return samples, found
    if report is not None:
        write_json_lines(report / REFUSED_NAME, map(asdict, found.refused))
    where = f"see {report / REFUSED_NAME}" if report is not None else f"first: {found.refused[0].problem}"
    if on_bad_record == "refuse":
        raise UserError(found.describe(), f"{where}; mend the data, or leave them out: --on-bad-record skip")
    left = [position for position, length in enumerate(found.lengths) if length]
    if not left:
        raise UserError(f"{found.describe()}: nothing is left", where)
    kept = FinishedSamples(samples.store, [samples.indices[position] for position in left], samples.maker)
    return kept, replace(found, lengths=tuple(found.lengths[position] for position in left))


def scan_key(samples: FinishedSamples) -> str:
    """Digest of everything a scan's result depends on."""
    processor, maker = samples.maker.processor, samples.maker
    parts = (
        f"rules {RULES}, transformers {transformers.__version__}",
        samples.store.fingerprint,
        type(processor).__name__,
        processor.tokenizer.backend_tokenizer.to_str(),
        template_source(processor),
        processor.image_processor.to_json_string(),
        f"{type(maker.backend).__name__} {maker.max_length}",
        ",".join(map(str, samples.indices)),
    )
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:32]


class _Trials(Dataset["int | Refusal"]):
    """One trial per record: its length or its refusal. A class of its own, so that spawned workers can have it."""

    def __init__(self, samples: FinishedSamples) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, position: int) -> int | Refusal:
        samples = self._samples
        index = samples.indices[position]
        try:
            record = samples.store[index]
        except RecordError as error:
            return Refusal(index, error.record_id, "", "record", str(error))
        try:
            return samples.maker.check(record, samples.store.image_bytes)
        except SampleError as error:
            return Refusal(index, record.id, record.source, error.reason, str(error))


def _tried(samples: FinishedSamples, workers: int) -> Iterator[int | Refusal]:
    loader: DataLoader[Any] = DataLoader(
        _Trials(samples), batch_size=32, num_workers=workers, collate_fn=list, worker_init_fn=_one_thread
    )
    with Progress(len(samples), "scan", "records") as progress:
        for batch in loader:
            progress.update(len(batch))
            yield from batch


def _one_thread(_worker: int) -> None:
    torch.set_num_threads(1)


def _collected(tried: Iterator[int | Refusal]) -> Scan:
    outcomes: Sequence[int | Refusal] = list(tried)
    lengths = tuple(0 if isinstance(outcome, Refusal) else outcome for outcome in outcomes)
    return Scan(lengths, tuple(outcome for outcome in outcomes if isinstance(outcome, Refusal)))
