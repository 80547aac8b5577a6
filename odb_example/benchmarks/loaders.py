"""The loaders side by side, in one run: the same samples, model, objective and optimizer, one process.

Each loader trains a fresh copy of the model in a plain loop over `odb_example.train.loaders`, until it has emitted a
number of samples and a number of seconds of training have passed. Evaluation stops the clock. Two sources of samples
are told apart: *live* items are made by the loader's workers as in a real run, items *in memory* were made before the
clock started, so that what is left is grouping, hand-over and compute.

Learning rates differ in what they suit: batches of one and of twenty take the same constant rate here, so validation
losses compare loaders at this rate, not at each loader's best.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from odb_example import distributed
from odb_example.data.collate import Collator, split_batch
from odb_example.data.packing import pack
from odb_example.files import write_json
from odb_example.models.loading import ensure_model, load_model, load_processor
from odb_example.settings import LoaderKind, Settings
from odb_example.train.counts import StepCounts, count_batch, merged
from odb_example.train.inputs import open_inputs
from odb_example.train.loaders import OdbLoader, PlannedLoader, TrainLoader, apply_odb, build_loader
from odb_example.train.objective import LabelPositions, batch_sum, normaliser

LEARNING_RATE = 1e-3
REBALANCED_WINDOW = 4
WARM_UP_SAMPLES = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A loader to measure."""

    name: str
    kind: LoaderKind
    in_memory: bool = False
    token_budget: int = 0
    rows: int = 1
    accumulation_steps: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What one loader came to. Times in seconds, rates per second of training up to the last of ``samples``.

    Attributes:
        padding: share of the padded tokens that are padding.
        fill: tokens of a mean batch over the token budget, for the loaders that have one.
        lengths_seconds: learning every length beforehand, which the rates leave out.
        waiting, computing: seconds for the next batch, and for forward, backward and update.
        first_batch: seconds until the first batch.
    """

    loader: str
    items: str
    samples: int
    samples_per_second: float
    tokens_per_second: float
    padding: float
    fill: float | None
    peak_padded_tokens: int
    steps: int
    waiting: float
    computing: float
    first_batch: float
    lengths_seconds: float
    loss_at_equal_samples: float
    loss_at_equal_seconds: float


class InMemory(torch.utils.data.Dataset):
    """Finished samples, made once."""

    odb_ready = True

    def __init__(self, samples: Any) -> None:
        self.items = [samples[position] for position in range(len(samples))]
        self.indices = samples.indices

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, position: int) -> dict[str, torch.Tensor]:
        return dict(self.items[position])

    def length(self, position: int) -> int:
        return len(self.items[position]["input_ids"])


def bench_loaders(settings: Settings, count: int, seconds: float, held_out: int) -> int:
    """Measure every loader, print the table, and write ``OUTPUT_ROOT/bench/loaders.json``.

    Args:
        count: samples each loader emits for its rates and its loss at equal samples.
        seconds: training time at which the losses at equal seconds are taken.
        held_out: validation samples.
    """
    bench, sources = set_up(settings, count, held_out)
    bench.run(Entry(name="warm-up", kind="standard"), InMemory(_First(sources[True], WARM_UP_SAMPLES)), seconds=0.0)
    rows: list[Row] = []
    for in_memory in (False, True):
        for entry in entries(settings.token_budget):
            rows.append(bench.run(replace(entry, in_memory=in_memory), sources[in_memory], seconds=seconds))
            print(_line(rows[-1]), file=sys.stderr, flush=True)
    for rival in ("group_by_length 8", "batch_rebalance 8"):
        peak = next(row.peak_padded_tokens for row in rows if row.loader == rival and row.items == "live")
        entry = Entry(name=f"odb at the peak of {rival}", kind="odb", token_budget=peak)
        rows.append(bench.run(entry, sources[False], seconds=seconds))
        print(_line(rows[-1]), file=sys.stderr, flush=True)
    print(table(rows))
    path = Path(settings.output_root, "bench", "loaders.json")
    write_json(path, {"settings": settings.model_dump(mode="json"), "rows": [asdict(row) for row in rows]})
    print(f"written: {path}", file=sys.stderr)
    return 0


def set_up(settings: Settings, count: int, held_out: int) -> tuple[Bench, dict[bool, Any]]:
    """A bench with ``held_out`` validation samples; ``count`` samples (0: all), live (False) and in memory (True)."""
    ranks = distributed.start(settings.device, settings.ddp_timeout)
    torch.set_num_threads(1 if ranks.device.type == "cpu" else torch.get_num_threads())
    name = ensure_model(settings)
    processor = load_processor(name, image_max_pixels=settings.image_max_pixels)
    inputs = open_inputs(settings.model_copy(update={"train_size": count}), processor, ranks)
    model: Any = load_model(name, dtype=torch.float32)
    bench = Bench(settings, model.to(ranks.device), inputs.collate, _held_out(inputs, held_out, settings))
    return bench, {False: inputs.training, True: InMemory(inputs.training)}


def entries(token_budget: int) -> tuple[Entry, ...]:
    """The loaders that are compared, on live samples."""
    return (
        Entry(name="odb", kind="odb", token_budget=token_budget),
        Entry(name="oracle", kind="oracle", token_budget=token_budget),
        Entry(name="standard 1", kind="standard", rows=1),
        Entry(name="standard 8", kind="standard", rows=8),
        Entry(name="group_by_length 8", kind="group_by_length", rows=8),
        Entry(name="batch_rebalance 8", kind="batch_rebalance", rows=8, accumulation_steps=REBALANCED_WINDOW),
    )


class _First:
    def __init__(self, samples: Any, count: int) -> None:
        self.samples, self.indices = samples, samples.indices[:count]

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, position: int) -> Any:
        return self.samples[position]


def _held_out(inputs: Any, count: int, settings: Settings) -> list[dict[str, Any]]:
    samples = [inputs.evaluation[position] for position in range(min(count, len(inputs.evaluation)))]
    groups = pack([len(sample["input_ids"]) for sample in samples], 4 * settings.token_budget, order="longest_first")
    return [inputs.collate([samples[place] for place in group]) for group in groups]


class Bench:
    """One model's starting point, and what each loader makes of it."""

    def __init__(
        self,
        settings: Settings,
        model: torch.nn.Module,
        collate: Collator,
        held_out: Sequence[dict[str, Any]],
    ) -> None:
        self.settings, self.start, self.collate, self.held_out = settings, model, collate, held_out
        self.device = next(model.parameters()).device

    def run(self, entry: Entry, samples: Any, *, seconds: float) -> Row:
        """Train a fresh model on ``samples`` until each came once and ``seconds`` have passed."""
        loader = self._loader(entry, samples)
        run = _Run(copy.deepcopy(self.start), self.device)
        first_batch, at_samples, at_seconds = 0.0, None, None
        end = total = StepCounts()
        ended = (0.0, 0.0)
        while at_samples is None or at_seconds is None:
            batches = iter(loader)
            trained: list[int] = []
            while window := run.take(batches, entry.accumulation_steps):
                first_batch = first_batch or run.waiting
                run.step(window)
                total = merged([total, *map(count_batch, window)])
                trained += [index for batch in window for index in batch["sample_index"].tolist()]
                if at_seconds is None and run.seconds >= seconds:
                    at_seconds = run.loss(self.held_out)
                    if at_samples is not None:
                        break
            batches.close()  # type: ignore[attr-defined]
            if at_samples is None:
                end, ended, steps = total, (run.waiting, run.computing), run.steps
                at_samples = run.loss(self.held_out)
            loader.mark_done(trained)
        waiting, computing = ended
        return Row(
            loader=entry.name,
            items="in memory" if entry.in_memory else "live",
            samples=end.samples,
            samples_per_second=end.samples / (waiting + computing),
            tokens_per_second=end.input_tokens / (waiting + computing),
            padding=1 - end.input_tokens / end.padded_tokens,
            fill=end.input_tokens / end.groups / entry.token_budget if entry.token_budget else None,
            peak_padded_tokens=end.largest_batch_tokens,
            steps=steps,
            waiting=waiting,
            computing=computing,
            first_batch=first_batch,
            lengths_seconds=loader.lengths_seconds if isinstance(loader, PlannedLoader) else 0.0,
            loss_at_equal_samples=at_samples,
            loss_at_equal_seconds=at_seconds,
        )

    def _loader(self, entry: Entry, samples: Any) -> TrainLoader:
        settings = self.settings
        ahead = settings.odb_prefetch_factor if entry.kind == "odb" else settings.standard_prefetch_factor
        loader = build_loader(
            entry.kind, samples, self.collate, rank=0, world_size=1, seed=settings.seed,
            token_budget=entry.token_budget, buffer_size=settings.buffer_size, max_patches=settings.max_patches,
            fixed_batch_size=entry.rows, num_workers=max(1, settings.num_workers),
            prefetch_factor=settings.prefetch_factor or ahead, join=settings.join,
            group_order_flip=settings.group_order_flip, no_warmup=settings.no_warmup,
            accumulation_steps=entry.accumulation_steps,
        )  # fmt: skip
        if isinstance(loader, OdbLoader):
            apply_odb(loader)
        return loader


