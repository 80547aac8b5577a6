"""Images as people see them: turned, opaque, RGB; sizes from headers; what cannot be opened says why."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from odb_example.data.images import MAX_PIXELS, ImageError, image_size, open_image

pytestmark = pytest.mark.unit

_PIXELS = np.random.default_rng(0).integers(0, 256, (20, 31, 4), dtype=np.uint8)
RGB = Image.fromarray(_PIXELS[..., :3])
ORIENTATION = 0x0112


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def turned_by(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    return exif


def pixels(data: bytes) -> np.ndarray:
    return np.asarray(open_image(data))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WEBP"])
def test_a_picture_is_turned_by_its_tag_and_its_size_is_the_turned_one(kind: str, orientation: int) -> None:
    options = {"lossless": True} if kind == "WEBP" else {}
    data = encoded(RGB, kind, exif=turned_by(orientation), **options)
    upright = _PIXELS[..., :3]
    # What the eight values mean, in array terms: EXIF 2.3, table 8 ("0th row", "0th column").
    expected = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.transpose(1, 0, 2),
        6: upright.transpose(1, 0, 2)[:, ::-1],
        7: upright.transpose(1, 0, 2)[::-1, ::-1],
        8: upright.transpose(1, 0, 2)[::-1],
    }[orientation]
    assert np.array_equal(pixels(data), expected)
    assert image_size(data) == expected.shape[:2]


@pytest.mark.parametrize("orientation", range(10))
@pytest.mark.parametrize("kind", ["JPEG", "MPO"])
def test_a_lossy_picture_has_the_turned_size_before_and_after_decoding(kind: str, orientation: int) -> None:
    data = encoded(RGB, kind, exif=turned_by(orientation))
    assert image_size(data) == ((31, 20) if orientation in (5, 6, 7, 8) else (20, 31)) == pixels(data).shape[:2]


def test_a_png_with_its_tag_behind_the_pixels_is_turned_too() -> None:
    plain = encoded(RGB, "PNG")
    exif = turned_by(6).tobytes().removeprefix(b"Exif\0\0")
    chunk = struct.pack(">I", len(exif)) + b"eXIf" + exif + struct.pack(">I", zlib.crc32(b"eXIf" + exif))
    late = plain[:-12] + chunk + plain[-12:]
    assert image_size(late) == (31, 20)
    assert np.array_equal(pixels(late), _PIXELS[..., :3].transpose(1, 0, 2)[:, ::-1])


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_a_damaged_tag_leaves_the_picture_as_it_lies() -> None:
    data = encoded(RGB, "PNG", exif=b"MM\0*not a tag directory")
    assert image_size(data) == (20, 31)
    assert np.array_equal(pixels(data), _PIXELS[..., :3])


def transparent_files() -> list[Any]:
    index = Image.new("P", (4, 4), 3)
    index.putpalette([value for colour in range(256) for value in (colour, 0, 0)])
    return [
        pytest.param(encoded(Image.new("RGBA", (4, 4), (0, 0, 0, 0)), "PNG"), id="RGBA"),
        pytest.param(encoded(Image.new("LA", (4, 4), (0, 0)), "PNG"), id="LA"),
        pytest.param(encoded(index, "PNG", transparency=3), id="P with an entry"),
        pytest.param(encoded(index, "PNG", transparency=bytes([255] * 3 + [0])), id="P with a table"),
        pytest.param(encoded(index, "GIF", transparency=3), id="GIF"),
        pytest.param(encoded(Image.new("L", (4, 4), 7), "PNG", transparency=7), id="L with tRNS"),
        pytest.param(encoded(Image.new("RGB", (4, 4), (1, 2, 3)), "PNG", transparency=(1, 2, 3)), id="RGB with tRNS"),
        pytest.param(encoded(Image.new("1", (4, 4), 0), "PNG", transparency=0), id="1 with tRNS"),
        pytest.param(encoded(Image.new("I;16", (4, 4), 900), "PNG", transparency=900), id="16 bits with tRNS"),
        pytest.param(encoded(Image.new("RGBA", (4, 4), (0, 0, 0, 0)), "WEBP", lossless=True), id="WEBP"),
        pytest.param(encoded(Image.new("RGBA", (4, 4), (0, 0, 0, 0)), "TIFF"), id="TIFF"),
    ]


@pytest.mark.parametrize("data", transparent_files())
def test_what_is_transparent_is_white(data: bytes) -> None:
    assert (pixels(data) == 255).all()


def test_half_transparent_black_on_white_is_grey() -> None:
    data = encoded(Image.new("RGBA", (4, 4), (0, 0, 0, 128)), "PNG")
    assert (pixels(data) == 127).all()


@pytest.mark.parametrize(
    ("mode", "kind"),
    [("1", "PNG"), ("L", "PNG"), ("P", "PNG"), ("P", "GIF"), ("CMYK", "TIFF"), ("CMYK", "JPEG"), ("RGB", "BMP"),
     ("RGBA", "PNG"), ("LA", "PNG"), ("YCbCr", "TIFF"), ("LAB", "TIFF"), ("F", "TIFF"), ("I", "TIFF"),
     ("L", "JPEG2000")],
)  # fmt: skip
def test_any_mode_becomes_rgb_of_the_same_size(mode: str, kind: str) -> None:
    image = Image.new("LAB", RGB.size) if mode == "LAB" else RGB.convert(mode)
    opened = open_image(encoded(image, kind))
    assert (opened.mode, opened.size) == ("RGB", (31, 20))


def test_greys_of_sixteen_bits_are_scaled_and_not_clipped() -> None:
    wide = Image.fromarray(np.array([[0, 25_700, 65_535]], dtype=np.uint16))
    assert pixels(encoded(wide, "PNG"))[0, :, 0].tolist() == [0, 100, 255]


def test_the_first_frame_of_an_animation_is_taken() -> None:
    frames = [Image.new("RGB", (8, 6), colour) for colour in ("red", "blue")]
    data = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert pixels(data)[0, 0].tolist() == [255, 0, 0]


def bomb(width: int, height: int) -> bytes:
    """A PNG that claims its size and holds nothing."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", 13) + b"IHDR" + header + struct.pack(">I", zlib.crc32(b"IHDR" + header))
    return b"\x89PNG\r\n\x1a\n" + chunk + struct.pack(">I", 100) + b"IDAT" + bytes(100)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        pytest.param(b"", "empty", id="empty"),
        pytest.param(b"<html>not found</html>", "not a readable image", id="a web page"),
        pytest.param(bomb(30_000, 30_000), "pixels", id="bomb"),
        pytest.param(bomb(MAX_PIXELS + 1, 1), "pixels", id="just above the cap"),
        pytest.param(bomb(0, 5), "image", id="no width"),
    ],
)
def test_what_is_no_picture_is_refused_from_the_header(data: bytes, words: str) -> None:
    for read in (open_image, image_size):
        with pytest.raises(ImageError, match=words):
            read(data)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_a_truncated_picture_is_refused_and_never_filled_with_grey(kind: str) -> None:
    data = encoded(RGB.resize((310, 200)), kind)
    with pytest.raises(ImageError):
        open_image(data[: len(data) * 2 // 3])


_FILES = [encoded(RGB, kind) for kind in ("JPEG", "PNG", "WEBP", "GIF", "BMP", "PPM", "ICO", "TGA", "JPEG2000")]
_FILES += [encoded(RGB, kind, exif=turned_by(6)) for kind in ("JPEG", "PNG", "TIFF")]


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning")
@settings(deadline=None)
@given(
    data=st.sampled_from(_FILES),
    changes=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=6),
    kept=st.floats(0.1, 1),
)
def test_damaged_bytes_give_a_picture_or_an_image_error_and_sizes_agree(
    data: bytes, changes: list[tuple[int, int]], kept: float
) -> None:
    damaged = bytearray(data)
    for place, value in changes:
        damaged[place % len(damaged)] = value
    damaged = damaged[: max(1, round(len(damaged) * kept))]
    try:
        image = open_image(bytes(damaged))
    except ImageError:
        return
    assert image.mode == "RGB"
    assert image_size(bytes(damaged)) == (image.height, image.width)
