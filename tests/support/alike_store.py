"""A store whose samples are all equally long."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from PIL import Image


def alike_store(target: Path, records: int) -> Path:
    """Records of one text and pictures of one size, no two the same: every finished sample is as long as the others."""
    target.mkdir(parents=True)
    rows = []
    for number in range(records):
        noise = np.random.default_rng(number).integers(0, 255, (64, 64, 3), dtype=np.uint8)
        Image.fromarray(noise).save(target / f"{number}.png")
        turns = [
            {"from": "human", "value": "<image>\nWhat is it?"},
            {"from": "gpt", "value": "Noise, and nothing else."},
        ]
        rows.append({"id": str(number), "source": "s", "conversations": turns, "images": [f"{number}.png"]})
    (target / "records.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (target / "metadata.json").write_text(json.dumps({"num_records": records}))
    return target
