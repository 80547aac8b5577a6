"""Both evaluations against a plain loop and against what this machine can do at most, on the tiny model.

Measured in fresh processes, in turns, on the same records and rows; rates and shares are medians over the turns:

plain   one item at a time, prepared in the same process, full logits, as the public example's evaluations do it
ours    the evaluations as the commands run them, one rank a core without workers, and one rank with a worker
bound   model alone on cached batches plus preparation alone, on one thread of every core at once: no idle core, no
        other work. Beside it the same from one core alone, times the cores, as if they shared nothing.

Run it on an idle machine: ``python -m odb_example.run bench evaluation``. It prints a table, and whether all ways
agree on every figure.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

# With the command's 4000 records a pass lasts seconds, and has to: a fresh process's first batches cost a sixth of a
# second more than the same later.
BENCHMARKS, VAL_SIZE, TOKEN_BUDGET = 3, 0.5, 2048
TURNS, REPEATS = 3, 3
CAP = 65536
MODULE = "odb_example.benchmarks.evaluation"
PLAIN, BOUND = "plain loop", "bound"


@dataclass(frozen=True, slots=True)
class Work:
    """Where the benchmark's model, records and rows lie."""

    folder: Path

    @property
    def model(self) -> Path:
        return self.folder / "model"

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def benchmark(self) -> Path:
        return self.folder / "benchmark"

    def build(self, records: int) -> None:
        """The tiny checkpoint, the miniature mix, and a benchmark of the rows of ``BENCHMARKS`` seeds, ids alike."""
        from odb_example.data.embedded.benchmark import write_benchmark
        from odb_example.data.miniature import build_miniature
        from odb_example.models.miniature import build_tiny_checkpoint

        build_tiny_checkpoint(self.model, seed=0)
        build_miniature(self.data, records=records, seed=0, benchmark_path=self.benchmark)
        for seed in range(1, BENCHMARKS):
            more = self.folder / f"benchmark-{seed}"
            write_benchmark(more, seed)
            for file in more.glob("*/validation-*.parquet"):
                file.rename(self.benchmark / file.parent.name / f"validation-{seed}.parquet")


@dataclass(frozen=True, slots=True)
class Kind:
    """One evaluation, as something to time: its items, its batches, and both ways to score."""

    samples: Any
    collate: Any
    score: Callable[[dict[str, Any]], list[Any]]
    plain: Callable[[dict[str, Any]], Any]


def validation(work: Work) -> Kind:
    """Validation loss of the held-out records."""
    import torch

    from odb_example.data.collate import Collator, split_batch
    from odb_example.data.samples import FinishedSamples, SampleMaker
    from odb_example.data.splits import make_split
    from odb_example.data.store import Store
    from odb_example.evaluate.validation_loss import sample_losses

    model, processor = _loaded(work, CAP)
    store = Store.open(work.data)
    indices = make_split(len(store), mode="lf_val_size", val_size=VAL_SIZE, split_seed=42).evaluation
    samples = FinishedSamples(store, indices.tolist(), SampleMaker(processor, max_length=1024, backend="qwen_vl"))

    @torch.inference_mode()
    def plain(batch: dict[str, Any]) -> tuple[float, int]:
        inputs, _ = split_batch(batch)
        return float(model(**inputs).loss), int((inputs["labels"][:, 1:] != -100).sum())

    collate = Collator(processor.tokenizer.pad_token_id)
    return Kind(samples, collate, lambda batch: sample_losses(model, batch), plain)


def choice(work: Work) -> Kind:
    """MMMU-MC over the embedded benchmark's rows."""
    import torch

    from odb_example.data.collate import Collator, split_batch
    from odb_example.data.samples import SampleMaker
    from odb_example.evaluate.likelihood import letter_log_probabilities, read_benchmark
    from odb_example.evaluate.mmmu_rows import open_benchmark
    from odb_example.evaluate.prompts import PromptSamples, candidate_tokens

    model, processor = _loaded(work, 0)
    read = read_benchmark(open_benchmark(str(work.benchmark), split="validation", subjects="all"))
    maker = SampleMaker(processor, max_length=sys.maxsize, backend="auto")
    samples = PromptSamples(read.rows, read.places, read.questions, maker, processor, "v1")
    letters = [info["first_token_id"] for info in candidate_tokens(processor.tokenizer).values()]

    @torch.inference_mode()
    def plain(batch: dict[str, Any]) -> list[float]:
        inputs, _ = split_batch(batch)
        scores: list[float] = torch.log_softmax(model(**inputs).logits[0, -1].float(), -1)[letters].tolist()
        return scores

    collate = Collator(processor.tokenizer.pad_token_id, "left")
    return Kind(samples, collate, lambda batch: letter_log_probabilities(model, batch, letters), plain)


