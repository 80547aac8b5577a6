"""The comparison as a table in the terminal, through rich. Text of records is never read as markup."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from odb_example.console import report_console
from odb_example.report.compare import Comparison
from odb_example.report.page import LABELS, headline, lone_headline, show_figure, show_interval
from odb_example.report.words import flat

STYLES = {"comparable": "green", "not comparable": "red", "unknown": "yellow"}


def print_comparison(comparison: Comparison, page: Path, console: Console | None = None) -> None:
    """Verdict first, then figures a run, differences a pair, what is missing, and where the page is."""
    console = console or report_console()
    verdict = comparison.verdict
    console.print(Text(flat(verdict.sentence, 2000), style=STYLES[verdict.status]))
    for name, found in verdict.damaged.items():
        for entry in found[:5]:
            console.print(Text(f"  {flat(name)}, {entry.file}: {flat(entry.words, 300)}", style="red"))
    console.print(_figures(comparison))
    for pair in comparison.pairs:
        if pair.figures:
            table = Table(
                title=Text(f"{flat(pair.other.name)} against {flat(pair.baseline.name)}"), title_justify="left"
            )
            for head in ("difference", "value", "95% interval", "may be compared"):
                table.add_column(head, overflow="fold")
            for name, figure in pair.figures.items():
                status = pair.verdict.figures[figure.about].status
                table.add_row(
                    LABELS[name], show_figure(figure, name), show_interval(figure, name) or "none",
                    Text(status, style=STYLES[status]),
                )  # fmt: skip
            console.print(table)
    for sentence in [headline(pair) for pair in comparison.pairs] or [lone_headline(comparison)]:
        console.print(Text(flat(sentence, 2000), style="bold"))
    for run in comparison.runs:
        for gap in run.gaps:
            console.print(Text(f"missing: {flat(run.name)}, {gap.file}: {flat(gap.reason, 200)}", style="dim"))
    console.print(Text(f"page: {page}"), soft_wrap=True)


def _figures(comparison: Comparison) -> Table:
    table = Table()
    table.add_column("figure", overflow="fold")
    for run in comparison.columns:
        table.add_column(Text(flat(run.name)), overflow="fold")
    for name in LABELS:
        cells = [comparison.figures[run.name].get(name) for run in comparison.columns]
        if any(cells):
            table.add_row(LABELS[name], *(show_figure(figure) if figure else "—" for figure in cells))
    return table
