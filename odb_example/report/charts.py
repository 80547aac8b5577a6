"""Charts as static SVG, drawn by matplotlib: no script, no request, and a table behind each.

A chart is drawn once and follows the page's theme: its colours are placeholders that become CSS variables
(``--series-1``, ``--ink``, ``--grid``) in the SVG text, and its type becomes the page's. Each is 360 units wide, so
that 10 pt type reads at phone width; the page lays two or three side by side on a desk. Series differ by line style
and marker as well as by colour. Labels come from records: they are flattened and never read as formulas.
"""

from __future__ import annotations

import io
import re
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from odb_example.report.words import flat, number

WIDTH = 5.0
"""Inches at 72 units each."""
SERIES = 6
_INK, _GRID, _MUTED = "#010101", "#020202", "#030303"
_COLOURS = tuple(f"#0a0a{n:02x}" for n in range(1, SERIES + 1))
_VARIABLES = {_INK: "var(--ink)", _GRID: "var(--grid)", _MUTED: "var(--muted)"} | {
    colour: f"var(--series-{n})" for n, colour in enumerate(_COLOURS, start=1)
}
_LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)))
_NICE = (1, 2, 2.5, 5, 10)
_MARKERS = ("o", "s", "^", "D", "v", "P")
_RC: Any = {
    "svg.fonttype": "none", "svg.hashsalt": "odb-example", "text.parse_math": False, "axes.unicode_minus": True,
    "font.size": 10.5, "axes.labelsize": 10.5, "xtick.labelsize": 10, "ytick.labelsize": 10, "legend.fontsize": 10,
    "text.color": _INK, "axes.labelcolor": _INK, "xtick.color": _MUTED, "ytick.color": _MUTED,
    "xtick.labelcolor": _INK, "ytick.labelcolor": _INK, "axes.edgecolor": _MUTED, "grid.color": _GRID,
    "axes.grid": True, "axes.axisbelow": True, "axes.spines.top": False, "axes.spines.right": False,
    "grid.linewidth": 0.7, "lines.linewidth": 1.5, "legend.frameon": False, "axes.linewidth": 0.8,
    "figure.facecolor": "none", "axes.facecolor": "none", "savefig.facecolor": "none",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Table:
    """What a chart shows, as text: for those who cannot see it, and for those who want the number."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """One figure of the page. ``svg`` is markup of ours; every text in it was escaped by matplotlib's XML writer."""

    title: str
    svg: str
    table: Table
    caption: str = ""


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one run; ``low`` and ``high`` are interval ends, where there are any. ``slot`` chooses its colour."""

    name: str
    slot: int
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = field(default=())
    high: Sequence[float] = field(default=())
    points: bool = False


def lines(
    title: str, series: Sequence[Series], *, x_label: str, y_label: str, log_y: bool = False, caption: str = ""
) -> Chart | None:
    """Curves, or None where no series has two points. ``points`` series are drawn as marks."""
    shown = [s for s in series if len(s.x) > 1 or (s.points and len(s.x))]
    if not any(len(s.x) > 1 for s in shown):
        return None
    with _figure(3.1) as (figure, axes):
        for entry in shown:
            style = _LINES[entry.slot % len(_LINES)]
            colour = _colour(entry.slot)
            if entry.points:
                axes.plot(entry.x, entry.y, linestyle="none", marker=_MARKERS[entry.slot % 6], markersize=5,
                          color=colour, label=flat(entry.name, 34))  # fmt: skip
                continue
            if len(entry.low):
                axes.fill_between(entry.x, entry.low, entry.high, color=colour, alpha=0.16, linewidth=0)
            axes.plot(entry.x, entry.y, linestyle=style, color=colour, label=flat(entry.name, 34))
        if log_y and all(value > 0 for entry in shown for value in entry.y):
            _log(axes, "y", [value for entry in shown for value in entry.y])
        else:
            axes.yaxis.set_major_formatter(FuncFormatter(_tick))
            axes.yaxis.set_major_locator(MaxNLocator(6, steps=_NICE))
        axes.xaxis.set_major_formatter(FuncFormatter(_tick))
        axes.xaxis.set_major_locator(MaxNLocator(5, steps=_NICE))
        _finish(figure, axes, x_label, y_label, legend=True)
        svg = _svg(figure, title)
    return Chart(title, svg, _points_table(shown, x_label), caption)


def intervals(
    title: str,
    labels: Sequence[str],
    series: Sequence[Series],
    *,
    x_label: str,
    marks: Mapping[str, Sequence[float]] | None = None,
    caption: str = "",
    first_column: str = "group",
    counts: Sequence[int] = (),
    from_zero: bool = False,
) -> Chart | None:
    """A dot with its interval per label and run, one line a label; ``x`` of a series is the label's index.

    ``marks`` are values to read the dots against (chance, always-A), one a label.
    """
    if not labels or not any(len(s.x) for s in series):
        return None
    per_row = max(0.3, 0.14 * len(series) + 0.1)
    with _figure(1.05 + per_row * len(labels)) as (figure, axes):
        spread = 0.62 / max(1, len(series))
        for order, entry in enumerate(series):
            offset = (order - (len(series) - 1) / 2) * spread
            y = [index + offset for index in entry.x]
            colour = _colour(entry.slot)
            if len(entry.low):
                axes.hlines(y, entry.low, entry.high, color=colour, linewidth=1.3)
            axes.plot(entry.y, y, linestyle="none", marker=_MARKERS[entry.slot % 6], markersize=4.5, color=colour,
                      label=flat(entry.name, 34))  # fmt: skip
        for order, (name, values) in enumerate((marks or {}).items()):
            rows = np.arange(len(labels))
            axes.vlines(values, rows - 0.42, rows + 0.42, color=_MUTED, linewidth=1.4,
                        linestyle=("-", ":")[order % 2], label=flat(name))  # fmt: skip
        axes.set_yticks(range(len(labels)), [_wrapped(label) for label in labels])
        axes.set_ylim(len(labels) - 0.5, -0.5)
        if from_zero:
            axes.set_xlim(0, 1.12 * max(value for entry in series for value in entry.y))
        axes.grid(axis="y", visible=False)
        axes.xaxis.set_major_locator(MaxNLocator(5, steps=_NICE))
        axes.xaxis.set_major_formatter(FuncFormatter(_tick))
        _finish(figure, axes, x_label, "", legend=True)
        svg = _svg(figure, title)
    return Chart(title, svg, _interval_table(labels, series, marks or {}, first_column, counts), caption)


def histogram(
    title: str, groups: Mapping[str, Sequence[float]], *, x_label: str, y_label: str, caption: str = ""
) -> Chart | None:
    """Stacked counts over bins of equal ratio, one colour a group; the largest six groups, the rest together."""
    groups = _largest(groups, SERIES)
    values = [value for group in groups.values() for value in group if value > 0]
    if len(values) < 2:
        return None
    low, high = min(values), max(values)
    edges = np.geomspace(low, max(high, low * 1.01) * 1.0001, 25)
    counts = {name: np.histogram(list(group), edges)[0] for name, group in groups.items()}
    with _figure(3.2) as (figure, axes):
        base = np.zeros(len(edges) - 1)
        for slot, (name, count) in enumerate(counts.items()):
            axes.stairs(base + count, edges, baseline=base, fill=True, color=_colour(slot), label=flat(name, 24))
            base = base + count
        _log(axes, "x", values)
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=True, steps=_NICE))
        _finish(figure, axes, x_label, y_label, legend=True)
        svg = _svg(figure, title)
    return Chart(title, svg, _quantile_table(groups), caption)


def binned(x: Sequence[float], y: Sequence[float | None], *, bins: int = 120) -> tuple[list[float], list[float]]:
    """Means of ``y`` in ``bins`` equal stretches of ``x``: a curve that can be read, however many steps there were."""
    pairs = [(a, b) for a, b in zip(x, y, strict=True) if b is not None and np.isfinite(b)]
    if len(pairs) <= bins:
        return [a for a, _ in pairs], [float(b) for _, b in pairs]
    array = np.array(pairs, dtype=np.float64)
    edges = np.linspace(array[0, 0], array[-1, 0], bins + 1)
    slots = np.clip(np.searchsorted(edges, array[:, 0], side="right") - 1, 0, bins - 1)
    counts = np.bincount(slots, minlength=bins)
    full = counts > 0
    means = [np.bincount(slots, array[:, column], bins)[full] / counts[full] for column in (0, 1)]
    return means[0].tolist(), means[1].tolist()


def _largest(groups: Mapping[str, Sequence[float]], most: int) -> dict[str, list[float]]:
    ordered = sorted(groups, key=lambda name: (-len(groups[name]), name))
    kept = {name: list(groups[name]) for name in (ordered if len(ordered) <= most else ordered[: most - 1])}
    if len(ordered) > most:
        kept[f"{len(ordered) - most + 1} others"] = [v for name in ordered[most - 1 :] for v in groups[name]]
    return kept


@contextmanager
def _figure(height: float) -> Iterator[tuple[Figure, Axes]]:
    with matplotlib.rc_context(_RC), warnings.catch_warnings():
        # A glyph DejaVu lacks is measured as a box and drawn by the browser's own font.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure = Figure(figsize=(WIDTH, height), dpi=72)  # what SVG is measured in
        yield figure, figure.add_subplot()


def _finish(figure: Figure, axes: Axes, x_label: str, y_label: str, *, legend: bool) -> None:
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    handles, names = axes.get_legend_handles_labels()
    if legend and names:
        columns = 1 if max(map(len, names)) > 24 else 2 if max(map(len, names)) > 14 else 3
        figure.legend(handles, names, loc="outside upper left", ncols=min(columns, len(names)),
                      borderaxespad=0.1, handlelength=2.2, columnspacing=1.2)  # fmt: skip


def _log(axes: Axes, which: str, values: Sequence[float]) -> None:
    axis = axes.xaxis if which == "x" else axes.yaxis
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    wide = max(values) / min(values) > 100
    axis.set_major_locator(LogLocator(10, subs=(1.0,) if wide else (1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(_tick))
    axis.set_minor_locator(NullLocator())


def _tick(value: float, _position: int | None = None) -> str:
    """Short tick labels: 12k, 1.5M, 0.02."""
    size = abs(value)
    for limit, suffix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= limit:
            return f"{value / (1e3 if suffix == 'k' else limit):g}{suffix}"
    if size and size < 1e-3:
        return f"{value:.0e}".replace("e-0", "e-")
    return f"{value:g}"


def _wrapped(label: str) -> str:
    """A label in lines of some 20 characters; names like ``Mechanical_Engineering`` break at their underscores."""
    return textwrap.fill(flat(label, 40).replace("_", " "), 20)


def series_colour(slot: int) -> str:
    """The style value of a run's colour, for parts of the page that are no charts."""
    return _VARIABLES[_colour(slot)]


def _colour(slot: int) -> str:
    return _COLOURS[slot % SERIES]


_SERIAL = iter(range(10**9))


def _svg(figure: Figure, title: str) -> str:
    """Markup to stand inline: no XML prologue, ids of its own, theme variables instead of colours."""
    stream = io.StringIO()
    ConstrainedLayoutEngine().execute(figure)  # once; a figure that has the engine is drawn twice to be saved
    figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = stream.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->\s*", "", text, flags=re.DOTALL)
    prefix = f"c{next(_SERIAL)}-"
    text = re.sub(r'\bid="', f'id="{prefix}', text)
    text = text.replace("url(#", f"url(#{prefix}").replace('xlink:href="#', f'href="#{prefix}')
    for colour, variable in _VARIABLES.items():
        text = text.replace(colour, variable)
    text = re.sub(r"font: ([0-9.]+px) [^;\"]*", r"font: \1 var(--font)", text)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    return text.replace("<svg ", f'<svg role="img" aria-label="{_attribute(title)}" ', 1)


def _attribute(text: str) -> str:
    for character, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;")):
        text = text.replace(character, entity)
    return text


def _points_table(series: Sequence[Series], x_label: str) -> Table:
    rows = []
    for entry in series:
        keep = sorted({round(i) for i in np.linspace(0, len(entry.x) - 1, min(24, len(entry.x)))})
        rows += [(entry.name, number(entry.x[i], 6), number(entry.y[i])) for i in keep]
    most = max(len(entry.x) for entry in series)
    note = f"24 of up to {most} plotted points a series; steps.jsonl holds every step" if most > 24 else ""
    return Table(("series", x_label, "value"), tuple(rows), note)


def _interval_table(
    labels: Sequence[str],
    series: Sequence[Series],
    marks: Mapping[str, Sequence[float]],
    first: str,
    counts: Sequence[int],
) -> Table:
    head = [first, *(["rows"] if counts else []), *(entry.name for entry in series), *marks]
    rows = []
    for index, label in enumerate(labels):
        cells = [label, *([number(counts[index])] if counts else [])]
        for entry in series:
            places = [i for i, x in enumerate(entry.x) if x == index]
            cells.append(_cell(entry, places[0]) if places else "—")
        rows.append((*cells, *(number(values[index]) for values in marks.values())))
    return Table(tuple(head), tuple(rows))


def _cell(entry: Series, place: int) -> str:
    if not len(entry.low) or entry.low[place] == entry.high[place]:
        return number(entry.y[place])
    return f"{number(entry.y[place])} ({number(entry.low[place])} to {number(entry.high[place])})"


def _quantile_table(groups: Mapping[str, Sequence[float]]) -> Table:
    rows = []
    for name, group in groups.items():
        ordered = sorted(group)
        picks = [ordered[round((len(ordered) - 1) * q)] for q in (0, 0.1, 0.5, 0.9, 1)]
        rows.append(
            (name, number(len(ordered)), *(number(value) for value in picks), number(sum(ordered) / len(ordered)))
        )
    return Table(("source", "samples", "min", "p10", "median", "p90", "max", "mean"), tuple(rows))