KINDS: dict[str, Callable[[Work], Kind]] = {"validation loss": validation, "MMMU-MC": choice}
COMMANDS = {"validation loss": "eval-valloss", "MMMU-MC": "benchmark"}
# How far a figure may be from the plain loop's: mean losses in nats, a letter's log-probability.
TOLERANCES = {"validation loss": 1e-6, "MMMU-MC": 1e-5}


def _loaded(work: Work, cap: int) -> tuple[Any, Any]:
    import torch

    from odb_example.models.loading import load_model, load_processor

    model = load_model(str(work.model), dtype=torch.float32).eval()
    return model, load_processor(str(work.model), image_max_pixels=cap)


def time_plain(kind: Kind) -> dict[str, Any]:
    """Seconds of the plain loop, and what it found."""
    started = time.perf_counter()
    found = [kind.plain(kind.collate([kind.samples[place]])) for place in range(len(kind.samples))]
    return {"seconds": time.perf_counter() - started, "found": found}


def time_bound(kind: Kind) -> dict[str, Any]:
    """Seconds of preparation alone and of the model alone, on this process's one thread: medians of some passes."""
    from odb_example.evaluate.batching import share_groups

    places = range(len(kind.samples))
    prepare = _median_seconds(lambda: [kind.samples[place] for place in places])
    made = [kind.samples[place] for place in places]
    lengths = [len(sample["input_ids"]) for sample in made]
    (groups,) = share_groups(lengths, TOKEN_BUDGET, 1)
    batches = [kind.collate([made[place] for place in group]) for group in groups]
    return {
        "samples": len(made),
        "prepare": prepare,
        "model": _median_seconds(lambda: [kind.score(batch) for batch in batches]),
        "padding": 1 - sum(lengths) / sum(batch["input_ids"].numel() for batch in batches),
    }


def _median_seconds(work: Callable[[], Any]) -> float:
    seconds = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return median(seconds)


def measure(what: str, name: str, folder: Path, threads: int, processes: int = 1) -> list[dict[str, Any]]:
    """What each of ``processes`` measured, all at once."""
    command = [sys.executable, "-m", MODULE, what, name, str(folder), str(threads)]
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(processes)
    ]
    finished = [(*process.communicate(), process.returncode) for process in running]
    for _, errors, status in finished:
        if status:
            raise RuntimeError(f"{' '.join(command)} ended with {status}: {errors}")
    return [json.loads(printed.splitlines()[-1]) for printed, _, _ in finished]


