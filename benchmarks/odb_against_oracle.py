"""ODB against perfect groups at an equal token budget, turn and turn about: the machine's own drift falls on both.

    OMP_NUM_THREADS=1 python benchmarks/odb_against_oracle.py

`bench loaders` measures each loader once, minutes apart; on a machine whose speed moves by a third in that time its
rows order loaders only where they differ by more. This repeats the two that matter most and prints the median of
the ratios of neighbours, with and without the time to the first batch. One epoch of the miniature preset; variables
(``ODB_MM_MIX_DATA``, ``ODB_MM_MIX_BUFFER_SIZE``, ...) change it.
"""

from __future__ import annotations

import statistics

from odb_example.benchmarks.loaders import Entry, Row, set_up
from odb_example.resolve import resolve
from odb_example.settings import Settings

TURNS = 5


def rate(row: Row, *, started: bool) -> float:
    """Samples a second; ``started``: without the wait for the first batch."""
    return row.samples / (row.waiting + row.computing - (row.first_batch if started else 0.0))


def main(settings: Settings) -> None:
    """Print one line a turn and the medians."""
    bench, sources = set_up(settings, 0, held_out=1)
    for in_memory, samples in sources.items():
        items = "in memory" if in_memory else "live"
        whole, started = [], []
        for turn in range(TURNS):
            kinds = ("odb", "oracle") if turn % 2 else ("oracle", "odb")
            rows = {
                kind: bench.run(Entry(name=kind, kind=kind, token_budget=settings.token_budget), samples, seconds=0.0)
                for kind in kinds
            }
            whole.append(rate(rows["odb"], started=False) / rate(rows["oracle"], started=False))
            started.append(rate(rows["odb"], started=True) / rate(rows["oracle"], started=True))
            figures = {kind: (round(row.waiting, 1), round(row.computing, 1)) for kind, row in rows.items()}
            print(f"{items}: {whole[-1]:.3f} ({started[-1]:.3f} once started), wait and compute {figures}", flush=True)
        print(
            f"{items}, median of {TURNS}: {statistics.median(whole):.3f} ({statistics.median(started):.3f})", flush=True
        )


if __name__ == "__main__":
    main(resolve({"preset": "miniature"}).settings)
