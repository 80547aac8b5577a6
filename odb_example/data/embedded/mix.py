"""Records of the miniature mix: which source asks and answers what.

Seven sources under the public mix's names and in its proportions; the five short-answer ones make 24% of the records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from odb_example.data.embedded.captions import caption, caption_words
from odb_example.data.embedded.dice import Dice
from odb_example.data.embedded.material import Material
from odb_example.data.embedded.questions import QUESTIONS, Asked, ask, prompt
from odb_example.data.embedded.scenes import (
    NUMBER_WORDS,
    Scene,
    draw_digit,
    draw_number,
    draw_photograph,
    draw_shape,
    draw_word,
)
from odb_example.data.records import IMAGE_PLACEHOLDER, Turn


@dataclass(frozen=True, slots=True)
class Drawn:
    """A record before it is stored: its turns and the pictures they speak of."""

    turns: tuple[Turn, ...]
    scenes: tuple[Scene, ...] = ()


@dataclass(frozen=True, slots=True)
class MixSource:
    """One source: its share of the records and how one of them is drawn."""

    name: str
    share: float
    draw: Callable[[Material, Dice], Drawn]


_DESCRIBE = (
    "Describe the picture in detail.",
    "What can be seen here?",
    "Give a detailed account of this picture.",
    "Please describe this picture.",
)


def _asked(asked: Asked) -> Drawn:
    """A choice in the very form the benchmark prompts with: pictures, then the question, nothing between."""
    marks = IMAGE_PLACEHOLDER * len(asked.scenes)
    text = prompt(asked.type.text, asked.type.options)
    return Drawn((Turn("human", marks + text), Turn("gpt", asked.letter)), asked.scenes)


def _answered(scene: Scene, question: str, answer: str) -> Drawn:
    return Drawn((Turn("human", f"{IMAGE_PLACEHOLDER}\n{question}"), Turn("gpt", answer)), (scene,))


def _choice(material: Material, dice: Dice) -> Drawn:
    kind = dice.weighted([(kind, kind.weight) for kind in QUESTIONS])
    return _asked(ask(kind, material, dice))


def _latin_word(material: Material, dice: Dice) -> Drawn:
    scene = draw_word(material, dice, script="Latin")
    return _answered(scene, "What is written in the picture?", scene.facts["text"])


def _chinese_word(material: Material, dice: Dice) -> Drawn:
    scene = draw_word(material, dice, script="Chinese")
    return _answered(scene, "图中的文字是什么？", scene.facts["text"])


def _number(material: Material, dice: Dice) -> Drawn:
    scene = draw_number(material, dice)
    return _answered(scene, "Read the handwritten number.", scene.facts["text"])


def _short(material: Material, dice: Dice) -> Drawn:
    if dice.chance(0.9):
        return _choice(material, dice)
    if dice.chance(0.6):
        scene = draw_digit(material, dice)
        return _answered(scene, "Which digit is this?", scene.facts["value"])
    scene = draw_shape(material, dice)
    return _answered(scene, "Which colour is the shape?", scene.facts["ink"])


def _described(scenes: Sequence[Scene], dice: Dice) -> Drawn:
    marks = f"{IMAGE_PLACEHOLDER}\n" * len(scenes)
    text = caption(scenes, dice, caption_words(dice))
    return Drawn((Turn("human", marks + dice.choose(_DESCRIBE)), Turn("gpt", text)), tuple(scenes))


_SCENES: tuple[tuple[Callable[[Material, Dice], Scene], float], ...] = (
    (draw_digit, 7), (draw_shape, 3), (draw_photograph, 4), (draw_number, 1), (draw_word, 1),
)  # fmt: skip


def _any_scene(material: Material, dice: Dice) -> Scene:
    return dice.weighted(_SCENES)(material, dice)


def _asked_and_described(material: Material, dice: Dice) -> Drawn:
    """A choice, and then the long answer: so the letters are met often, though short answers stay few."""
    first = _choice(material, dice)
    text = caption(first.scenes, dice, caption_words(dice))
    return Drawn((*first.turns, Turn("human", dice.choose(_DESCRIBE)), Turn("gpt", text)), first.scenes)


def _long_caption(material: Material, dice: Dice) -> Drawn:
    scene = draw_photograph(material, dice) if dice.chance(0.5) else _any_scene(material, dice)
    return _described([scene], dice)


def _chat(material: Material, dice: Dice) -> Drawn:
    if dice.chance(0.06):
        return _text_only(dice)
    if dice.chance(0.15):
        return _described([_any_scene(material, dice) for _ in range(dice.between(2, 3))], dice)
    if dice.chance(0.2):
        return _asked_and_described(material, dice)
    first = _described([_any_scene(material, dice)], dice)
    if dice.chance(0.1):
        height, width, _ = first.scenes[0].pixels.shape
        shape = "Wider." if width > height else "Higher." if height > width else "Neither, it is square."
        return Drawn((*first.turns, Turn("human", "Is it wider or higher?"), Turn("gpt", shape)), first.scenes)
    return first


def _text_only(dice: Dice) -> Drawn:
    """No picture: counting, which is true and as long as asked for."""
    start, count = dice.below(10), max(3, caption_words(dice) // 2)
    spoken = ", ".join(NUMBER_WORDS[(start + step) % 10] for step in range(count))
    question = f"Say the digits in turn, {count} of them, from {NUMBER_WORDS[start]} on."
    return Drawn((Turn("human", question), Turn("gpt", f"{spoken}.")))


SOURCES = (
    MixSource("aokvqa", 0.08, _choice),
    MixSource("iiit5k", 0.01, _latin_word),
    MixSource("orand_car_a", 0.01, _number),
    MixSource("image_textualization", 0.48, _long_caption),
    MixSource("sharegpt4o", 0.28, _chat),
    MixSource("chinese_text_recognition", 0.01, _chinese_word),
    MixSource("vqa_like", 0.13, _short),
)


def counts(records: int) -> dict[str, int]:
    """Records of each source; they add up to ``records``, every source has one at least."""
    whole = {source.name: max(1, int(records * source.share)) for source in SOURCES}
    whole["image_textualization"] += records - sum(whole.values())
    return whole
