"""Integer arithmetic on pictures, and a picture's way into the store.

A drawn picture is named and fingerprinted by what is seen (shape and RGB values), not by the bytes an encoder makes.
"""

from __future__ import annotations

import hashlib
import io

import numpy as np
import numpy.typing as npt
from PIL import Image

from odb_example.data.store_writer import StoredImage

Pixels = npt.NDArray[np.uint8]  # (height, width, 3)
Grey = npt.NDArray[np.uint8]  # (height, width)
Colour = tuple[int, int, int]
# A Qwen-VL processor refuses an image whose longer side is more than this many times the shorter.
MAX_RATIO = 200


def pixel_digest(pixels: Pixels) -> str:
    """SHA-256 over shape and RGB values of a picture of shape (height, width, 3)."""
    height, width, _ = pixels.shape
    return hashlib.sha256(f"{height}x{width}\n".encode() + np.ascontiguousarray(pixels).tobytes()).hexdigest()


def png(pixels: Pixels) -> bytes:
    """The picture as a PNG file."""
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG", compress_level=1)
    return stream.getvalue()


def stored(pixels: Pixels) -> StoredImage:
    """A drawn picture as a PNG, addressed by its pixels."""
    return StoredImage(png(pixels), pixel_digest(pixels), "png")


def canvas(height: int, width: int, colour: Colour) -> Pixels:
    """An even picture."""
    return np.broadcast_to(np.array(colour, np.uint8), (height, width, 3)).copy()


def resize(picture: npt.NDArray[np.uint8], height: int, width: int) -> npt.NDArray[np.uint8]:
    """Resize axis by axis: means of whole pixels when shrinking, linear when growing; exact integers throughout."""
    return _resize_axis(_resize_axis(picture, height, 0), width, 1)


def blend(paper: Pixels, mask: Grey, ink: Colour) -> Pixels:
    """Ink over paper by coverage (0 to 255); both of shape (height, width)."""
    cover = mask.astype(np.int32)[..., None]
    return ((paper * (255 - cover) + np.array(ink, np.int32) * cover) // 255).astype(np.uint8)


def paste(picture: Pixels, mask: Grey, ink: Colour, top: int, left: int) -> Pixels:
    """`blend` at a place; the mask must fit."""
    height, width = mask.shape
    drawn = picture.copy()
    drawn[top : top + height, left : left + width] = blend(picture[top : top + height, left : left + width], mask, ink)
    return drawn


def grain(picture: Pixels, noise: bytes, amount: int) -> Pixels:
    """Grey noise of at most ``amount`` up or down; ``noise`` holds one byte a pixel."""
    height, width, _ = picture.shape
    shift = np.frombuffer(noise, np.uint8).reshape(height, width, 1).astype(np.int32) * (2 * amount + 1) // 256 - amount
    return np.clip(picture + shift, 0, 255).astype(np.uint8)


def _resize_axis(picture: npt.NDArray[np.uint8], size: int, axis: int) -> npt.NDArray[np.uint8]:
    old = picture.shape[axis]
    if size == old:
        return picture
    wide = picture.astype(np.int32)
    column = [1] * picture.ndim
    column[axis] = size
    if size < old:
        starts = np.arange(size) * old // size
        counts = np.diff(np.append(starts, old)).reshape(column)
        return (np.add.reduceat(wide, starts, axis=axis) // counts).astype(np.uint8)
    # Centres of the new pixels in units of 1/256 of an old one.
    centre = np.clip((2 * np.arange(size) + 1) * old * 128 // size - 128, 0, (old - 1) * 256)
    low, weight = centre // 256, (centre % 256).reshape(column)
    high = np.minimum(low + 1, old - 1)
    mixed = np.take(wide, low, axis) * (256 - weight) + np.take(wide, high, axis) * weight
    return (mixed // 256).astype(np.uint8)
