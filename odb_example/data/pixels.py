"""Pixels to a stored PNG: named and fingerprinted by what is seen, not by the bytes an encoder happens to make."""

from __future__ import annotations

import hashlib
import io

import numpy as np
import numpy.typing as npt
from PIL import Image

from odb_example.data.store_writer import StoredImage

Pixels = npt.NDArray[np.uint8]


def pixel_digest(pixels: Pixels) -> str:
    """SHA-256 over shape and RGB values of a picture of shape (height, width, 3)."""
    height, width, _ = pixels.shape
    return hashlib.sha256(f"{height}x{width}\n".encode() + np.ascontiguousarray(pixels).tobytes()).hexdigest()


def stored(pixels: Pixels) -> StoredImage:
    """A drawn picture as a PNG, addressed by its pixels."""
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG", compress_level=1)
    return StoredImage(stream.getvalue(), pixel_digest(pixels), "png")
