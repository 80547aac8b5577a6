"""A sample as a person reads it: its text, the labelled part marked, images and long stretches shortened."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

from rich.text import Text

from odb_example.data.encoding import IGNORE_INDEX
from odb_example.data.samples import Sample

OPEN, CLOSE = "\u27e6", "\u27e7"  # white square brackets: rare in text, and readable without colour
_SHOWN = 320  # characters of one stretch


def masked_text(sample: Sample, processor: Any) -> Text:
    """The decoded sample; what the loss sees stands in brackets, and in colour where there is any."""
    text = Text()
    for labelled, ids in _stretches(sample):
        shown = _shortened(_decoded(ids, processor))
        text.append(f"{OPEN}{shown}{CLOSE}" if labelled else shown, style="bold green" if labelled else "dim")
    return text


def _stretches(sample: Sample) -> Iterator[tuple[bool, list[int]]]:
    pairs = zip(sample["input_ids"].tolist(), sample["labels"].tolist(), strict=True)
    for labelled, group in groupby(pairs, key=lambda pair: pair[1] != IGNORE_INDEX):
        yield labelled, [id_ for id_, _ in group]


def _decoded(ids: list[int], processor: Any) -> str:
    pieces: list[str] = []
    for is_image, group in groupby(ids, key=lambda id_: id_ == processor.image_token_id):
        run = list(group)
        pieces.append(f"{processor.image_token}\u00d7{len(run)}" if is_image else processor.tokenizer.decode(run))
    return "".join(pieces)


def _shortened(text: str) -> str:
    if len(text) <= _SHOWN:
        return text
    half = _SHOWN // 2
    return f"{text[:half]} \u2026 {len(text) - 2 * half} characters \u2026 {text[-half:]}"
