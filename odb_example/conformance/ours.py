"""This project's own stack as a `Pipeline`, on the miniature: tiny Qwen3-VL, embedded data, one process.

Checkpoint and data are built once a process, in a folder that goes with it; nothing is read from the network.
"""

from __future__ import annotations

import contextlib
import io
import tempfile
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch

from odb_example.conformance.pipeline import (
    Batch,
    BenchmarkFiles,
    Choice,
    Pipeline,
    Sample,
    Scored,
    StepTotals,
    TrainedStep,
    TrainingRun,
    ValidationLoss,
)
from odb_example.data.collate import Collator, split_batch
from odb_example.data.records import Record
from odb_example.data.samples import FinishedSamples, SampleMaker
from odb_example.data.splits import make_split
from odb_example.data.store import Store
from odb_example.data.store_writer import StoredImage, StoreWriter
from odb_example.distributed import Ranks
from odb_example.evaluate.mmmu import LETTERS, build_prompt, choose
from odb_example.files import read_json, read_json_lines, write_json, write_json_lines
from odb_example.models.loading import load_model, load_processor
from odb_example.models.miniature import build_tiny_checkpoint
from odb_example.settings import Settings
from odb_example.train.loaders import OdbLoader, apply_odb, build_loader
from odb_example.train.objective import batch_sum
from odb_example.train.text_only import BlankImage

RECORDS, SEED = 400, 0
MAX_LENGTH, IMAGE_MAX_PIXELS, TOKEN_BUDGET = 512, 65_536, 1024
ALONE = Ranks(0, 1, 0, torch.device("cpu"))


@dataclass(frozen=True, slots=True)
class Stack:
    """What the parts are made of."""

    folder: Path
    checkpoint: str
    processor: Any
    store: Store
    samples: FinishedSamples
    collate: Collator
    model: Any


@lru_cache(maxsize=1)
def stack() -> Stack:
    """The miniature stack of this process; its folder is removed at the process's end."""
    from odb_example.data.miniature import build_miniature

    folder = Path(tempfile.mkdtemp(prefix="odb-conformance-"))
    weakref.finalize(stack, _remove, str(folder))
    with contextlib.redirect_stderr(io.StringIO()):  # progress bars
        checkpoint = str(build_tiny_checkpoint(folder / "model", seed=SEED))
        build_miniature(folder / "data", records=RECORDS, seed=SEED)
    processor = load_processor(checkpoint, image_max_pixels=IMAGE_MAX_PIXELS)
    store = Store.open(folder / "data")
    maker = SampleMaker(processor, max_length=MAX_LENGTH, backend="qwen_vl")
    return Stack(
        folder=folder,
        checkpoint=checkpoint,
        processor=processor,
        store=store,
        samples=FinishedSamples(store, range(len(store)), maker),
        collate=Collator(pad_token_id=processor.tokenizer.pad_token_id),
        model=load_model(checkpoint, dtype=torch.float32).eval(),
    )


def build() -> Pipeline:
    """Our stack. Needs about ten seconds the first time."""
    made = stack()
    config = made.model.config
    return Pipeline(
        name="odb-example on the miniature",
        records=made.store,
        image_bytes=made.store.image_bytes,
        write_store=write_store,
        open_store=Store.open,
        split=split,
        sample=made.samples.__getitem__,
        length=made.samples.length,
        finish=made.samples.maker.finish,
        collate=made.collate,
        loader=loader,
        loader_kinds=("standard", "group_by_length", "batch_rebalance", "oracle"),
        process_kinds=("odb",),
        budget_kinds=("odb", "oracle"),
        model=model,
        loss=loss,
        run=training_run,
        score=score,
        validation_loss=validation_loss,
        benchmark=benchmark,
        audit=audit,
        processor=made.processor,
        pad_id=made.collate.pad_token_id,
        visual_token_ids=(config.image_token_id, config.video_token_id),
        patches_per_visual_token=config.vision_config.spatial_merge_size**2,
        patch_size=config.vision_config.patch_size,
        max_length=MAX_LENGTH,
        image_max_pixels=IMAGE_MAX_PIXELS,
        token_budget=TOKEN_BUDGET,
    )


def write_store(folder: Path, records: Sequence[Record], images: Mapping[str, bytes]) -> None:
    """A store of ``records`` through our writer; an image keeps its name as its content address."""
    stored = {name: StoredImage(data, Path(name).stem, "png") for name, data in images.items()}
    with StoreWriter(folder, sources=("probe",), plan={"recipe": "conformance"}) as writer:
        with writer.source("probe") as part:
            for record in records:
                files = [stored[name] for name in record.images]
                paths = tuple(file.path for file in files)
                part.add(Record(record.id, record.source, record.conversations, paths, record.upstream), files)
        writer.finish()


