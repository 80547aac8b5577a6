"""Image bytes to the picture a person would see: upright, opaque, RGB, first frame.

``open_image`` decodes; ``image_size`` answers from the header alone, with the same turning by EXIF, so that a length
can be known before anything is decoded. Transparent pixels lie on white. What cannot be opened, or would decode to
more than `MAX_PIXELS`, raises `ImageError` with a reason fit for a report.
"""

from __future__ import annotations

import io
import warnings

from PIL import Image, ImageOps, UnidentifiedImageError

MAX_PIXELS = 178_956_970  # twice Pillow's warning threshold: where Pillow itself speaks of a decompression bomb
_EXIF_ORIENTATION = 0x0112
_SIDEWAYS = frozenset({5, 6, 7, 8})


class ImageError(ValueError):
    """These bytes cannot become a picture; the message says why."""


def open_image(data: bytes) -> Image.Image:
    """Decode one image as upright RGB on white.

    Raises:
        ImageError: unreadable, truncated, empty or too large.
    """
    with _opened(data) as image:
        try:
            image.load()
            upright = ImageOps.exif_transpose(image)
        except (OSError, SyntaxError, ValueError, EOFError) as error:
            raise ImageError(f"image does not decode: {error}") from error
        return _on_white(upright)


def image_size(data: bytes) -> tuple[int, int]:
    """(height, width) in pixels after turning by EXIF, without decoding.

    Raises:
        ImageError: as `open_image`, as far as the header tells.
    """
    with _opened(data) as image:
        width, height = image.size
        if image.getexif().get(_EXIF_ORIENTATION) in _SIDEWAYS:
            width, height = height, width
        return height, width


def _opened(data: bytes) -> Image.Image:
    if not data:
        raise ImageError("image file is empty")
    try:
        with warnings.catch_warnings():
            # Pillow warns at half of MAX_PIXELS; the limit is checked here, once, as an error.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image = Image.open(io.BytesIO(data))
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError, SyntaxError, ValueError) as error:
        raise ImageError(f"not a readable image: {error}") from error
    width, height = image.size
    if width < 1 or height < 1:
        raise ImageError(f"image has no pixels: {width}x{height}")
    if width * height > MAX_PIXELS:
        raise ImageError(f"image would decode to {width * height} pixels, more than {MAX_PIXELS}")
    return image


def _on_white(image: Image.Image) -> Image.Image:
    """Composite alpha, and the transparent colour that P, L and RGB files may name, on white."""
    if image.has_transparency_data:
        layered = image.convert("RGBA")
        canvas = Image.new("RGBA", layered.size, "white")
        return Image.alpha_composite(canvas, layered).convert("RGB")
    if image.mode.startswith("I") or image.mode == "F":
        return _eight_bit(image).convert("RGB")
    return image.convert("RGB")


def _eight_bit(image: Image.Image) -> Image.Image:
    """16-bit and float greys to 8 bits: ``convert`` would clip them at 255, a white picture."""
    if image.mode == "F":
        return image.convert("L")
    return image.convert("I").point(lambda value: value / 257).convert("L")
