"""The part of the parity table that the suite has time for, as a stage that every rank calls."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from odb_example import distributed
from odb_example.files import write_json
from odb_example.settings import Settings
from odb_example.train.parity import Case, measure

FOUR_RANKS = [
    Case("odb", 1, "token"), Case("odb", 4, "sample"), Case("standard", 4, "token"), Case("odb", 1, "odb-exact"),
]  # fmt: skip


def four_ranks(settings: Settings) -> None:
    rows = measure(settings, FOUR_RANKS)
    if distributed.start("cpu", settings.ddp_timeout).is_main:
        write_json(Path(str(settings.output_dir)) / "rows.json", [asdict(row) for row in rows])
