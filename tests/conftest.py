"""Fixtures that unit and integration tests share."""

from __future__ import annotations

import gc
import io
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

Rows = Sequence[Mapping[str, Any]]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep what collection imports out of the garbage collector's way: half a million objects that live to the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def picture(seed: int, *, size: tuple[int, int] = (40, 48), mode: str = "RGB", form: str = "PNG", **save: Any) -> bytes:
    """Encoded bytes of a small picture of its own; ``size`` is (height, width)."""
    pixels = np.random.default_rng(seed).integers(0, 255, (size[0] // 8 + 1, size[1] // 8 + 1, 3), dtype=np.uint8)
    image = Image.fromarray(pixels).resize((size[1], size[0])).convert(mode)
    stream = io.BytesIO()
    image.save(stream, form, **save)
    return stream.getvalue()


def mmmu_row(subject: str, number: int, **changes: Any) -> dict[str, Any]:
    """One row in MMMU's schema, sound unless ``changes`` say otherwise; images are encoded bytes."""
    row: dict[str, Any] = {
        "id": f"validation_{subject}_{number}",
        "question": f"What does <image 1> show in case {number} of {subject}?",
        "options": "['a lever', 'a pulley', 'a wedge', 'a screw']",
        "explanation": "",
        **{f"image_{place}": None for place in range(1, 8)},
        "img_type": "['Diagrams']",
        "answer": "ABCD"[number % 4],
        "topic_difficulty": "Easy",
        "question_type": "multiple-choice",
        "subfield": "Mechanics",
    }
    row["image_1"] = picture(number, size=(32 + 8 * (number % 5), 40))
    return row | changes


def write_mmmu(folder: Path, subjects: Mapping[str, Rows], split: str = "validation", *, readme: bool = True) -> Path:
    """A data-set folder in the layout of MMMU/MMMU: parquet a subject, written with the set's own features."""
    import yaml
    from datasets import Dataset, Features, Value
    from datasets import Image as ImageFeature

    names = list(mmmu_row("Art", 0))
    features = Features({name: ImageFeature() if name.startswith("image_") else Value("string") for name in names})
    configs = []
    for subject, rows in subjects.items():
        columns = {name: [_stored(name, row[name]) for row in rows] for name in names}
        path = folder / subject / f"{split}-00000-of-00001.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        Dataset.from_dict(columns, features=features).to_parquet(path)
        configs.append({"config_name": subject, "data_files": [{"split": split, "path": f"{subject}/{split}-*"}]})
    if readme:
        (folder / "README.md").write_text(f"---\n{yaml.safe_dump({'configs': configs})}---\n# Rows\n")
    return folder


def _stored(name: str, value: Any) -> Any:
    return {"bytes": value, "path": None} if name.startswith("image_") and value is not None else value


def odd_mmmu_rows() -> dict[str, list[dict[str, Any]]]:
    """Every oddity of MMMU's validation split, and a few worse ones, among sound rows. Each has its own id."""
    row = mmmu_row
    return {
        "Art": [row("Art", number) for number in range(1, 7)],
        "Biology": [
            row("Biology", 1),
            row("Biology", 7, options=str([f"gene {n}" for n in range(9)]), answer="I"),
            row("Biology", 8, options=str([f"cell {n}" for n in range(9)]), answer="H"),
        ],
        "Chemistry": [
            row("Chemistry", 1, image_1=picture(1, mode="L")),
            row("Chemistry", 2, options="['<image 2>', '<image 3>', '<image 4>']", answer="c")
            | {f"image_{place}": picture(place) for place in range(2, 5)},
            row("Chemistry", 30, options="[]", answer="['1.5', '3/2']", question_type="open"),
        ],
        "Economics": [
            row("Economics", 1, options="['rises', 'rises', 'falls', ' stays ']", answer=" d "),
            row("Economics", 2, options="['', 'up', '  ', 'down']", answer="B"),
            row("Economics", 3, options="['only one']", answer="A"),
            row("Economics", 4, options="__import__('pathlib').Path('ran').touch()", answer="A"),
            row("Economics", 5, options="['unclosed", answer="B"),
            row("Economics", 6, options="['yes', 'no']", answer="E"),
        ],
        "Math": [
            row("Math", 1, image_1=None, question="2 + 2?"),
            row("Math", 2, **{f"image_{place}": picture(place, size=(32, 32)) for place in range(1, 8)}),
            row("Math", 3, image_1=picture(3)[:150]),
            row("Math", 4, image_1=b"no image at all"),
            row("Math", 5, image_1=picture(5, size=(6, 1500))),
        ],
        "Pharmacy": [
            row("Pharmacy", 19, options="[]", answer="B", question_type="open"),
            row("Pharmacy", 20, options="[]", answer="12 mg", question_type="open"),
            row("Pharmacy", 21, image_1=picture(21, mode="RGBA")),
            row("Pharmacy", 22, question="Does <|im_end|> end <image 1>?"),
            row("Pharmacy", 23, question="Is <|image_pad|> an image?"),
        ],
    }


@pytest.fixture(scope="session")
def make_picture() -> Callable[..., bytes]:
    return picture


@pytest.fixture(scope="session")
def make_mmmu_row() -> Callable[..., dict[str, Any]]:
    return mmmu_row


@pytest.fixture(scope="session")
def make_mmmu() -> Callable[..., Path]:
    return write_mmmu


@pytest.fixture(scope="session")
def odd_mmmu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A local benchmark that holds every oddity."""
    return write_mmmu(tmp_path_factory.mktemp("benchmark") / "mmmu", odd_mmmu_rows())
