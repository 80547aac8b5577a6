"""Both evaluations against a plain loop and against what this machine can do at most, on the tiny model.

Measured in fresh processes, one after another, on the same records and rows:

plain   one item at a time, prepared in the same process, full logits, as the public example's evaluations do it
ours    the evaluations as the commands run them, one rank a core without workers, and one rank with a worker
bound   cores / (model alone on cached batches + preparation alone), both on one thread: no idle core, no other work

Run it on an idle machine: ``python -m odb_example.benchmarks.evaluation``. It prints a table, and whether all ways
agree on every figure.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RECORDS, VAL_SIZE, TOKEN_BUDGET, REPEATS = 1200, 0.5, 2048, 3
CAP = 65536
MODULE = "odb_example.benchmarks.evaluation"


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

    def build(self, records: int) -> None:
        """The tiny checkpoint, the miniature mix and its benchmark."""
        from odb_example.data.miniature import build_miniature
        from odb_example.models.miniature import build_tiny_checkpoint

        build_tiny_checkpoint(self.model, seed=0)
        build_miniature(self.data, records=records, seed=0, benchmark_path=self.data / "benchmark")


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
    """MMMU-MC over the embedded benchmark."""
    import torch

    from odb_example.data.collate import Collator, split_batch
    from odb_example.data.samples import SampleMaker
    from odb_example.evaluate.likelihood import letter_log_probabilities, read_benchmark
    from odb_example.evaluate.mmmu_rows import open_benchmark
    from odb_example.evaluate.prompts import PromptSamples, candidate_tokens

    model, processor = _loaded(work, 0)
    read = read_benchmark(open_benchmark(str(work.data / "benchmark"), split="validation", subjects="all"))
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
    """Best seconds of preparation alone and of the model alone, on this process's one thread."""
    from odb_example.evaluate.batching import share_groups

    places = range(len(kind.samples))
    prepare = _best(lambda: [kind.samples[place] for place in places])
    made = [kind.samples[place] for place in places]
    lengths = [len(sample["input_ids"]) for sample in made]
    (groups,) = share_groups(lengths, TOKEN_BUDGET, 1)
    batches = [kind.collate([made[place] for place in group]) for group in groups]
    return {
        "samples": len(made),
        "prepare": prepare,
        "model": _best(lambda: [kind.score(batch) for batch in batches]),
        "padding": 1 - sum(lengths) / sum(batch["input_ids"].numel() for batch in batches),
    }


def _best(work: Callable[[], Any]) -> float:
    seconds = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def measure(what: str, name: str, folder: Path, threads: int) -> dict[str, Any]:
    """One of the two measurements that need a process of their own."""
    command = [sys.executable, "-m", MODULE, what, name, str(folder), str(threads)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    value: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return value


def run_ours(name: str, work: Work, ranks: int, workers: int) -> dict[str, Any]:
    """The command itself; its results, with the seconds from the first length to the last row."""
    out = work.folder / f"{COMMANDS[name]}-{ranks}-{workers}"
    common = [
        "--num-processes", ranks, "--device", "cpu", "--checkpoint", work.model, "--num-workers", workers,
        "--token-budget", TOKEN_BUDGET, "--output-dir", out,
    ]  # fmt: skip
    own = (
        ["--data", work.data, "--val-size", VAL_SIZE, "--max-length", 1024, "--image-max-pixels", CAP]
        if name == "validation loss"
        else ["--dataset", work.data / "benchmark"]
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


def main(records: int = RECORDS) -> int:
    """Measure, print the table, and return 1 where a figure differs from the plain loop's."""
    cores = len(os.sched_getaffinity(0))
    different = False
    with tempfile.TemporaryDirectory(prefix="odb-example-bench-") as folder:
        work = Work(Path(folder))
        work.build(records)
        print(f"{cores} cores, {records} records, token budget {TOKEN_BUDGET}, tiny Qwen3-VL, float32")
        for name in KINDS:
            bound = measure("bound", name, work.folder, 1)
            plain = min(
                (measure("plain", name, work.folder, threads) for threads in sorted({1, cores})),
                key=lambda timed: timed["seconds"],
            )
            runs = {
                f"{ranks} ranks, {workers} workers": run_ours(name, work, ranks, workers)
                for ranks, workers in ((cores, 0), (1, 1))
            }
            differences = {label: largest_difference(name, plain["found"], run) for label, run in runs.items()}
            different |= max(differences.values()) > (1e-6 if name == "validation loss" else 1e-5)
            print("\n".join(table(name, cores, bound, plain, runs, differences)), flush=True)
    return int(different)


def table(
    name: str,
    cores: int,
    bound: dict[str, Any],
    plain: dict[str, Any],
    runs: dict[str, dict[str, Any]],
    differences: dict[str, float],
) -> Iterable[str]:
    """Lines of one evaluation's table."""
    samples = bound["samples"]
    at_most = samples * cores / (bound["prepare"] + bound["model"])
    once = samples / plain["seconds"]
    yield f"\n{name}, {samples} samples, padding {100 * bound['padding']:.1f}%"
    yield "| way | samples/s | against plain | of the bound | largest difference to plain |"
    yield "| --- | --- | --- | --- | --- |"
    yield f"| plain loop | {once:.1f} | 1.00 | {once / at_most:.2f} | |"
    for label, run in runs.items():
        rate = samples / run["effort"]["seconds"]
        yield f"| {label} | {rate:.1f} | {rate / once:.2f} | {rate / at_most:.2f} | {differences[label]:.1e} |"
    yield f"| bound | {at_most:.1f} | {at_most / once:.2f} | 1.00 | |"
    yield (
        f"one thread, per sample: preparation {1000 * bound['prepare'] / samples:.2f} ms, "
        f"model on cached batches {1000 * bound['model'] / samples:.2f} ms"
    )


def _measured(what: str, name: str, folder: str, threads: str) -> int:
    import torch

    torch.set_num_threads(int(threads))
    kind = KINDS[name](Work(Path(folder)))
    print(json.dumps(time_bound(kind) if what == "bound" else time_plain(kind)))
    return 0


if __name__ == "__main__":
    sys.exit(_measured(*sys.argv[1:]) if len(sys.argv) == 5 else main(*map(int, sys.argv[1:])))
