"""Letter scores made from the prompt alone: a scorer without a model."""

from __future__ import annotations

from typing import Any

import torch


def invented(batch: dict[str, Any]) -> list[dict[str, Any]]:
    """Log-probabilities of eight letters and a ninth outcome, by the prompt's own tokens."""
    rows = []
    for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True):
        generator = torch.Generator().manual_seed(int((ids * mask).sum()) * 31 + int(mask.sum()))
        scores = torch.log_softmax(torch.randn(9, generator=generator, dtype=torch.float64), 0)[:8]
        rows.append({"scores": scores.tolist(), "prompt_tokens": int(mask.sum())})
    return rows
