"""Small pictures of benchmark rows, as data URIs, from the benchmark's folder when it is reachable.

Only a local folder in the Hub's layout is read; nothing is downloaded. A picture that cannot be opened is left out:
the page says so in its place.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Collection, Mapping
from pathlib import Path

from odb_example.data.images import ImageError, open_image
from odb_example.errors import UserError
from odb_example.evaluate.mmmu import row_id
from odb_example.evaluate.mmmu_rows import open_benchmark
from odb_example.report.runs import Run

SIDE = 160
MOST_IMAGES = 4
"""Pictures shown of one row; MMMU rows have up to seven."""
RowKey = tuple[str, str]


def thumbnails(run: Run, wanted: Collection[RowKey]) -> Mapping[RowKey, tuple[str, ...]]:
    """Data URIs of the images of the rows ``(subject, sample_id)``; empty where the folder is out of reach."""
    folder, split = run.value("benchmark.dataset", "settings.dataset"), run.value("benchmark.split") or "validation"
    if not wanted or not folder or not Path(str(folder)).is_dir():
        return {}
    try:
        benchmark = open_benchmark(
            str(folder), split=split, subjects=",".join(sorted({subject for subject, _ in wanted}))
        )
    except UserError:
        return {}
    found: dict[RowKey, tuple[str, ...]] = {}
    for part in benchmark.subjects:
        for index, row in enumerate(part.text()):
            key = (part.subject, row_id(row, subject=part.subject, index=index))
            if key in wanted:
                encoded = part.images(index)[:MOST_IMAGES]
                found[key] = tuple(uri for data in encoded if (uri := shrink(data)))
    return found


def shrink(data: bytes, side: int = SIDE) -> str | None:
    """A JPEG data URI of at most ``side`` pixels a side.

    None for what is no picture, or one too large to open safely.
    """
    try:
        image = open_image(data)
    except ImageError:
        return None
    image.thumbnail((side, side))
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=72)
    return "data:image/jpeg;base64," + base64.b64encode(stream.getvalue()).decode()
