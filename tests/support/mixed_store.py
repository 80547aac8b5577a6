"""A small store with text-only rows among image rows, made from a miniature one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path


def mixed_store(source: Path, target: Path, *, records: int, text_only_every: int) -> Path:
    """The first ``records`` of ``source``, every ``text_only_every``-th without its images (1 = all of them)."""
    rows = [json.loads(line) for line in (source / "records.jsonl").read_text().splitlines()[:records]]
    target.mkdir(parents=True)
    for number, row in enumerate(rows):
        if number % text_only_every == text_only_every - 1:
            row["images"] = []
            for turn in row["conversations"]:
                turn["value"] = turn["value"].replace("<image>\n", "").replace("<image>", "")
        for image in row["images"]:
            (target / image).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / image, target / image)
    (target / "records.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (target / "metadata.json").write_text(json.dumps({"num_records": len(rows)}))
    return target
