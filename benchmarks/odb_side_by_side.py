"""ODB against a rival loader, turn and turn about: the machine's own drift falls on both.

    OMP_NUM_THREADS=1 python benchmarks/odb_side_by_side.py [oracle|group_by_length|batch_rebalance] [--turns 5]

`bench loaders` measures each loader once, minutes apart; on a machine whose speed moves by a third in that time its
rows order loaders only where they differ by more. This repeats two of them over one epoch of the miniature preset and
prints the median of the ratios of neighbours, with and without the time to the first batch. Against ``oracle``, perfect
groups from known lengths, ODB has the same token budget; against the others, of eight rows, their own peak of padded
tokens. Variables (``ODB_MM_MIX_DATA``, ``ODB_MM_MIX_BUFFER_SIZE``, ...) change the preset.
"""

from __future__ import annotations

import argparse
import statistics

from odb_example.benchmarks.loaders import Entry, Row, entries, set_up
from odb_example.resolve import resolve
from odb_example.settings import Settings


def rate_once_started(row: Row) -> float:
    """Samples a second without the wait for the first batch."""
    return row.samples / (row.waiting + row.computing - row.first_batch)


def main(settings: Settings, kind: str, turns: int) -> None:
    """Print one line a turn and the medians, for live samples and for samples in memory."""
    bench, sources = set_up(settings, 0, held_out=1)
    rival = next(entry for entry in entries(settings.token_budget) if entry.kind == kind)
    for in_memory, samples in sources.items():
        items = "in memory" if in_memory else "live"
        budget = settings.token_budget
        whole, started = [], []
        for turn in range(turns):
            rows: dict[str, Row] = {}
            for name in ("odb", kind) if turn % 2 else (kind, "odb"):
                entry = rival if name == kind else Entry(name="odb", kind="odb", token_budget=budget)
                rows[name] = bench.run(entry, samples, seconds=0.0)
                if name == kind != "oracle":
                    budget = rows[kind].peak_padded_tokens
            whole.append(rows["odb"].samples_per_second / rows[kind].samples_per_second)
            started.append(rate_once_started(rows["odb"]) / rate_once_started(rows[kind]))
            figures = {name: (round(row.waiting, 1), round(row.computing, 1)) for name, row in rows.items()}
            print(f"{items}: {whole[-1]:.3f} ({started[-1]:.3f} once started), wait and compute {figures}", flush=True)
        medians = statistics.median(whole), statistics.median(started)
        print(f"{items}, median of {turns}: {medians[0]:.3f} ({medians[1]:.3f})", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rival", nargs="?", default="oracle", choices=("oracle", "group_by_length", "batch_rebalance"))
    parser.add_argument("--turns", type=int, default=5)
    given = parser.parse_args()
    main(resolve({"preset": "miniature"}).settings, given.rival, given.turns)
