"""Local folders in the Hub sets' own schema: parquet with the Image feature, a README that names the configs."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

Row = Mapping[str, Any]


def picture(number: int, *, size: tuple[int, int] = (14, 10), form: str = "JPEG") -> bytes:
    """An encoded picture of its own; ``size`` is (width, height)."""
    pixels = np.random.default_rng(number).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, form)
    return stream.getvalue()


def llava_row(number: int, *, image: bytes | str | None = "own", turns: Sequence[tuple[str, str]] | None = None) -> Row:
    """A row of LLaVA-OneVision-Data."""
    data = picture(number) if image == "own" else image
    spoken = turns or [("human", f"<image>\nWhat is number {number}?"), ("gpt", f"It is {number}.")]
    return {
        "id": f"row-{number}",
        "image": None if data is None else {"bytes": data, "path": None},
        "conversations": [{"from": role, "value": value} for role, value in spoken],
        "data_source": "made",
    }


def text_row(number: int) -> Row:
    """A row of the Chinese text set."""
    return {"image": {"bytes": picture(number, form="PNG"), "path": None}, "text": f"文字{number}"}


def write_set(folder: Path, configs: Mapping[str, Sequence[Row]], *, shards: int = 1) -> Path:
    """A data-set folder; ``default`` as the only config gets no name in the README."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from datasets import Features, Value
    from datasets import Image as ImageFeature

    entries = []
    for number, (config, rows) in enumerate(configs.items()):
        names = list(rows[0])
        features: dict[str, Any] = {name: Value("string") for name in names}
        features["image"] = ImageFeature()
        if "conversations" in names:
            features["conversations"] = [{"from": Value("string"), "value": Value("string")}]
        if "answers" in names:
            features["answers"] = [Value("string")]
        place = folder / f"config-{number}"
        place.mkdir(parents=True)
        for shard in range(shards):
            table = pa.Table.from_pylist(list(rows[shard::shards]), Features(features).arrow_schema)
            pq.write_table(table, place / f"train-{shard:05d}-of-{shards:05d}.parquet", row_group_size=8)
        entries.append({"config_name": config, "data_files": [{"split": "train", "path": f"{place.name}/train-*"}]})
    lines = "\n".join(f"- {json.dumps(entry)}" for entry in entries)
    (folder / "README.md").write_text(f"---\nconfigs:\n{lines}\n---\n", encoding="utf-8")
    return folder


LLAVA_CONFIGS = (
    "aokvqa(cauldron,llava_format)", "iiit5k", "orand_car_a", "image_textualization(filtered)", "sharegpt4o",
)  # fmt: skip


def write_recipe_root(root: Path, *, rows: int = 6) -> Path:
    """Local copies of all published sources, ``rows`` rows a config."""
    configs = {
        config: [llava_row(100 * place + number) for number in range(rows)]
        for place, config in enumerate(LLAVA_CONFIGS)
    }
    write_set(root / "lmms-lab" / "LLaVA-OneVision-Data", configs)
    write_set(root / "priyank-m" / "chinese_text_recognition", {"default": [text_row(n) for n in range(rows)]})
    return root
