"""Progress for people: a bar on a terminal; in a log file a plain line every so often, without control characters."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, TextIO, TypeVar

from tqdm import tqdm

LINE_EVERY_S = 10.0
Item = TypeVar("Item")


class Progress:
    """Counts ``unit`` up to ``total``; use as a context manager and call `update`."""

    def __init__(self, total: int | None, label: str, unit: str, stream: TextIO | None = None) -> None:
        self._total, self._label, self._unit = total, label, unit
        self._stream = stream or sys.stderr
        self._done = 0
        self._begun = self._said = time.monotonic()
        self._bar: tqdm[Any] | None = None
        if self._stream.isatty():
            self._bar = tqdm(
                total=total, desc=label, unit=f" {unit}", file=self._stream, dynamic_ncols=True, leave=False
            )

    def update(self, count: int = 1) -> None:
        """Count ``count`` more."""
        self._done += count
        if self._bar is not None:
            self._bar.update(count)
        elif time.monotonic() - self._said >= LINE_EVERY_S:
            self._said = time.monotonic()
            self._line()

    def _line(self) -> None:
        rate = self._done / max(time.monotonic() - self._begun, 1e-9)
        of, left = "", ""
        if self._total is not None:
            of, left = f" of {self._total:,}", f", {(self._total - self._done) / max(rate, 1e-9):.0f} s left"
        print(f"{self._label}: {self._done:,}{of} {self._unit}, {rate:.1f}/s{left}", file=self._stream, flush=True)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()
        elif self._said > self._begun:  # long enough to have spoken: close with the last count
            self._line()


def watched(items: Iterable[Item], total: int, label: str, unit: str) -> Iterator[Item]:
    """``items``, each counted once it is there."""
    with Progress(total, label, unit) as progress:
        for item in items:
            progress.update()
            yield item
