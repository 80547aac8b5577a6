"""Lengths as a picture: how many samples are how long, by source, with the caps that will meet them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, ScalarFormatter

from odb_example.files import writing

# Okabe and Ito's colours: apart for every kind of colour vision.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")
_BINS = 40
_INK, _SOFT = "#222222", "#777777"


def draw_lengths(
    path: Path, tokens: Mapping[str, Sequence[int]], labels: Sequence[int], *, caps: Mapping[str, int]
) -> None:
    """Write a PNG: tokens per sample stacked by source above, label tokens per sample below.

    Args:
        tokens: lengths of the samples of each source.
        labels: label tokens of every sample.
        caps: named limits, drawn as lines where they fall within or near the data.
    """
    figure = Figure(figsize=(8, 6), dpi=150, layout="constrained")
    above, below = figure.subplots(2, 1, height_ratios=(3, 2))
    everything = [length for lengths in tokens.values() for length in lengths]
    # The largest source lies at the bottom, where its shape can be read.
    order = sorted(tokens, key=lambda source: -len(tokens[source]))
    above.hist(
        [tokens[source] for source in order],
        bins=list(_edges(everything)),
        stacked=True,
        label=[f"{source} ({len(tokens[source])})" for source in order],
        color=[_COLOURS[number % len(_COLOURS)] for number in range(len(order))],
        edgecolor="white",
        linewidth=0.3,
    )
    middle = sorted(everything)[len(everything) // 2]
    above.set_title(
        f"{len(everything)} samples, {min(everything)} to {max(everything)} tokens, median {middle}",
        loc="left", fontsize=11, color=_INK,
    )  # fmt: skip
    below.hist(list(labels), bins=list(_edges(labels)), color=_SOFT, edgecolor="white", linewidth=0.3)
    for axes, words in ((above, "tokens per sample, images included"), (below, "label tokens per sample")):
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(ScalarFormatter())
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
        axes.set_xlabel(f"{words} (logarithmic)", color=_INK)
        axes.set_ylabel("samples", color=_INK)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(colors=_INK)
    for cap in sorted(set(caps.values())):
        if cap <= 8 * max(everything):
            name = ", ".join(name for name, value in caps.items() if value == cap)
            above.axvline(cap, color=_INK, linestyle="--", linewidth=1)
            above.text(
                cap, 0.98, f" {name} {cap}", transform=above.get_xaxis_transform(), rotation=90, va="top", ha="right",
                fontsize=8, color=_INK,
            )  # fmt: skip
    above.legend(frameon=False, fontsize=8, loc="upper left")
    with writing(path, "wb") as stream:
        figure.savefig(stream, format="png", metadata={"Software": None})


def _edges(values: Sequence[int]) -> np.ndarray:
    """Edges of bins equally wide on a logarithmic axis, none narrower than one token."""
    low, high = max(1, min(values)), max(values) + 1
    edges = np.unique(np.round(np.geomspace(low, max(high, low + 1), _BINS + 1)))
    return edges if len(edges) > 1 else np.array([low, low + 1.0])
