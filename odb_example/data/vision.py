"""Images to patches and placeholder counts, through the checkpoint's own image processor.

Takes PIL images (never arrays: a height of 1 or 3 would be read as channels) or their sizes; both roads end in the same
counts, which is what lets a length be known from image headers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image


class GridVision:
    """The Qwen-VL way: patches of all images in one matrix, a (t, h, w) grid for each, merged before the text model."""

    def __init__(self, processor: Any) -> None:
        self._processor = processor.image_processor
        self._merged = self._processor.merge_size**2

    def tokens(self, sizes: Sequence[tuple[int, int]]) -> list[int]:
        """Placeholders of images of ``sizes`` (height, width).

        Raises:
            ValueError: one of the shapes is refused by the processor.
        """
        return [
            self._processor.get_number_of_image_patches(height, width, {}) // self._merged for height, width in sizes
        ]

    def pixels(self, images: Sequence[Image.Image]) -> dict[str, torch.Tensor]:
        """``pixel_values`` (patches, dim) and ``image_grid_thw`` (images, 3), from one call of the image processor.

        Raises:
            ValueError: one of the shapes is refused by the processor.
        """
        features = self._processor(images=list(images), return_tensors="pt")
        return {"pixel_values": features["pixel_values"], "image_grid_thw": features["image_grid_thw"]}
