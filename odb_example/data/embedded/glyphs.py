"""Letters and Chinese characters as coverage masks, filled from the outlines of Noto Sans SC (OFL, carried by zhplot).

FreeType's rasteriser changes by version, and with it the pixels; filling the outlines here (fontTools reads them)
costs a page of code and makes the mix the same everywhere.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from fontTools.pens.basePen import BasePen
from fontTools.ttLib import TTFont

from odb_example.data.pixels import Grey
from odb_example.errors import UserError

HEIGHT = 32
_OVERSAMPLING = 4
_CURVE_STEPS = 6
_EM, _DESCENT = 1000, 160  # font units; the text box spans one em and a fifth, from below the base line
_BOX = 1200

Point = tuple[float, float]


def word_mask(text: str) -> Grey:
    """Coverage of a word set in one line, shape (HEIGHT, width), 255 where ink is."""
    return np.concatenate([glyph_mask(character) for character in text], axis=1)


@cache
def glyph_mask(character: str) -> Grey:
    """Coverage of one character, shape (HEIGHT, its own advance)."""
    font = _font()
    name = font.getBestCmap().get(ord(character))
    if name is None:
        raise UserError(f"the font has no {character!r}")
    glyphs = font.getGlyphSet()
    pen = _Outline(glyphs)
    glyphs[name].draw(pen)
    width = max(1, round(glyphs[name].width * HEIGHT / _BOX))
    return _fill(pen.contours, width)


def _fill(contours: list[list[Point]], width: int) -> Grey:
    """Non-zero winding at the centres of a fine grid, averaged down to pixels."""
    fine = HEIGHT * _OVERSAMPLING
    step = _BOX / fine
    ys = (_BOX - _DESCENT) - (np.arange(fine) + 0.5) * step - (_BOX - _EM) / 2
    xs = (np.arange(width * _OVERSAMPLING) + 0.5) * step
    winding = np.zeros((len(ys), len(xs)), np.int16)
    for contour in contours:
        for (x0, y0), (x1, y1) in zip(contour, contour[1:] + contour[:1], strict=True):
            if y0 == y1:
                continue
            rows = np.flatnonzero((ys >= min(y0, y1)) & (ys < max(y0, y1)))
            crossing = x0 + (ys[rows] - y0) * ((x1 - x0) / (y1 - y0))
            winding[rows] += (xs[None, :] >= crossing[:, None]) * np.int16(1 if y1 > y0 else -1)
    inside = (winding != 0).reshape(HEIGHT, _OVERSAMPLING, width, _OVERSAMPLING)
    covered: npt.NDArray[np.int64] = inside.sum(axis=(1, 3))
    return (covered * 255 // _OVERSAMPLING**2).astype(np.uint8)


class _Outline(BasePen):
    """Collects contours as polygons; `BasePen` resolves composites and implied points."""

    def __init__(self, glyphs: Any) -> None:
        super().__init__(glyphs)
        self.contours: list[list[Point]] = []

    def _moveTo(self, point: Point) -> None:  # noqa: N802
        self.contours.append([point])

    def _lineTo(self, point: Point) -> None:  # noqa: N802
        self.contours[-1].append(point)

    def _qCurveToOne(self, control: Point, end: Point) -> None:  # noqa: N802
        x0, y0 = self.contours[-1][-1]
        for number in range(1, _CURVE_STEPS + 1):
            t = number / _CURVE_STEPS
            a, b, c = (1 - t) * (1 - t), 2 * t * (1 - t), t * t
            self.contours[-1].append((a * x0 + b * control[0] + c * end[0], a * y0 + b * control[1] + c * end[1]))


@cache
def _font() -> TTFont:
    found = importlib.util.find_spec("zhplot")
    folder = Path(found.submodule_search_locations[0]) if found and found.submodule_search_locations else None
    if folder is None:
        raise UserError("the font of the miniature mix is missing", "pip install zhplot")
    return TTFont(folder / "fonts" / "NotoSansSC-Regular.ttf", lazy=True)