def run_ours(name: str, work: Work, ranks: int, workers: int) -> dict[str, Any]:
    """The command itself; its results, with the seconds from the first length to the last row."""
    out = Path(tempfile.mkdtemp(dir=work.folder)) / "results"
    common = [
        "--num-processes", ranks, "--device", "cpu", "--checkpoint", work.model, "--num-workers", workers,
        "--token-budget", TOKEN_BUDGET, "--output-dir", out,
    ]  # fmt: skip
    own = (
        ["--data", work.data, "--val-size", VAL_SIZE, "--max-length", 1024, "--image-max-pixels", CAP]
        if name == "validation loss"
        else ["--dataset", work.benchmark]
    )
    command = [sys.executable, "-m", "odb_example.run", COMMANDS[name], *map(str, [*common, *own])]
    subprocess.run(command, capture_output=True, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    file = "eval_results.json" if name == "validation loss" else "mmmu_mc_likelihood_results.json"
    result: dict[str, Any] = json.loads((out / file).read_text())
    lines = "samples.jsonl" if name == "validation loss" else "predictions.jsonl"
    result["rows"] = [json.loads(line) for line in (out / lines).read_text().splitlines()]
    return result


def largest_difference(name: str, plain: list[Any], ours: dict[str, Any]) -> float:
    """Between the plain loop's figures and ours: mean losses, or any letter's log-probability."""
    if name == "validation loss":
        from odb_example.evaluate.losses import summarize_losses

        rows = [{"nll_sum": loss * tokens, "label_tokens": tokens, "source": "", "length": 0} for loss, tokens in plain]
        figures = summarize_losses(rows)
        return max(abs(figures[field] - ours[field]) for field in ("eval_loss", "token_weighted_eval_loss"))
    scores = [list(row["candidate_scores"].values()) for row in ours["rows"]]
    return max(
        abs(a - b) for first, second in zip(plain, scores, strict=True) for a, b in zip(first, second, strict=True)
    )


@dataclass(frozen=True, slots=True)
class Turn:
    """Samples a second of every way in one turn; ``differences`` are those of our runs to the plain loop."""

    samples: int
    padding: float
    rates: dict[str, float]
    differences: dict[str, float]


def take_turn(name: str, work: Work, cores: int) -> Turn:
    """Measure every way of one evaluation, one after another; the bound just before what is held against it."""
    # A tiny model's plain loop may be faster on one thread than on all: it gets the better one.
    plain = min(
        (measure("plain", name, work.folder, threads)[0] for threads in sorted({1, cores})),
        key=lambda timed: timed["seconds"],
    )
    (alone,) = measure("bound", name, work.folder, 1)
    together = measure("bound", name, work.folder, 1, cores)
    rates = {PLAIN: alone["samples"] / plain["seconds"]}
    differences = {}
    for ranks, workers in ((cores, 0), (1, 1)):
        run = run_ours(name, work, ranks, workers)
        way = f"{ranks} ranks, {workers} workers"
        rates[way] = alone["samples"] / run["effort"]["seconds"]
        differences[way] = largest_difference(name, plain["found"], run)
    rates[BOUND] = sum(map(_rate, together))
    rates["one core's bound, times the cores"] = cores * _rate(alone)
    return Turn(alone["samples"], alone["padding"], rates, differences)


def _rate(bound: dict[str, Any]) -> float:
    return float(bound["samples"] / (bound["prepare"] + bound["model"]))


def main(records: int) -> int:
    """Measure, print the table, and return 1 where a figure differs from the plain loop's."""
    cores = len(os.sched_getaffinity(0))
    different = False
    with tempfile.TemporaryDirectory(prefix="odb-example-bench-") as folder:
        work = Work(Path(folder))
        work.build(records)
        print(f"{cores} cores, {records} records, token budget {TOKEN_BUDGET}, tiny Qwen3-VL, float32")
        for name in KINDS:
            turns = [take_turn(name, work, cores) for _ in range(TURNS)]
            different |= max(max(turn.differences.values()) for turn in turns) > TOLERANCES[name]
            print("\n".join(table(name, turns)), flush=True)
    return int(different)


def table(name: str, turns: Sequence[Turn]) -> Iterable[str]:
    """Lines of one evaluation's table."""
    first = turns[0]
    yield f"\n{name}, {first.samples} samples, padding {100 * first.padding:.1f}%, median of {len(turns)} turns"
    yield "| way | samples/s | against plain | of the bound | largest difference to plain |"
    yield "| --- | --- | --- | --- | --- |"
    for way in first.rates:
        rate = median(turn.rates[way] for turn in turns)
        against, of_bound = (median(turn.rates[way] / turn.rates[other] for turn in turns) for other in (PLAIN, BOUND))
        difference = f"{max(turn.differences[way] for turn in turns):.1e}" if way in first.differences else ""
        yield f"| {way} | {rate:.1f} | {against:.2f} | {of_bound:.2f} | {difference} |"


def _measured(what: str, name: str, folder: str, threads: str) -> int:
    import torch

    torch.set_num_threads(int(threads))
    kind = KINDS[name](Work(Path(folder)))
    print(json.dumps(time_bound(kind) if what == "bound" else time_plain(kind)))
    return 0


if __name__ == "__main__":
    sys.exit(_measured(*sys.argv[1:]) if len(sys.argv) == 5 else main(*map(int, sys.argv[1:])))
