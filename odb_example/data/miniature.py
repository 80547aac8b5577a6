"""The embedded MM-Mix: a small store of real material from installed packages, made from a seed, and its benchmark.

Takes a seed and a number of records; leaves an ordinary store and an MMMU-shaped benchmark folder. Digits,
photographs and words of the records that the default split holds out, and those of the benchmark, occur nowhere in
the training records. That holds for the default split only: another ``split_seed`` mixes the pools (the metadata
names the split it holds for).
"""

from __future__ import annotations

import os
from pathlib import Path

from odb_example.data.build_report import BuildReport
from odb_example.data.embedded.benchmark import write_benchmark
from odb_example.data.embedded.dice import Dice
from odb_example.data.embedded.material import material
from odb_example.data.embedded.mix import SOURCES, Drawn, counts
from odb_example.data.pixels import stored
from odb_example.data.records import Record
from odb_example.data.splits import make_split
from odb_example.data.store_writer import SourceWriter, StoreWriter, standing
from odb_example.progress import Progress

VERSION = 1
# The split that validation material is kept apart for: the defaults of the settings.
VAL_SIZE, SPLIT_SEED = 0.05, 42


def build_miniature(
    path: Path, *, records: int, seed: int, benchmark_path: Path | None = None, overwrite: bool = False
) -> BuildReport:
    """Build the miniature store at ``path``, and its benchmark at ``benchmark_path``, if any, inside it or elsewhere.

    The same plan already there is nothing to do.

    Raises:
        UserError: something else is at ``path`` and ``overwrite`` is off, or the folder cannot be written.
    """
    path = Path(path)
    plan = {
        "recipe": "miniature",
        "version": VERSION,
        "seed": seed,
        "records": records,
        "material_split": {"mode": "lf_val_size", "val_size": VAL_SIZE, "split_seed": SPLIT_SEED},
        "benchmark": benchmark_path and os.path.relpath(benchmark_path, path),
    }
    writer = StoreWriter(path, sources=tuple(source.name for source in SOURCES), plan=plan)
    found = standing(path, writer.plan, overwrite=overwrite)
    if found and (benchmark_path is None or benchmark_path.is_dir()):
        return BuildReport.of(path, found, nothing_to_do=True)
    with writer:
        _write_sources(writer, records, seed)
        if benchmark_path is not None:
            place = benchmark_path.absolute()
            inside = place.is_relative_to(writer.path)
            write_benchmark(writer.building / place.relative_to(writer.path) if inside else place, seed)
        return BuildReport.of(path, writer.finish(image_identity="pixels"))


def _write_sources(writer: StoreWriter, records: int, seed: int) -> None:
    held_out = make_split(records, mode="lf_val_size", val_size=VAL_SIZE, split_seed=SPLIT_SEED).evaluation
    validation = set(held_out.tolist())
    first = 0
    for source in SOURCES:
        count = counts(records)[source.name]
        places = range(first, first + count)
        first += count
        if source.name not in writer.finished:
            with writer.source(source.name) as part, Progress(count, source.name, "records") as progress:
                for place in places:
                    pool = material("validation" if place in validation else "training")
                    add(part, source.name, place, source.draw(pool, Dice(seed, source.name, place)))
                    progress.update()


def add(part: SourceWriter, source: str, place: int, drawn: Drawn) -> None:
    """Store one drawn record; its provenance goes into ``upstream``."""
    images = tuple(stored(scene.pixels) for scene in drawn.scenes)
    record = Record(
        id=f"{source}-{place:06d}",
        source=source,
        conversations=drawn.turns,
        images=tuple(image.path for image in images),
        upstream={"material": [scene.source for scene in drawn.scenes]},
    )
    part.add(record, images)