class _Run:
    """A model in training, with its clock: seconds spent waiting for batches, and computing."""

    def __init__(self, model: torch.nn.Module, device: torch.device) -> None:
        self.model, self.device = model.train(), device
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
        self.positions = LabelPositions()
        model.get_output_embeddings().register_forward_pre_hook(self.positions)  # type: ignore[operator]
        self.waiting = self.computing = 0.0
        self.steps = 0

    @property
    def seconds(self) -> float:
        return self.waiting + self.computing

    def take(self, batches: Iterator[dict[str, Any]], count: int) -> list[dict[str, Any]]:
        """The next window of batches; empty at the epoch's end."""
        began = time.perf_counter()
        window = [batch for _, batch in zip(range(count), batches, strict=False)]
        self.waiting += time.perf_counter() - began
        return window

    def step(self, window: list[dict[str, Any]]) -> None:
        """One update by the token mean of ``window``."""
        began = time.perf_counter()
        tokens = sum(normaliser(batch["labels"], "token") for batch in window)
        for batch in window:
            (self._sum(batch) / tokens).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 4.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        self.computing += time.perf_counter() - began
        self.steps += 1

    @torch.no_grad()
    def loss(self, held_out: Sequence[dict[str, Any]]) -> float:
        """Token mean of the validation loss; off the clock."""
        self.model.eval()
        tokens = sum(normaliser(batch["labels"], "token") for batch in held_out)
        total = sum(float(self._sum(batch)) for batch in held_out)
        self.model.train()
        return total / tokens

    def _sum(self, batch: dict[str, Any]) -> torch.Tensor:
        inputs, _ = split_batch(batch)
        inputs = {name: value.to(self.device) for name, value in inputs.items()}
        labels = inputs.pop("labels")
        self.positions.expect(labels)
        return batch_sum(self.model(**inputs).logits, labels, "token")


def table(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table."""
    head = (
        "| loader | items | samples/s | tokens/s | padding | fill | peak tokens | steps | wait s | compute s |"
        " first batch s | lengths s | loss, equal samples | loss, equal seconds |"
    )
    return "\n".join([head, "|" + " --- |" * head.count("|", 1), *(_line(row) for row in rows)])


def _line(row: Row) -> str:
    fill = "-" if row.fill is None else f"{row.fill:.3f}"
    return (
        f"| {row.loader} | {row.items} | {row.samples_per_second:.1f} | {row.tokens_per_second:.0f} |"
        f" {row.padding:.1%} | {fill} | {row.peak_padded_tokens} | {row.steps} | {row.waiting:.1f} |"
        f" {row.computing:.1f} | {row.first_batch:.2f} | {row.lengths_seconds:.2f} |"
        f" {row.loss_at_equal_samples:.3f} | {row.loss_at_equal_seconds:.3f} |"
    )
