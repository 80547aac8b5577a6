"""Parts of the parity table that the suite has time for; each is a stage that every rank calls."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from odb_example import distributed
from odb_example.files import write_json
from odb_example.settings import Settings
from odb_example.train.parity import Case, measure

TWO_RANKS = [
    Case(loader, accumulation, objective)
    for loader in ("odb", "standard") for accumulation in (1, 4) for objective in ("token", "sample")
] + [Case("odb", 1, "odb-exact"), Case("odb", 1, "none")]  # fmt: skip
FOUR_RANKS = [Case("odb", 1, "token"), Case("odb", 4, "sample"), Case("standard", 4, "token")]


def two_ranks(settings: Settings) -> None:
    _measure(settings, TWO_RANKS)


def four_ranks(settings: Settings) -> None:
    _measure(settings, FOUR_RANKS)


def _measure(settings: Settings, cases: list[Case]) -> None:
    rows = measure(settings, cases)
    if distributed.start("cpu", settings.ddp_timeout).is_main:
        write_json(Path(str(settings.output_dir)) / "rows.json", [asdict(row) for row in rows])
