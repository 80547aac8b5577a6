"""Every check over a pipeline, in one table: what holds, what does not, and what to provide for the rest."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table

from odb_example.conformance.catalogue import CHECKS
from odb_example.conformance.check import Check, NotApplicable
from odb_example.conformance.expect import ConformanceError
from odb_example.conformance.pipeline import PARTS, Pipeline, load_pipeline
from odb_example.console import report_console
from odb_example.errors import UserError
from odb_example.progress import watched
from odb_example.testing.deviations import read, unknown, words_of_mended

Outcome = Literal["passed", "failed", "not applicable", "known deviation", "mended deviation"]
STYLES: dict[str, str] = {
    "passed": "green", "failed": "bold red", "not applicable": "dim", "known deviation": "yellow",
    "mended deviation": "bold red",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Result:
    """What came of one check.

    Attributes:
        words: the failure, or what to provide, or the deviation's reason.
        missing: names of the parts to provide.
    """

    check: Check
    outcome: Outcome
    words: str
    seconds: float
    missing: tuple[str, ...] = ()

    @property
    def bad(self) -> bool:
        return self.outcome in ("failed", "mended deviation")


def run_checks(pipeline: Pipeline, checks: Sequence[Check] = CHECKS) -> Iterator[Result]:
    """Run ``checks`` one after the other; a check that crashes has failed."""
    for check in checks:
        started = time.perf_counter()
        outcome, words = _attempt(check, pipeline)
        yield Result(check, outcome, words, time.perf_counter() - started, check.missing(pipeline))


def _attempt(check: Check, pipeline: Pipeline) -> tuple[Outcome, str]:
    try:
        check(pipeline)
    except NotApplicable as lack:
        return "not applicable", f"provide {lack}"
    except ConformanceError as failure:
        return "failed", str(failure)
    except Exception as error:  # noqa: BLE001 - the code under test is anybody's; its crash is this check's result
        return "failed", crash_words(error, check.needs)
    return "passed", ""


def crash_words(error: BaseException, parts: Sequence[str]) -> str:
    """A crash of the stack under test: what, where, and the parts of which one is not what it should be."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return (
        f"the stack under test crashes: {type(error).__name__}: {error}\n"
        f"  at        {Path(last.filename).name}, line {last.lineno}, in {last.name}\n"
        "likely: one of these parts is not what it should be:\n" + "\n".join(f"  {PARTS[part]}" for part in parts)
    )


def with_deviations(results: Sequence[Result], deviations: dict[str, str]) -> list[Result]:
    """Results under a file of known deviations: reasons by check. A deviation that passes is a failure of its own.

    Raises:
        UserError: a line names no check.
    """
    names = {result.check.name for result in results}
    for name in deviations:
        if name not in names:
            raise unknown(name, names)
    return [_under(result, deviations.get(result.check.name)) for result in results]


def _under(result: Result, reason: str | None) -> Result:
    if reason is None:
        return result
    if result.outcome == "failed":
        return Result(result.check, "known deviation", reason, result.seconds)
    words = words_of_mended(result.check.name, reason, result.outcome)
    return Result(result.check, "mended deviation", words, result.seconds)


def check_pipeline(spec: str | None = None, deviations: Path | None = None) -> int:
    """The `check` command: every check over the pipeline that ``spec`` builds, as a table; 1 if any fails.

    Args:
        spec: ``package.module:build``; this project's own stack for None.
        deviations: file of known deviations, a check and its reason a line.

    Raises:
        UserError: no such pipeline or file, or a pipeline to which no check applies.
    """
    known = {line.name: line.reason for line in read(deviations)} if deviations else {}
    pipeline = load_pipeline(spec)
    results = with_deviations(list(watched(run_checks(pipeline), len(CHECKS), "check", "checks")), known)
    if all(result.outcome == "not applicable" for result in results):
        alone = dict.fromkeys(result.check.needs[0] for result in results if len(result.check.needs) == 1)
        raise UserError(f"no check applies to {pipeline.name}", f"give it one of the parts {', '.join(alone)} at least")
    show(results, pipeline, report_console())
    return 1 if any(result.bad for result in results) else 0


def show(results: Sequence[Result], pipeline: Pipeline, console: Console) -> None:
    """Print the table, then each failure in full, then the counts."""
    looked_at = f", {len(pipeline.indices)} of its {pipeline.size} samples looked at" if pipeline.has("records") else ""
    table = Table(
        title=f"Conformance of {pipeline.name}{looked_at}", title_justify="left", show_edge=False, pad_edge=False
    )
    for column in ("part", "check", "result"):
        table.add_column(column, no_wrap=True)
    table.add_column("claim, or what to provide")
    group = ""
    for result in results:
        words = _said(result)
        part = result.check.group if result.check.group != group else ""
        group = result.check.group
        style = STYLES[result.outcome]
        table.add_row(part, result.check.name, f"[{style}]{result.outcome}[/]", words)
    console.print(table)
    lacking = [name for name in PARTS if any(name in result.missing for result in results)]
    if lacking:
        console.print("\nThe rest applies once these parts are there:")
        for name in lacking:
            console.print(f"  {PARTS[name]}", markup=False, highlight=False)
    for result in results:
        if result.bad:
            console.print(f"\n[bold red]{result.check.group}: {result.check.name}[/]")
            console.print(result.words, markup=False, highlight=False, soft_wrap=True)
    counts = {outcome: sum(result.outcome == outcome for result in results) for outcome in STYLES}
    line = ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count)
    console.print(f"\n{line}; {sum(result.seconds for result in results):.1f} s")


def _said(result: Result) -> str:
    if result.missing:
        return "needs " + ", ".join(f"`{name}`" for name in result.missing)
    return result.words if result.outcome in ("not applicable", "known deviation") else result.check.claim
