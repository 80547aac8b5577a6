"""Pictures with known content: a digit, a number, a shape, a word, a photograph.

Each `draw_*` takes the pool's material and dice and returns a `Scene`: pixels and what is true of them, which
captions and questions then speak of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from odb_example.data.embedded.dice import Dice
from odb_example.data.embedded.glyphs import word_mask
from odb_example.data.embedded.material import PHOTOGRAPHS, Digit, Material
from odb_example.data.pixels import Colour, Grey, Pixels, blend, canvas, grain, paste, resize

Kind = Literal["digit", "number", "shape", "word", "photograph"]

INKS: dict[str, Colour] = {
    "red": (205, 40, 40),
    "green": (40, 150, 60),
    "blue": (50, 80, 210),
    "yellow": (225, 195, 40),
    "purple": (140, 60, 170),
}
SHAPES = ("circle", "square", "triangle", "cross")
PLACES = ("upper left", "upper right", "lower left", "lower right")
NUMBER_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_PAPERS: dict[str, Colour] = {"white": (250, 250, 250), "cream": (240, 230, 205), "grey": (190, 190, 190)}
# Height and width of photographs with their weights: 4:3 in the main, some icons, a few extreme strips.
_PHOTO_SIZES: tuple[tuple[tuple[int, int], float], ...] = (
    ((96, 128), 40), ((72, 96), 22), ((128, 96), 14), ((64, 64), 10), ((144, 192), 4), ((240, 320), 2),
    ((16, 16), 3), ((7, 9), 1), ((6, 480), 1), ((512, 8), 1),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Scene:
    """A picture, shape (height, width, 3), and what is true of it; ``source`` names the material for provenance."""

    kind: Kind
    pixels: Pixels
    facts: dict[str, str]
    source: str


def draw_digit(material: Material, dice: Dice, values: Sequence[int] = range(10)) -> Scene:
    """One handwritten digit, light on dark, 48 to 96 pixels a side."""
    digit = dice.choose(material.digits[dice.choose(values)])
    size = dice.choose((48, 56, 64, 80, 96))
    paper = dice.between(0, 30)
    picture = blend(canvas(size, size, (paper,) * 3), resize(digit.ink, size, size), (255, 255, 255))
    facts = {"value": str(digit.value), "name": NUMBER_WORDS[digit.value]}
    return Scene("digit", picture, facts, f"digit {digit.number}")


def draw_number(material: Material, dice: Dice, length: int | None = None) -> Scene:
    """A handwritten number of two to six digits, dark on light, as an amount on a cheque (ORAND-CAR) is."""
    length = length or dice.between(2, 6)
    digits = [dice.choose(material.digits[dice.below(10)]) for _ in range(length)]
    size = dice.choose((24, 32, 40))
    mask = np.concatenate([resize(digit.ink, size, size) for digit in digits], axis=1)
    name = dice.choose(tuple(_PAPERS))
    picture = blend(_paper(dice, size, mask.shape[1], name), mask, (20, 20, 60))
    facts = {"text": "".join(str(digit.value) for digit in digits), "length": str(length), "paper": name}
    return Scene("number", picture, facts, "digits " + " ".join(str(digit.number) for digit in digits))


def draw_shape(material: Material, dice: Dice, shape: str | None = None, ink: str | None = None) -> Scene:
    """A coloured shape in one of four corners."""
    shape, ink, place = shape or dice.choose(SHAPES), ink or dice.choose(tuple(INKS)), dice.choose(PLACES)
    height, width = dice.choose(((64, 64), (96, 96), (64, 96), (96, 64), (96, 128)))
    size = min(height, width) * dice.between(36, 48) // 100
    paper = dice.choose(tuple(_PAPERS))
    top = dice.below(height // 2 - size + 1) + (height // 2 if "lower" in place else 0)
    left = dice.below(width // 2 - size + 1) + (width // 2 if "right" in place else 0)
    picture = paste(_paper(dice, height, width, paper), _shape_mask(shape, size), INKS[ink], top, left)
    facts = {"shape": shape, "ink": ink, "place": place, "paper": paper}
    return Scene("shape", picture, facts, f"shape drawn for {material.pool}")


def draw_word(material: Material, dice: Dice, script: str | None = None, ink: str | None = None) -> Scene:
    """A printed word, Latin or Chinese, in one colour."""
    script, ink = script or dice.choose(("Latin", "Chinese")), ink or dice.choose(tuple(INKS))
    text = dice.choose(material.latin if script == "Latin" else material.chinese)
    mask = word_mask(text)
    height = dice.choose((24, 32, 40, 48))
    mask = resize(mask, height, max(1, mask.shape[1] * height // mask.shape[0]))
    margin, paper = dice.between(2, 10), dice.choose(tuple(_PAPERS))
    picture = _paper(dice, height + 2 * margin, mask.shape[1] + 2 * margin, paper)
    picture = paste(picture, mask, INKS[ink], margin, margin)
    facts = {"text": text, "script": script, "ink": ink, "paper": paper, "length": str(len(text))}
    return Scene("word", picture, facts, f"word {text}")


def draw_photograph(
    material: Material, dice: Dice, names: Sequence[str] = tuple(PHOTOGRAPHS), size: tuple[int, int] | None = None
) -> Scene:
    """A detail of a photograph, resized."""
    name = dice.choose(names)
    height, width = size or dice.weighted(_PHOTO_SIZES)
    whole = material.photographs[name]
    # As large a detail of this shape as fits, then between six and ten tenths of it.
    part = dice.between(60, 100)
    fit = min(whole.shape[0] * width, whole.shape[1] * height)
    rows, columns = max(1, fit * part // 100 // width), max(1, fit * part // 100 // height)
    top, left = dice.below(whole.shape[0] - rows + 1), dice.below(whole.shape[1] - columns + 1)
    picture = resize(whole[top : top + rows, left : left + columns], height, width)
    facts = {"subject": PHOTOGRAPHS[name][0], "scene": PHOTOGRAPHS[name][1]}
    return Scene("photograph", picture, facts, f"photograph {name} {top}+{rows} {left}+{columns}")


def _paper(dice: Dice, height: int, width: int, name: str) -> Pixels:
    return grain(canvas(height, width, _PAPERS[name]), dice.noise(height * width), 6)


def _shape_mask(shape: str, size: int) -> Grey:
    """A shape that fills a square of ``size`` pixels."""
    y, x = np.mgrid[0:size, 0:size] * 2 + 1 - size  # twice the distance from the middle, so that all stays whole
    inside = {
        "circle": x * x + y * y <= size * size,
        "square": np.ones((size, size), bool),
        "triangle": 2 * np.abs(x) <= y + size,
        "cross": (3 * np.abs(x) <= size) | (3 * np.abs(y) <= size),
    }[shape]
    return np.where(inside, 255, 0).astype(np.uint8)


def digits_of(material: Material) -> list[Digit]:
    """Every digit of the pool."""
    return [digit for digits in material.digits for digit in digits]
