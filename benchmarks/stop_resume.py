"""Kills training at random optimizer steps and resumes it: is it still the run that nobody stopped?

    OMP_NUM_THREADS=1 python benchmarks/stop_resume.py --stops 5 --seeds 3

On one rank, then on two, a run over the miniature mix writes a checkpoint a step; when a step drawn by seed stands, the
whole job is killed (SIGKILL, nothing is cleaned up) and started again with ``--resume newest``. In the end: every
sample once an epoch, each step's learning rate on the cosine over samples, and the final validation loss beside those
of uninterrupted runs with other seeds. Prints one JSON line per number of ranks; exit status 1 where a check fails.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from odb_example.files import read_json
from odb_example.train.records import read_steps
from odb_example.train.resume import STATE_FILE
from odb_example.train.run_folder import checkpoints_of

RECORDS, HELD_OUT, EPOCHS, LR, WARMUP = 300, 40, 3, 2e-3, 0.03
SAMPLES = RECORDS - HELD_OUT
COMMON = [
    "--preset", "miniature", "--val-size", str(HELD_OUT), "--num-train-epochs", str(EPOCHS), "--lr", str(LR),
    "--warmup-ratio", str(WARMUP), "--save-final-model", "--report-to", "none",
]  # fmt: skip


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "odb_example.run", *arguments]


def run_well(where: Path, *arguments: str) -> None:
    done = subprocess.run(command(*arguments), cwd=where, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{arguments} ended with {done.returncode}:\n{done.stderr[-2000:]}")


def stopped_run(where: Path, folder: Path, ranks: int, stops: list[int]) -> list[int]:
    """Train into ``folder``, killed once at or after each of ``stops``; returns the steps that stood at each kill."""
    arguments = ["odb-enable", *COMMON, "--num-processes", str(ranks), "--output-dir", str(folder)]
    saving = ["--save-strategy", "steps", "--save-steps", "1", "--save-total-limit", "2"]
    stood: list[int] = []
    for stop in stops:
        resuming = ["--resume", "newest"] if stood else []
        process = subprocess.Popen(
            command(*arguments, *saving, *resuming), cwd=where, start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        while (newest := newest_step(folder)) < stop and process.poll() is None:
            time.sleep(0.01)
        if process.poll() is not None:
            raise SystemExit(f"the run ended by itself, with {process.returncode}, before step {stop}")
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        stood.append(newest)
    run_well(where, *arguments, *saving, "--resume", "newest")
    return stood


def newest_step(folder: Path) -> int:
    found = checkpoints_of(folder)
    return int(found[-1].name.removeprefix("checkpoint-")) if found else 0


def off_the_cosine(folder: Path) -> float:
    """Largest distance of a step's learning rate from warm-up and cosine over emitted samples, in parts of the peak."""
    total = SAMPLES * EPOCHS
    warmup = math.ceil(total * WARMUP)

    def expected(emitted: int) -> float:
        if emitted < warmup:
            return emitted / warmup
        return 0.5 * (1 + math.cos(math.pi * (emitted - warmup) / (total - warmup)))

    steps = read_steps(folder, up_to=10**9)
    return max(abs(step.lr / LR - expected(step.emitted_samples - step.samples)) for step in steps)


def validation_loss(where: Path, folder: Path) -> float:
    run_well(where, "eval-valloss", "--preset", "miniature", "--checkpoint", str(folder))
    return float(read_json(folder / "eval_out_hf_valloss" / "eval_results.json")["token_weighted_eval_loss"])


def judge(where: Path, ranks: int, stops: int, seeds: int, draw: random.Random) -> dict[str, Any]:
    """One stopped run and ``seeds`` whole ones on ``ranks`` ranks."""
    losses = []
    for seed in range(seeds):
        whole = where / f"whole-{ranks}-{seed}"
        more = ["--num-processes", str(ranks), "--seed", str(42 + seed), "--output-dir", str(whole)]
        run_well(where, "odb-enable", *COMMON, *more)
        losses.append(validation_loss(where, whole))
    steps = len(read_steps(where / f"whole-{ranks}-0", up_to=10**9))
    folder = where / f"stopped-{ranks}"
    stood = stopped_run(where, folder, ranks, sorted(draw.sample(range(1, steps - stops), stops)))
    records = read_steps(folder, up_to=10**9)
    state = read_json(checkpoints_of(folder)[-1] / STATE_FILE)["loader"]
    loss = validation_loss(where, folder)
    return {
        "ranks": ranks,
        "steps_of_a_whole_run": steps,
        "killed_after_steps": stood,
        "each_sample_once_an_epoch": sum(step.samples for step in records) == SAMPLES * EPOCHS
        and state == {"epoch": EPOCHS, "done": []},
        "largest_lr_error": off_the_cosine(folder),
        "largest_lr_error_of_a_whole_run": off_the_cosine(where / f"whole-{ranks}-0"),
        "validation_loss": loss,
        "validation_losses_of_whole_runs": losses,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", 1)[0])
    parser.add_argument("--stops", type=int, default=5, help="kills a run (default 5)")
    parser.add_argument("--seeds", type=int, default=3, help="uninterrupted runs to compare with (default 3)")
    parser.add_argument("--draw", type=int, default=0, help="seed of the steps to stop at (default 0)")
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, sys.path))  # the runs start in another folder
    draw, sound = random.Random(options.draw), True
    with tempfile.TemporaryDirectory(prefix="stop-resume-") as folder:
        where = Path(folder)
        run_well(where, "data", "--preset", "miniature", "--records", str(RECORDS))
        for ranks in (1, 2):
            verdict = judge(where, ranks, options.stops, options.seeds, draw)
            print(json.dumps(verdict), flush=True)
            spread = max(verdict["validation_losses_of_whole_runs"]) - min(verdict["validation_losses_of_whole_runs"])
            near = [abs(verdict["validation_loss"] - loss) for loss in verdict["validation_losses_of_whole_runs"]]
            sound &= verdict["each_sample_once_an_epoch"] and verdict["largest_lr_error"] < 1e-9 and min(near) <= spread
    return int(not sound)


if __name__ == "__main__":
    sys.exit(main())