def split(num_records: int, val_size: float, seed: int) -> tuple[Sequence[int], Sequence[int]]:
    made = make_split(num_records, mode="lf_val_size", val_size=val_size, split_seed=seed)
    return made.train.tolist(), made.evaluation.tolist()


class HeldSamples:
    """Our samples, each made once and kept: loaders are checked, not image decoding."""

    def __init__(self, samples: FinishedSamples) -> None:
        self.samples = samples
        self.indices = samples.indices
        self.made: dict[int, Sample] = {}

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, position: int) -> Sample:
        if position not in self.made:
            self.made[position] = self.samples[position]
        return self.made[position]

    def length(self, position: int) -> int:
        return len(self[position]["input_ids"])


@lru_cache(maxsize=1)
def held_samples() -> HeldSamples:
    return HeldSamples(stack().samples)


def loader(kind: str, *, rank: int, world_size: int, samples: Any = None) -> Iterable[Batch]:
    """Our loader of ``kind`` over all samples, or over others; ODB applied where it is ODB's."""
    made = build_loader(
        kind,  # type: ignore[arg-type]
        samples if samples is not None else held_samples(),  # type: ignore[arg-type]
        stack().collate,
        rank=rank,
        world_size=world_size,
        seed=SEED,
        token_budget=TOKEN_BUDGET,
        buffer_size=64,
        max_patches=0,
        fixed_batch_size=3,
        num_workers=1 if kind == "odb" else 0,
        prefetch_factor=128,
        join=True,
        group_order_flip="none",
        no_warmup=False,
        accumulation_steps=1,
        timeout_s=60,
    )
    if isinstance(made, OdbLoader):
        apply_odb(made)
    return made


def model() -> torch.nn.Module:
    found: torch.nn.Module = stack().model
    return found


def loss(model: torch.nn.Module, batch: Batch, totals: StepTotals) -> torch.Tensor:
    """This batch's sum over the step's label tokens, with the masked blank image that training puts behind text."""
    inputs, _ = split_batch(batch)
    blank = BlankImage.of(model.config)
    if "pixel_values" not in inputs and blank is not None:
        inputs = blank.behind(inputs)
    labels = inputs.pop("labels")
    return batch_sum(model(**inputs).logits, labels, "token") / totals.label_tokens


def score(items: Sequence[Choice]) -> list[Scored]:
    """Scores of our batched scorer, three prompts a batch or so."""
    from odb_example.evaluate.batching import Effort, score_samples
    from odb_example.evaluate.likelihood import Scorer

    made = stack()
    maker = made.samples.maker
    prompts = Prompts([maker.prompt(build_prompt(item.question, item.options), list(item.images)) for item in items])
    ids = tuple(made.processor.tokenizer.encode(letter, add_special_tokens=False)[0] for letter in LETTERS)
    scorer = Scorer(made.model, Collator(made.collate.pad_token_id, "left"), ids)
    rows = score_samples(prompts, scorer.collate, scorer, ALONE, Effort(token_budget=TOKEN_BUDGET)).values
    scored = []
    for number, item in enumerate(items):
        scores = dict(zip(LETTERS, rows[number]["scores"], strict=True))
        scored.append(Scored(scores=scores, prediction=choose(scores, LETTERS[: len(item.options)])[0]))
    return scored


@dataclass(frozen=True, slots=True)
class Prompts:
    """Finished prompts in memory."""

    made: Sequence[Any]

    def __len__(self) -> int:
        return len(self.made)

    def __getitem__(self, position: int) -> Any:
        return self.made[position]

    def length(self, position: int) -> int:
        return len(self.made[position]["input_ids"])


def validation_loss(indices: Sequence[int], token_budget: int) -> ValidationLoss:
    """Our evaluator's sums over these samples, in batches of ``token_budget``."""
    from odb_example.evaluate.batching import Effort, score_samples
    from odb_example.evaluate.losses import means
    from odb_example.evaluate.validation_loss import sample_losses

    made = stack()
    held = held_samples()
    scored = score_samples(
        Prompts([held[index] for index in indices]), made.collate, partial(sample_losses, made.model), ALONE,
        Effort(token_budget=token_budget),
    )  # fmt: skip
    figures = means([{"nll_sum": nll, "label_tokens": tokens} for nll, tokens in scored.values.values()])
    return ValidationLoss(
        sample_mean=figures["eval_loss"],
        token_mean=figures["token_weighted_eval_loss"],
        label_tokens=figures["label_tokens"],
    )


