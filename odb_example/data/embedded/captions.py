"""Captions that are true: what a scene shows, then as much detail, measured from its pixels, as the length asks for.

Lengths follow the public mix's shape (label tokens 6, 196, 644 at p10, p50, p90, of which the short answers make the
first), scaled to the tiny model.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from odb_example.data.embedded.dice import Dice
from odb_example.data.embedded.scenes import Scene
from odb_example.data.pixels import resize

# Words of a caption by quantile; linear in between.
_WORDS = ((0.0, 7), (0.2, 13), (0.4, 23), (0.6, 34), (0.8, 49), (0.9, 63), (0.97, 90), (0.995, 150), (1.0, 250))
_ROWS = ("top", "upper", "middle", "lower", "bottom")
_COLUMNS = ("far left", "left", "centre", "right", "far right")


def caption_words(dice: Dice) -> int:
    """How long a caption is to be, in words."""
    mark = dice.share()
    for (low, few), (high, many) in itertools.pairwise(_WORDS):
        if mark <= high:
            return few + int((mark - low) / (high - low) * (many - few))
    return _WORDS[-1][1]


def caption(scenes: Sequence[Scene], dice: Dice, words: int) -> str:
    """A caption of about ``words`` words; every sentence is true of its scene.

    Several scenes are told apart by their ordinal; the first sentence always says what is shown.
    """
    if len(scenes) == 1:
        return " ".join(_up_to(words, [_subject(scenes[0], "The picture")], _details(scenes[0], dice)))
    named = [f"The {ordinal} picture" for ordinal in ("first", "second", "third")[: len(scenes)]]
    openings = [_subject(scene, name) for scene, name in zip(scenes, named, strict=True)]
    details = (
        f"{name}: {detail[0].lower()}{detail[1:]}"
        for name, scene in zip(named, scenes, strict=True)
        for detail in _details(scene, dice)
    )
    return " ".join(_up_to(words, openings, details))


def _up_to(words: int, sentences: list[str], details: Iterator[str]) -> list[str]:
    count = sum(len(sentence.split()) for sentence in sentences)
    for detail in details:
        size = len(detail.split())
        if count + size > words:
            break
        sentences.append(detail)
        count += size
    return sentences


def _subject(scene: Scene, name: str) -> str:
    facts = scene.facts
    if scene.kind == "digit":
        return f"{name} shows the digit {facts['value']}."
    if scene.kind == "number":
        return f"{name} shows a number of {facts['length']} digits, {facts['text']}."
    if scene.kind == "shape":
        return f"{name} shows a {facts['ink']} {facts['shape']} in the {facts['place']}."
    if scene.kind == "word":
        return f"{name} shows the {facts['script']} word {facts['text']} in {facts['ink']}."
    return f"{name} shows {facts['scene']}."


def _details(scene: Scene, dice: Dice) -> Iterator[str]:
    """Sentences about the scene, the general ones first, then a walk over its parts, at last its very rows."""
    height, width, _ = scene.pixels.shape
    shape = "wider than it is high" if width > height else "higher than it is wide" if height > width else "square"
    yield f"It is {shape}."
    if "paper" in scene.facts:
        yield f"The paper is {scene.facts['paper']}."
    parts = resize(scene.pixels, 5, 5).astype(int)
    yield f"On the whole it is {_tone(parts.mean(axis=(0, 1)).astype(int).tolist())}."
    light = parts.sum(axis=2)
    yield f"The {'left' if light[:, :2].sum() > light[:, 3:].sum() else 'right'} side is lighter."
    yield f"The {'upper' if light[:2].sum() > light[3:].sum() else 'lower'} half is lighter."
    for row in dice.shuffled(range(5)):
        tones = [_tone(parts[row, column].tolist()) for column in range(5)]
        if len(set(tones)) == 1:
            yield f"Along the {_ROWS[row]} all is {tones[0]}."
        else:
            yield f"Along the {_ROWS[row]} from left to right it is {', '.join(tones[:-1])} and {tones[-1]}."
    for cell in dice.shuffled(range(25)):
        row, column = divmod(cell, 5)
        yield f"In the {_ROWS[row]} row, {_COLUMNS[column]}, one sees {_tone(parts[row, column].tolist())}."


def _tone(colour: Sequence[int]) -> str:
    """A name for a colour, by whole-number thresholds."""
    red, green, blue = colour
    light = (red + green + blue) // 3
    depth = "black" if light < 40 else "dark" if light < 100 else "mid" if light < 160 else "light"
    if max(colour) - min(colour) < 28:
        return {"black": "black", "dark": "dark grey", "mid": "grey"}.get(
            depth, "white" if light > 225 else "light grey"
        )
    hue = "red" if red == max(colour) else "green" if green == max(colour) else "blue"
    if red - blue > 30 and green - blue > 20:
        hue = "brown" if light < 150 else "yellow"
    return f"dark {hue}" if light < 90 else f"light {hue}" if light > 180 else hue
