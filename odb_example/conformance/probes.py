"""Small records and pictures, made here, on which checks try a pipeline."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

import numpy as np
from PIL import Image

from odb_example.conformance.pipeline import ImageBytes, Pipeline
from odb_example.data.records import IMAGE_PLACEHOLDER, Record, Turn

ORIENTATION_TAG = 0x0112


def record(*values: str, images: Sequence[str] = (), name: str = "probe") -> Record:
    """A record whose turns alternate between human and gpt."""
    turns = tuple(Turn("gpt" if number % 2 else "human", value) for number, value in enumerate(values))
    return Record(id=name, source="probe", conversations=turns, images=tuple(images), upstream={})


def reader(images: Mapping[str, bytes]) -> ImageBytes:
    """`image_bytes` over a dict."""
    return images.__getitem__


def picture(height: int, width: int, channels: int = 3, seed: int = 0) -> np.ndarray:
    """Smooth colours with a bright corner, so that no turn or mirror leaves it unchanged; (height, width, channels)."""
    rows, columns = np.mgrid[0:height, 0:width]
    planes = [
        rows * 160 // max(height - 1, 1) + 20 * seed,
        columns * 200 // max(width - 1, 1),
        (rows * 3 + columns * 5) % 97,
    ]
    made = np.stack((planes * 2)[:channels], axis=-1).astype(np.uint8)
    made[: max(1, height // 4), : max(1, width // 4)] = 250
    return made


def png(image: Image.Image | np.ndarray, **options: object) -> bytes:
    """The bytes of a PNG file."""
    stream = io.BytesIO()
    (Image.fromarray(image) if isinstance(image, np.ndarray) else image).save(stream, "PNG", **options)
    return stream.getvalue()


def turned_by_tag(upright: np.ndarray) -> bytes:
    """A file that stores ``upright`` a quarter turn off, with the EXIF tag by which viewers turn it back."""
    exif = Image.Exif()
    exif[ORIENTATION_TAG] = 6  # viewers rotate by 90 degrees clockwise
    return png(np.rot90(upright).copy(), exif=exif)


def with_images(pipeline: Pipeline, text: str, answer: str, pictures: int, *, after: bool = False) -> Record:
    """A record of one exchange, with ``pictures`` images a.png, b.png, ... where the pipeline takes images."""
    names = [f"{chr(97 + number)}.png" for number in range(pictures if pipeline.takes_images else 0)]
    marks = "\n".join([IMAGE_PLACEHOLDER] * len(names))
    asked = f"{text}\n{marks}" if after else f"{marks}\n{text}"
    return record(asked if names else text, answer, images=names)


PICTURES = {f"{chr(97 + number)}.png": png(picture(64 + 32 * number, 96, seed=number)) for number in range(4)}

AWKWARD_RECORDS = (
    record("What?", "Seven.", name="plain"),
    record("<image>\nAnd <image>?", "Zwei.", "Sure?", "Yes.", images=("b.png", "a.png"), name="two-images"),
    record("line one\nline two\r\n\ttab \u2028 \u2029 \x85 \x0c \x00 end ", "  spaces kept  ", name="line-ends"),
    record("\u00e9 and e\u0301 differ", "\ufb01 is no fi; \u212b", name="unnormalised"),
    record("emoji \U0001f469\u200d\U0001f680 图中的文字是什么？", 'quotes " \\ / \\n </s>', name="unicode"),
    record("How is <image> written?", "As <image>.", name="placeholder-as-text"),
    Record("nested", "probe", record("a", "b").conversations, (), {"score": 0.1, "tags": ["x", None], "n": {"k": 1}}),
)
