"""What a finished sample costs: against the bare calls it cannot do without, and against knowing its length only.

Prints one table and, with --output, JSON. Times are CPU seconds of this process, the smallest of some repetitions;
parallel throughput is wall time.

    OMP_NUM_THREADS=1 python benchmarks/samples.py --repetitions 5
"""

from __future__ import annotations

import argparse
import ctypes
import io
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader

from odb_example.data.chat import messages_of
from odb_example.data.images import open_image
from odb_example.data.miniature import build_miniature
from odb_example.data.records import Record, Turn
from odb_example.data.samples import FinishedSamples, SampleMaker
from odb_example.data.store import Store
from odb_example.files import write_json
from odb_example.models.loading import load_processor
from odb_example.models.miniature import build_tiny_checkpoint

PUBLIC_CAP, MINIATURE_CAP = 589_824, 65_536
_WORDS = "a photograph of a street with two people under a red umbrella beside a parked blue car in the rain ".split()


class Records(list[Record]):
    """A store in memory."""

    fingerprint = "benchmark"

    def __init__(self, records: Sequence[Record], images: dict[str, bytes]) -> None:
        super().__init__(records)
        self.image_bytes = images.__getitem__


@dataclass(frozen=True)
class Row:
    """CPU milliseconds a sample, and the two ratios that matter."""

    data: str
    samples: int
    item_ms: float
    bare_ms: float
    length_ms: float
    item_over_bare: float
    item_over_length: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--samples", type=int, default=40)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_memory()
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = build_tiny_checkpoint(Path(folder, "model"))
        build_miniature(Path(folder, "mix"), records=400, seed=0)
        miniature = Store.open(Path(folder, "mix"))
        text_only = [number for number, record in enumerate(miniature) if not record.images]
        cases = {
            "one megapixel, public cap": (large_records(options.samples, "JPEG"), None, PUBLIC_CAP, 65_536),
            "one megapixel PNG, public cap": (large_records(options.samples, "PNG"), None, PUBLIC_CAP, 65_536),
            "miniature": (miniature, range(min(len(miniature), 10 * options.samples)), MINIATURE_CAP, 1024),
            "miniature, text only": (miniature, text_only, MINIATURE_CAP, 1024),
        }
        rows = []
        for name, (store, indices, cap, smallest) in cases.items():
            processor = load_processor(str(checkpoint), image_max_pixels=cap)
            processor.image_processor.size = {**dict(processor.image_processor.size), "shortest_edge": smallest}
            maker = SampleMaker(processor, max_length=16_384, backend="qwen_vl")
            samples = FinishedSamples(store, range(len(store)) if indices is None else indices, maker)
            rows.append(measured(name, samples, processor, options.repetitions))
            print(rows[-1], flush=True)
        samples = FinishedSamples(miniature, range(len(miniature)), maker)
        scaling = {workers: loaded_per_second(samples, workers, options.repetitions) for workers in (1, 2)}
    table(rows, scaling)
    if options.output:
        write_json(options.output, {"rows": [asdict(row) for row in rows], "samples_per_second": scaling})


def keep_memory() -> None:
    """Have glibc keep what is freed: page faults of large blocks fall on one road or the other by chance."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(-3, 32 << 20)  # M_MMAP_THRESHOLD, at its largest
        mallopt(-1, (1 << 31) - 1)  # M_TRIM_THRESHOLD


def large_records(count: int, kind: str) -> Records:
    """Photographs of one megapixel (smooth, so that they decode like photographs) with captions of 60 to 200 words."""
    rng = np.random.default_rng(0)
    records, images = [], {}
    for number in range(count):
        coarse = Image.fromarray(rng.integers(0, 256, (30, 40, 3), dtype=np.uint8))
        stream = io.BytesIO()
        coarse.resize((1152, 868), Image.Resampling.BICUBIC).save(stream, kind)
        images[str(number)] = stream.getvalue()
        words = " ".join(rng.choice(_WORDS, int(rng.integers(60, 200))))
        turns = (Turn("human", "<image>\nDescribe the image in detail."), Turn("gpt", words))
        records.append(Record(f"large-{number}", "benchmark", turns, (str(number),)))
    return Records(records, images)


def measured(name: str, samples: FinishedSamples, processor: Any, repetitions: int) -> Row:
    """The bare road makes the same ids and pixels and no labels: the template's text is given to it."""
    records = [samples.record(position) for position in range(len(samples))]  # reading the store is its own matter
    read = samples.store.image_bytes
    texts, files = [], []
    for record in records:
        texts.append(samples.maker.backend._template.render(messages_of(record)))
        files.append(record.images)

    def bare() -> None:
        for text, data in zip(texts, files, strict=True):
            images = [open_image(read(path)) for path in data]
            if images:
                features = processor.image_processor(images=images, return_tensors="pt")
                counts = features["image_grid_thw"].prod(dim=1) // processor.image_processor.merge_size**2
                for count in counts.tolist():
                    text = text.replace(processor.image_token, "\0" * count, 1)
                text = text.replace("\0", processor.image_token)
            processor.tokenizer(text, return_tensors="pt")

    def items() -> None:
        for record in records:
            samples.maker.finish(record, read)

    def lengths() -> None:
        for record in records:
            samples.maker.length(record, read)

    # Taken in turn, so that a slow spell of the machine does not fall on one of them alone.
    best = [float("inf")] * 3
    for _ in range(repetitions):
        for place, work in enumerate((items, bare, lengths)):
            best[place] = min(best[place], cpu_seconds(work))
    item, bare_, length = (1000 * seconds / len(samples) for seconds in best)
    return Row(name, len(samples), item, bare_, length, item / bare_, item / length)


def cpu_seconds(work: Callable[[], None]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def loaded_per_second(samples: FinishedSamples, workers: int, repetitions: int) -> float:
    """Samples a second through a plain loader of ``workers`` processes, start-up left out."""
    best = 0.0
    for _ in range(repetitions):
        loader: DataLoader[Any] = DataLoader(samples, batch_size=8, num_workers=workers, collate_fn=len)
        batches = iter(loader)
        done = next(batches)
        start = time.perf_counter()
        count = sum(batches)
        best = max(best, count / (time.perf_counter() - start))
        del done
    return best


def table(rows: Sequence[Row], scaling: dict[int, float]) -> None:
    print(f"{'data':32}{'samples':>8}{'item ms':>9}{'bare ms':>9}{'length ms':>11}{'item/bare':>11}{'item/length':>13}")
    for row in rows:
        print(
            f"{row.data:32}{row.samples:8}{row.item_ms:9.2f}{row.bare_ms:9.2f}{row.length_ms:11.3f}"
            f"{row.item_over_bare:11.2f}{row.item_over_length:13.1f}"
        )
    for workers, rate in scaling.items():
        print(f"miniature, {workers} worker{'s' * (workers > 1)}: {rate:.0f} samples/s")


if __name__ == "__main__":
    main()
