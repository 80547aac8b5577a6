"""What the checks are worth: every planted fault, run by the suite against itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from odb_example.conformance import ours
from odb_example.conformance.catalogue import CHECKS
from odb_example.conformance.faults import FAULTS, Fault
from odb_example.conformance.pipeline import Pipeline, changed_parts
from odb_example.conformance.run import run_checks
from odb_example.console import report_console
from odb_example.progress import watched


@dataclass(frozen=True, slots=True)
class Detection:
    """What came of one planted fault.

    Attributes:
        message: of the check that should catch it; empty where that passed.
        also: other checks that failed.
        ran: checks that the changed parts can reach.
    """

    fault: Fault
    message: str
    also: tuple[str, ...]
    ran: int

    @property
    def caught(self) -> bool:
        return bool(self.message)

    @property
    def named(self) -> bool:
        """Whether the message holds the words that tell the cause."""
        return self.caught and all(word in self.message for word in self.fault.mentions)


def detect(fault: Fault, right: Pipeline) -> Detection:
    """Run every check that a fault's changed parts can reach; those that start processes only where it asks for one."""
    wrong = right.replaced(fault.plant(right))
    parts = changed_parts(right, wrong)
    chosen = [
        check for check in CHECKS if check.name == fault.caught_by or (parts & set(check.needs) and not check.processes)
    ]
    try:
        results = list(run_checks(wrong, chosen))
    finally:
        fault.restore()
    failed = {result.check.name: result.words for result in results if result.bad}
    return Detection(
        fault=fault,
        message=failed.get(fault.caught_by, ""),
        also=tuple(name for name in failed if name != fault.caught_by),
        ran=len(chosen),
    )


def run_detection() -> int:
    """The `detection` command: the right pipeline, then every fault, as a table; 1 unless all are caught and named."""
    right = ours.build()
    results = watched(run_checks(right), len(CHECKS), "the right pipeline", "checks")
    alarms = [result for result in results if result.outcome != "passed"]
    detections = list(watched((detect(fault, right) for fault in FAULTS), len(FAULTS), "planted", "faults"))
    console = report_console()
    show(detections, console)
    for alarm in alarms:
        console.print(f"\nfalse alarm on the right pipeline: {alarm.check.name}: {alarm.words}", markup=False)
    caught, named = (sum(getattr(one, what) for one in detections) for what in ("caught", "named"))
    console.print(
        f"\n{len(detections)} planted faults: {caught} caught, {named} named; the right pipeline: "
        f"{len(CHECKS) - len(alarms)} of {len(CHECKS)} checks pass, {len(alarms)} false alarms"
    )
    return 0 if named == len(detections) and not alarms else 1


def show(detections: Sequence[Detection], console: Console) -> None:
    """One row a fault: what is wrong, which check caught it, whether its message names the cause."""
    table = Table(title="Detection of planted faults", title_justify="left", show_edge=False, pad_edge=False)
    for column in ("part", "what is wrong", "caught by", "named"):
        table.add_column(column)
    table.add_column("others that failed", justify="right")
    part = ""
    for one in detections:
        shown = one.fault.part if one.fault.part != part else ""
        part = one.fault.part
        by = one.fault.caught_by if one.caught else "[bold red]missed[/]"
        table.add_row(
            shown, one.fault.wrong, by, "yes" if one.named else "[bold red]no[/]", f"{len(one.also)} of {one.ran}"
        )
    console.print(table)
