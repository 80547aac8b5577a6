"""A masked blank image for batches without images.

A rank whose batch has no image would leave the vision tower out of its graph. DDP then dies, ZeRO-3 and FSDP wait for
ever in their gathers, and ZeRO-2 fills its buckets in another order than its peers and is silently wrong. One visual
token behind the sequence, with attention 0 and label -100, keeps the tower where it sits on every other rank: loss and
gradients of the text are untouched, the tower's gradient is zero. A zero-weighted output added to the *loss* is not
enough: it enters the graph at another place, which ZeRO-2 gets wrong.

This belongs to the collectives, not to the data: it is added as the training step prepares its inputs, and never enters
samples, collator or evaluation. The same is done on one rank, so that every number of ranks trains alike: an optimizer
moves a parameter with zero gradient by its momentum, and one without gradient not at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from odb_example.train.objective import IGNORE_INDEX


@dataclass(frozen=True, slots=True)
class BlankImage:
    """One visual token of nothing, for a family that feeds flattened patches beside ``image_grid_thw``."""

    image_token_id: int
    vision_start_token_id: int
    merge: int
    patch_values: int

    @classmethod
    def of(cls, config: Any) -> BlankImage | None:
        """The blank image of a Qwen-VL style model configuration; None for a family without such patches."""
        vision: Any = getattr(config, "vision_config", None)
        needed = ("spatial_merge_size", "patch_size", "temporal_patch_size")
        if not all(hasattr(vision, name) for name in needed) or not hasattr(config, "image_token_id"):
            return None
        channels = getattr(vision, "in_channels", 3)
        return cls(
            image_token_id=config.image_token_id,
            vision_start_token_id=config.vision_start_token_id,
            merge=vision.spatial_merge_size,
            patch_values=channels * vision.temporal_patch_size * vision.patch_size**2,
        )

    def behind(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """``inputs`` (rows, length) with two masked columns behind: vision start and the visual token, in row 0.

        ``pixel_values`` (merge ** 2, patch values) and ``image_grid_thw`` (1, 3) of the blank image are added.
        """
        ids = inputs["input_ids"]
        added = {
            "input_ids": ids.new_full((ids.shape[0], 2), self.vision_start_token_id),
            "attention_mask": inputs["attention_mask"].new_zeros((ids.shape[0], 2)),
            "labels": ids.new_full((ids.shape[0], 2), IGNORE_INDEX),
        }
        added["input_ids"][0, 1] = self.image_token_id
        if "mm_token_type_ids" in inputs:
            added["mm_token_type_ids"] = inputs["mm_token_type_ids"].new_zeros((ids.shape[0], 2))
            added["mm_token_type_ids"][0, 1] = 1
        widened = {name: torch.cat([inputs[name], columns], dim=1) for name, columns in added.items()}
        patches = torch.zeros(self.merge**2, self.patch_values, device=ids.device)
        grid = torch.tensor([[1, self.merge, self.merge]], device=ids.device)
        return {**inputs, **widened, "pixel_values": patches, "image_grid_thw": grid}
