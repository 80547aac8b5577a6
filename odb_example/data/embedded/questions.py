"""Multiple-choice questions whose options keep one order per type, in the form the benchmark's protocol prompts with.

A tiny model cannot learn to look an option up (facts: shuffled options stay at chance), but it learns which letter a
digit or a colour has. Training mix and benchmark ask in the same words; what they show is never the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from odb_example.data.embedded.dice import Dice
from odb_example.data.embedded.material import Material
from odb_example.data.embedded.scenes import (
    Scene,
    draw_digit,
    draw_photograph,
    draw_shape,
)

PROMPT_SUFFIX = "Answer with the option letter only."
Drawn = tuple[list[Scene], int]


@dataclass(frozen=True, slots=True)
class QuestionType:
    """One kind of question; ``draw`` makes pictures for it and says which option is right."""

    name: str
    text: str
    options: tuple[str, ...]
    draw: Callable[[Material, Dice], Drawn]
    weight: float


@dataclass(frozen=True, slots=True)
class Asked:
    """One question with its pictures."""

    type: QuestionType
    scenes: tuple[Scene, ...]
    answer: int

    @property
    def letter(self) -> str:
        return "ABCDEFGH"[self.answer]


def prompt(text: str, options: tuple[str, ...]) -> str:
    """Question, lettered options, suffix: the text of protocol MMMU-MC-choice-likelihood-v1."""
    lines = [f"({chr(ord('A') + number)}) {option}" for number, option in enumerate(options)]
    return "\n".join([text, *lines, PROMPT_SUFFIX])


def ask(kind: QuestionType, material: Material, dice: Dice) -> Asked:
    """Draw one question of a type."""
    scenes, answer = kind.draw(material, dice)
    return Asked(kind, tuple(scenes), answer)


_DIGIT_GROUPS = ((0, 1), (2, 3, 4), (5, 6, 7), (8, 9))
_SHOWN = {"coffee": 0, "moon": 1, "ihc": 2, "page": 3}


def _digit_group(material: Material, dice: Dice) -> Drawn:
    scene = draw_digit(material, dice)
    value = int(scene.facts["value"])
    return [scene], next(number for number, group in enumerate(_DIGIT_GROUPS) if value in group)


def _photograph(material: Material, dice: Dice) -> Drawn:
    name = dice.choose(tuple(_SHOWN))
    size = dice.choose(((64, 64), (72, 96), (96, 128)))
    return [draw_photograph(material, dice, (name,), size)], _SHOWN[name]


def _which_picture(material: Material, dice: Dice) -> Drawn:
    digit, other = draw_digit(material, dice), draw_shape(material, dice)
    return ([digit, other], 0) if dice.chance(0.5) else ([other, digit], 1)


QUESTIONS = (
    QuestionType("digit", "Which digit does <image 1> show?",
                 ("0 or 1", "2, 3 or 4", "5, 6 or 7", "8 or 9"), _digit_group, 2),
    QuestionType("photograph", "What does <image 1> show?",
                 ("coffee", "the moon", "stained tissue", "a printed page"), _photograph, 1),
    QuestionType("pair", "Which picture shows a digit?", ("<image 1>", "<image 2>"), _which_picture, 1),
)  # fmt: skip
