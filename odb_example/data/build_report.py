"""What a build left behind, and the table a person reads of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildReport:
    """One build.

    Attributes:
        per_source: records stored, by source.
        skipped: rows left out, by source and reason; each is listed in ``skipped.jsonl``.
        targets: records the recipe aims at, where it states them.
        nothing_to_do: the store was there already, made by the same plan.
    """

    path: Path
    records: int
    per_source: Mapping[str, int]
    skipped: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    targets: Mapping[str, int] = field(default_factory=dict)
    fingerprint: str
    nothing_to_do: bool = False

    @classmethod
    def of(
        cls,
        path: Path,
        metadata: Mapping[str, Any],
        *,
        targets: Mapping[str, int] | None = None,
        nothing_to_do: bool = False,
    ) -> BuildReport:
        """The report of a store's metadata."""
        return cls(
            path=path,
            records=metadata["num_records"],
            per_source=metadata["sources"],
            skipped=metadata["skipped"],
            targets=targets or {},
            fingerprint=metadata["fingerprint"],
            nothing_to_do=nothing_to_do,
        )

    def summary(self) -> str:
        """`table` as text."""
        console = Console(width=120)
        with console.capture() as captured:
            console.print(self.table())
        return captured.get().rstrip("\n")

    def table(self) -> Table:
        """One row a source, for `rich`."""
        title = f"{self.path}: {self.records:,} records" + (" (already built)" if self.nothing_to_do else "")
        table = Table(title=title, caption=self.fingerprint, title_justify="left", caption_justify="left")
        table.add_column("source")
        table.add_column("records", justify="right")
        table.add_column("target", justify="right")
        table.add_column("skipped", justify="right")
        table.add_column("why")
        for source, count in self.per_source.items():
            reasons = self.skipped.get(source, {})
            target = f"{self.targets[source]:,}" if source in self.targets else ""
            why = ", ".join(f"{number} {reason}" for reason, number in reasons.items())
            table.add_row(source, f"{count:,}", target, f"{sum(reasons.values()):,}", why)
        return table