@lru_cache(maxsize=1)
def training_run() -> TrainingRun:
    """Two epochs of our trainer over 30 records with batches of 4; the last one is short.

    Steps are recorded without their samples; they are those of the loader with the same seed, and the recorded token
    counts prove it.
    """
    from odb_example.train.records import read_steps
    from odb_example.train.trainer import train

    made = stack()
    settings = Settings(
        model=made.checkpoint, data=str(made.store.path), output_dir=str(made.folder / "run"), loader="standard",
        split_mode="prefix", train_size=30, fixed_batch_size=4, num_train_epochs=2, num_workers=0, lr=1e-3,
        warmup_ratio=0.2, max_length=MAX_LENGTH, image_max_pixels=IMAGE_MAX_PIXELS, save_final_model=False,
        gradient_checkpointing=False, device="cpu", report_to="none", logging_steps=1000, overwrite=True, seed=SEED,
    )  # fmt: skip
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        result = train(settings)
    steps = read_steps(result.folder, up_to=10_000)
    order = [rows for epoch in range(2) for rows in _trained_rows(epoch)]
    runtime = result.summary["trainer_metrics"]["train_runtime"]
    return TrainingRun(
        given=range(30),
        epochs=2,
        warmup_steps=-(-len(steps) // 5),
        steps=[
            TrainedStep(
                samples=rows,
                label_tokens=step.label_tokens,
                input_tokens=step.input_tokens,
                padded_tokens=step.padded_tokens,
                loss=step.loss or 0.0,
                learning_rate=step.lr,
            )
            for step, rows in zip(steps, order, strict=True)
        ],
        emitted_samples=result.emitted_samples,
        seconds=runtime,
        samples_per_second=result.summary["effective_emitted_samples_per_second"],
    )


def _trained_rows(epoch: int) -> list[tuple[int, ...]]:
    made = stack()
    read = build_loader(
        "standard", FinishedSamples(made.store, range(30), made.samples.maker), made.collate, rank=0, world_size=1,
        seed=SEED, token_budget=TOKEN_BUDGET, buffer_size=64, max_patches=0, fixed_batch_size=4, num_workers=0,
        prefetch_factor=2, join=True, group_order_flip="none", no_warmup=False, accumulation_steps=1,
    )  # fmt: skip
    read.set_epoch(epoch)
    return [tuple(index for index in batch["sample_index"].tolist() if index >= 0) for batch in read]


@lru_cache(maxsize=1)
def benchmark() -> BenchmarkFiles:
    """The files of our benchmark over a part of the embedded one, scored by the untrained model."""
    from odb_example.data.embedded.benchmark import write_benchmark
    from odb_example.evaluate.likelihood import evaluate_benchmark

    made = stack()
    folder = made.folder / "scores"
    write_benchmark(made.folder / "benchmark", SEED)
    settings = Settings(
        checkpoint=made.checkpoint, dataset=str(made.folder / "benchmark"), benchmark_output_dir=str(folder),
        max_samples=60, token_budget=TOKEN_BUDGET, num_workers=0, device="cpu", overwrite=True,
    )  # fmt: skip
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        evaluate_benchmark(settings)
    return read_benchmark_files(folder)


def read_benchmark_files(folder: Path) -> BenchmarkFiles:
    """The four files of a benchmark folder."""
    from odb_example.evaluate.folders import AUDIT, EXCLUDED, PREDICTIONS, RESULTS

    return BenchmarkFiles(
        results=read_json(folder / RESULTS),
        predictions=list(read_json_lines(folder / PREDICTIONS)),
        excluded=list(read_json_lines(folder / EXCLUDED)),
        score_audit=read_json(folder / AUDIT),
    )


def audit(files: BenchmarkFiles) -> list[str]:
    """What our audit says about these files, written to a folder of their own."""
    from odb_example.evaluate.audit import audit_run
    from odb_example.evaluate.folders import AUDIT, EXCLUDED, PREDICTIONS, RESULTS

    with tempfile.TemporaryDirectory(prefix="odb-conformance-") as name:
        folder = Path(name)
        write_json(folder / RESULTS, files.results)
        write_json_lines(folder / PREDICTIONS, files.predictions)
        write_json_lines(folder / EXCLUDED, files.excluded)
        if files.score_audit:
            write_json(folder / AUDIT, files.score_audit)
        return [str(finding) for finding in audit_run(folder).findings]


def _remove(folder: str) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)
