"""Image bytes to the picture a person would see: upright, opaque, RGB, first frame.

`open_image` decodes; `image_size` answers from the header alone, turned the same way, so that a length is known before
anything is decoded. Transparent pixels lie on white. Greys of 16 bits are scaled, not clipped. What cannot be opened,
or would decode to more than `MAX_PIXELS`, raises `ImageError` with a reason fit for a report.
"""

from __future__ import annotations

import io
import struct
import warnings

import numpy as np
from PIL import Image, UnidentifiedImageError

MAX_PIXELS = 178_956_970  # where Pillow itself refuses an image as a decompression bomb
_ORIENTATION = 0x0112  # EXIF tag
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_SIDEWAYS = frozenset({5, 6, 7, 8})
# What Pillow's decoders raise on damaged files, beside its own UnidentifiedImageError (an OSError).
_DAMAGE = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    TypeError,
    LookupError,
    ArithmeticError,
    RuntimeError,
    struct.error,
    Image.DecompressionBombError,
)


class ImageError(ValueError):
    """These bytes cannot become a picture; the message says why."""


def open_image(data: bytes) -> Image.Image:
    """Decode one image as upright RGB on white.

    Raises:
        ImageError: unreadable, truncated, empty or too large.
    """
    with _opened(data) as image:
        try:
            orientation = _orientation(image, data)
            image.load()
            opaque = _on_white(image)
        except _DAMAGE as error:
            raise ImageError(f"image does not decode: {error}") from error
    return opaque.transpose(_TURNS[orientation]) if orientation in _TURNS else opaque


def image_size(data: bytes) -> tuple[int, int]:
    """(height, width) in pixels after turning, without decoding.

    Raises:
        ImageError: as `open_image`, as far as the header tells.
    """
    with _opened(data) as image:
        width, height = image.size
        if _orientation(image, data) in _SIDEWAYS:
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
    except UnidentifiedImageError as error:
        raise ImageError("not a readable image: unknown format or damaged header") from error
    except _DAMAGE as error:
        raise ImageError(f"not a readable image: {error}") from error
    width, height = image.size
    if width < 1 or height < 1:
        raise ImageError(f"image has no pixels: {width}x{height}")
    if width * height > MAX_PIXELS:
        raise ImageError(f"image would decode to {width * height} pixels, more than {MAX_PIXELS}")
    return image


def _orientation(image: Image.Image, data: bytes) -> int:
    """The EXIF orientation still to be applied, 1 to 8; 1 where there is none or it cannot be read.

    A damaged tag does not make a picture unreadable: viewers show it as it lies, and so does this.
    """
    if image.format == "TIFF":
        return 1  # Pillow turns these itself, size and pixels
    try:
        late = image.format == "PNG" and _png_has_late_metadata(data)
        # Pillow's PNG class decodes the whole file to find EXIF, in case it stands behind the pixels.
        exif = image.getexif() if late else Image.Image.getexif(image)
        found = exif.get(_ORIENTATION, 1)
    except _DAMAGE:
        return 1
    return found if isinstance(found, int) and found in _TURNS else 1


def _png_has_late_metadata(data: bytes) -> bool:
    """Whether EXIF or text chunks stand behind the pixels (PNG specification, 5.3: length, type, data, checksum)."""
    position, pixels_seen = 8, False
    while position + 8 <= len(data):
        length = int.from_bytes(data[position : position + 4], "big")
        kind = data[position + 4 : position + 8]
        if kind == b"IDAT":
            pixels_seen = True
        elif pixels_seen and kind in (b"eXIf", b"iTXt", b"tEXt", b"zTXt"):
            return True
        position += 12 + length
    return False


def _on_white(image: Image.Image) -> Image.Image:
    """Composite alpha, and the transparent colour that P, L and RGB files may name, on white."""
    if image.mode.startswith("I"):
        return _grey_on_white(image)
    if image.has_transparency_data:
        layered = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layered.size, "white"), layered).convert("RGB")
    return image.convert("RGB")


def _grey_on_white(image: Image.Image) -> Image.Image:
    """Greys of 16 bits to 8: ``convert`` would clip them at 255 and leave a white picture."""
    values = np.asarray(image).astype(np.int64)
    scaled = np.clip(values // 257 if values.max(initial=0) > 255 else values, 0, 255).astype(np.uint8)
    transparent = image.info.get("transparency")
    if isinstance(transparent, int):
        scaled = np.where(values == transparent, np.uint8(255), scaled)
    return Image.fromarray(scaled).convert("RGB")
