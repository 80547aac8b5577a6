"""The embedded MM-Mix: a small store of real material from installed packages, made from a seed, and its benchmark."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from odb_example.data.pixels import Pixels, stored
from odb_example.data.records import Record, Turn
from odb_example.data.store_writer import StoreWriter

VERSION = 0
SHARES = {
    "aokvqa": 0.08,
    "iiit5k": 0.02,
    "orand_car_a": 0.03,
    "image_textualization": 0.48,
    "sharegpt4o": 0.28,
    "chinese_text_recognition": 0.03,
    "vqa_like": 0.08,
}


@dataclass(frozen=True, slots=True)
class BuildReport:
    """What a build left behind."""

    path: Path
    records: int
    per_source: dict[str, int]
    skipped: dict[str, dict[str, int]] = field(default_factory=dict)
    fingerprint: str = ""
    nothing_to_do: bool = False


def build_miniature(path: Path, *, records: int, seed: int, benchmark_path: Path) -> BuildReport:
    """Build the miniature store at ``path`` (first version: digits and a caption grammar; no benchmark yet)."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    writer = StoreWriter(
        path, sources=tuple(SHARES), plan={"recipe": "miniature", "version": VERSION, "seed": seed, "records": records}
    )
    left = records
    for number, (source, share) in enumerate(SHARES.items()):
        count = left if number == len(SHARES) - 1 else round(records * share)
        left -= count
        with writer.source(source) as part:
            for index in range(count):
                rng = random.Random(f"{seed}/{source}/{index}")
                images, turns = _example(source, rng, digits)
                files = tuple(stored(image) for image in images)
                part.add(Record(f"{source}-{index:06d}", source, turns, tuple(file.path for file in files)), files)
    whole = writer.finish()
    return BuildReport(path, records, whole["sources"], whole["skipped"], whole["fingerprint"])


QUESTION = (
    "Which digit is this?\n(A) 0 or 1\n(B) 2, 3 or 4\n(C) 5, 6 or 7\n(D) 8 or 9\nAnswer with the option letter only."
)


def _digit(digits: Any, index: int, scale: int) -> Pixels:
    grey = (digits.images[index] * 15).astype(np.uint8)
    return np.repeat(np.repeat(grey, scale, 0), scale, 1)[..., None].repeat(3, 2)


def _example(source: str, rng: random.Random, digits: Any) -> tuple[list[Pixels], tuple[Turn, ...]]:
    index = rng.randrange(len(digits.images))
    value = int(digits.target[index])
    picture = _digit(digits, index, rng.randrange(6, 13))
    if source == "aokvqa":
        return [picture], (Turn("human", f"<image>{QUESTION}"), Turn("gpt", "AABBBCCCDD"[value]))
    if source in ("iiit5k", "orand_car_a", "chinese_text_recognition", "vqa_like"):
        return [picture], (Turn("human", "<image>\nWhich digit is this?"), Turn("gpt", str(value)))
    words = " ".join(
        rng.choice(["a", "dark", "light", "digit", "stroke", "round", "straight", "picture", "left", "right"])
        for _ in range(rng.choice((8, 20, 35, 35, 60, 100)))
    )
    text = f"The digit {value}: {words}."
    kind = rng.random()
    if kind < 0.08:
        return [], (Turn("human", "Say something about digits."), Turn("gpt", text))
    if kind < 0.2:
        other = _digit(digits, rng.randrange(len(digits.images)), rng.randrange(6, 25))
        return [picture, other], (Turn("human", "<image>\n<image>\nDescribe both."), Turn("gpt", text))
    return [picture], (Turn("human", "<image>\nDescribe the picture in detail."), Turn("gpt", text))
