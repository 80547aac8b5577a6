"""Records nobody would write by hand, for properties of samples."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st
from PIL import Image

from odb_example.data.records import Record, Turn
from odb_example.models.miniature import SPECIAL_TOKENS, TOOL_TOKENS

# (height, width): a pixel, strips up to the ratio the processor still takes, below the smallest, square, above the cap.
SIZES = (
    (1, 1), (1, 150), (3, 300), (24, 198), (28, 28), (32, 32), (33, 65), (64, 48), (112, 90), (199, 1), (200, 300),
    (300, 200), (256, 256), (257, 256), (320, 512),
)  # fmt: skip
TYPED_BY_TEMPLATE = (
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<|vision_end|>",
)
LOOK_ALIKES = (*SPECIAL_TOKENS, *TYPED_BY_TEMPLATE)
NEARLY = (
    "<|im_start",
    "|im_end|>",
    "<| im_end |>",
    "<|image_pad",
    "<image>",
    "<|im_end|\u00ad>",
    "<|IM_END|>",
    *TOOL_TOKENS,
)


def _png(number: int, height: int, width: int) -> bytes:
    pixels = np.random.default_rng(number).integers(0, 256, (height, width, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


IMAGES = {f"{height}x{width}.png": _png(number, height, width) for number, (height, width) in enumerate(SIZES)}


def read_image(path: str) -> bytes:
    """Stands for a store's `image_bytes`."""
    return IMAGES[path]


_plain = st.text(st.characters(exclude_categories=("Cs",)), max_size=30)
_spaces = st.text(" \n\r\t\u3000\u00a0", max_size=4)
_words = st.sampled_from(
    [
        "A",
        "the answer",
        "\u56fe\u4e2d\u7684\u6587\u5b57",
        "e\u0301",
        "\u212b\u0338",
        "1234",
        "  x\n\ny",
        "don't",
        "\U0001f600",
    ]
)


def texts(spelled: Sequence[str]) -> st.SearchStrategy[str]:
    """Any Unicode, runs of white space, words, and the given spellings anywhere.

    No control token that was not asked for: hypothesis draws string constants of the code under test as text, and two
    pieces may join to one.
    """
    pieces = st.one_of(_plain, _spaces, _words, st.sampled_from(list(spelled)))
    unwanted = [token for token in LOOK_ALIKES if token not in spelled]
    joined = st.lists(pieces, max_size=5).map("".join)
    return joined.filter(lambda text: not any(token in text for token in unwanted))


@st.composite
def records(draw: st.DrawFn, spelled: Sequence[str] = NEARLY) -> Record:
    """A sound record: 0 to 5 images anywhere in its human turns, 1 to 6 turns, an answer somewhere."""
    count = draw(st.integers(0, 5))
    images = tuple(draw(st.sampled_from(sorted(IMAGES))) for _ in range(count))
    roles = ["human", "gpt", "human", "gpt", "human", "gpt"][: draw(st.integers(2, 6))]
    if draw(st.booleans()):
        roles = roles[1:] if count == 0 else ["human", *roles[:-1]]
    humans = [position for position, role in enumerate(roles) if role == "human"]
    if "gpt" not in roles:
        roles.append("gpt")
    said = [draw(texts(spelled)) for _ in roles]
    if count:
        said = [
            text.replace("<image>", "<picture>") if role == "human" else text
            for role, text in zip(roles, said, strict=True)
        ]
    for _ in range(count):
        position = draw(st.sampled_from(humans))
        place = draw(st.integers(0, len(said[position])))
        # Never inside a placeholder that was put there before.
        while "<image>" in said[position] and _inside(said[position], place):
            place += 1
        said[position] = said[position][:place] + "<image>" + said[position][place:]
    turns = tuple(Turn(role, text) for role, text in zip(roles, said, strict=True))
    return Record("generated", "test", turns, images)


def _inside(text: str, place: int) -> bool:
    start = text.find("<image>")
    while start != -1:
        if start < place < start + len("<image>"):
            return True
        start = text.find("<image>", start + 1)
    return False
