"""Opening and reading a store of the public mix's size, against reading the whole file first.

    python benchmarks/store.py --records 206526

Builds a text-only store with the public mix's answer lengths (in a temporary folder unless ``--folder`` names one),
then measures, each in a process of its own: open time, records a second at random, and the memory that 1 and 4 forked
workers hold for themselves (USS: pages nobody else shares) after reading at random; the same for a list of all
records read up front. Prints a table; ``--output`` writes the figures as JSON.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from odb_example.data.embedded.dice import Dice
from odb_example.data.records import Record, Turn
from odb_example.data.store import Store, parse_line
from odb_example.data.store_writer import StoreWriter
from odb_example.files import write_json

WORKERS = (1, 4)
_MB = 1 << 20


@dataclass(frozen=True, slots=True)
class Reading:
    """One way to read a store. Memory in MB: RSS of the opening process above the bare interpreter, USS a worker."""

    way: str
    open_ms: float
    records_per_s: float
    resident_mb: float
    worker_mb: dict[int, float]


def build(path: Path, records: int) -> float:
    """Write ``records`` text-only records; returns seconds."""
    started = time.perf_counter()
    words = ("the", "picture", "shows", "a", "light", "dark", "area", "with", "lines", "and", "small", "marks")
    with StoreWriter(path, sources=["text"], plan={"recipe": "benchmark", "records": records}) as writer:
        with writer.source("text") as part:
            for number in range(records):
                dice = Dice("benchmark", number)
                length = 2 if dice.chance(0.24) else dice.between(60, 500)
                answer = " ".join(dice.choose(words) for _ in range(12)) * (length // 12) or "A"
                turns = (Turn("human", f"Question {number}: what can be seen?"), Turn("gpt", answer))
                part.add(Record(f"text-{number:07d}", "text", turns))
        writer.finish()
    return time.perf_counter() - started


def read_everything(path: Path) -> Sequence[Record]:
    """What a simple loader does: parse the whole file into a list."""
    with (path / "records.jsonl").open("rb") as stream:
        return [parse_line(line, "line") for line in stream]


def measure(way: str, opened: Callable[[], Sequence[Record]], reads: int) -> Reading:
    """Open three times, read at random, then fork workers that read at random too."""
    bare = psutil.Process().memory_info().rss
    times = []
    records: Sequence[Record] = ()
    for _ in range(3):
        del records
        started = time.perf_counter()
        records = opened()
        times.append(time.perf_counter() - started)
    order = random.Random(0)
    places = [order.randrange(len(records)) for _ in range(reads)]
    started = time.perf_counter()
    for place in places:
        records[place]
    spent = time.perf_counter() - started
    return Reading(
        way=way,
        open_ms=1000 * statistics.median(times),
        records_per_s=reads / spent,
        resident_mb=(psutil.Process().memory_info().rss - bare) / _MB,
        worker_mb={count: own_memory(records, count, reads) for count in WORKERS},
    )


def own_memory(records: Sequence[Record], workers: int, reads: int) -> float:
    """Mean USS in MB that forked workers gain by reading at random."""
    context = multiprocessing.get_context("fork")
    with context.Pool(workers, initializer=_take, initargs=(records,)) as pool:
        return statistics.mean(pool.map(_read, [(number, reads) for number in range(workers)], chunksize=1)) / _MB


_records: Sequence[Record] = ()


def _take(records: Sequence[Record]) -> None:
    global _records
    _records = records


def _read(task: tuple[int, int]) -> int:
    seed, reads = task
    before = psutil.Process().memory_full_info().uss
    order = random.Random(seed)
    for _ in range(reads):
        _records[order.randrange(len(_records))]
    return int(psutil.Process().memory_full_info().uss - before)


def in_own_process(way: str, path: Path, reads: int) -> Reading:
    """Measure in a fresh process, so that neither way profits or suffers from the other."""
    context = multiprocessing.get_context("spawn")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_measure_and_send, args=(sending, way, str(path), reads))
    process.start()
    reading: Reading = receiving.recv()
    process.join()
    return reading


def _measure_and_send(sending: Any, way: str, path: str, reads: int) -> None:
    ways: dict[str, Callable[[], Sequence[Record]]] = {
        "store": lambda: Store.open(path),
        "whole file": lambda: read_everything(Path(path)),
    }
    sending.send(measure(way, ways[way], reads))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=206_526)
    parser.add_argument("--reads", type=int, default=20_000, help="random reads of each process")
    parser.add_argument("--folder", type=Path, help="where the store is built, and kept")
    parser.add_argument("--output", type=Path, help="file for the figures")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="store-benchmark-"))
    path = folder / "store"
    try:
        built_s = build(path, options.records)
        size_mb = (path / "records.jsonl").stat().st_size / _MB
        started = time.perf_counter()
        (path / "records.index").unlink()
        Store.open(path)
        index_s = time.perf_counter() - started
        readings = [in_own_process(way, path, options.reads) for way in ("store", "whole file")]
    finally:
        if options.folder is None:
            shutil.rmtree(folder)
    title = (
        f"{options.records:,} records, {size_mb:.0f} MB; built in {built_s:.1f} s, index rebuilt in {index_s:.2f} s; "
        f"{os.cpu_count()} cores, Python {platform.python_version()}"
    )
    print_table(readings, title)
    if options.output:
        write_json(options.output, {
            "records": options.records, "megabytes": size_mb, "build_s": built_s, "index_s": index_s,
            "reads": options.reads, "readings": [asdict(reading) for reading in readings],
        })  # fmt: skip


def print_table(readings: Sequence[Reading], title: str) -> None:
    table = Table(title=title, title_justify="left")
    for column in ("", "open, ms", "random reads, records/s", "opener RSS, MB"):
        table.add_column(column, justify="right" if column else "left")
    for count in WORKERS:
        table.add_column(f"own MB a worker, {count}", justify="right")
    for reading in readings:
        memory = [f"{reading.worker_mb[count]:.1f}" for count in WORKERS]
        table.add_row(
            reading.way,
            f"{reading.open_ms:.1f}",
            f"{reading.records_per_s:,.0f}",
            f"{reading.resident_mb:.0f}",
            *memory,
        )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
