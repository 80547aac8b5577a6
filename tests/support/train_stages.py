"""What several ranks do in one launch, as a stage that every rank calls: starting ranks costs more than the work."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from odb_example import distributed
from odb_example.files import write_json
from odb_example.settings import Settings
from odb_example.train.parity import Case, measure
from odb_example.train.trainer import train

PARITY_CASES = [
    Case("odb", 1, "token"), Case("odb", 4, "sample"), Case("standard", 4, "token"), Case("odb", 1, "odb-exact"),
]  # fmt: skip


def measure_and_train(settings: Settings) -> None:
    """The part of the parity table that the suite has time for, then every run whose settings lie in the output root.

    Leaves the table's rows in ``rows.json`` there; runs are ``*.settings.json``, trained in the order of their names.
    """
    rows = measure(settings, PARITY_CASES)
    root = Path(settings.output_root)
    if distributed.start("cpu", settings.ddp_timeout).is_main:
        write_json(root / "rows.json", [asdict(row) for row in rows])
    for file in sorted(root.glob("*.settings.json")):
        train(Settings.model_validate_json(file.read_text()))
