"""What the seeded pieces came to when the baselines were recorded: lengths, grouping, losses and scores.

A difference here is not a fault in itself: it says that samples, groups or scores of the same records changed, and asks
whether that was meant.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from odb_example.data.collate import Collator
from odb_example.data.fill import expected_fill
from odb_example.data.lengths import by_source, measure_evenly
from odb_example.data.packing import pack, padded_tokens
from odb_example.data.samples import FinishedSamples, SampleMaker
from odb_example.data.store import Store
from odb_example.evaluate.audit import audit_run
from odb_example.evaluate.folders import AUDIT
from odb_example.evaluate.likelihood import evaluate_benchmark
from odb_example.evaluate.validation_loss import evaluate_validation_loss
from odb_example.files import read_json
from odb_example.models.loading import load_processor
from odb_example.settings import PRESETS, Settings
from odb_example.testing.baselines import Measured, Number, absolute, exact, relative
from odb_example.testing.snapshots import Check
from odb_example.train.loaders import apply_odb, build_loader

pytestmark = pytest.mark.integration

RECORDS, BUDGET, BUFFER, SEED = 300, 1024, 64, 42
LENGTHS = "the chat template, the tokenizer, visual-token arithmetic, or the recipe of the miniature"


@pytest.fixture(scope="module")
def settings(tiny_checkpoint: Path, miniature_store: Path) -> Settings:
    return Settings.model_validate(
        PRESETS["miniature"]
        | {
            "model": str(tiny_checkpoint), "checkpoint": str(tiny_checkpoint), "data": str(miniature_store),
            "dataset": str(miniature_store / "benchmark"), "device": "cpu", "num_workers": 0, "val_size": 60,
            "max_samples": 60,
        }
    )  # fmt: skip


@pytest.fixture(scope="module")
def samples(settings: Settings) -> FinishedSamples:
    """Every record of the miniature mix as a finished sample, made on demand."""
    store = Store.open(settings.data)
    processor = load_processor(settings.model, image_max_pixels=settings.image_max_pixels)
    maker = SampleMaker(processor, max_length=settings.max_length, backend=settings.processor_backend)
    return FinishedSamples(store, range(len(store)), maker)


@pytest.fixture(scope="module")
def lengths(samples: FinishedSamples) -> list[int]:
    """Tokens of each sample, in an order of their own."""
    known = [samples.length(position) for position in range(len(samples))]
    random.Random(SEED).shuffle(known)
    return known


def test_lengths_of_the_miniature_mix_by_source(baseline: Check, samples: FinishedSamples, settings: Settings) -> None:
    numbers: dict[str, Number] = {}
    for figures in by_source(measure_evenly(samples, RECORDS)):
        numbers |= {
            f"{figures.source}.records": exact(figures.records, "the recipe's shares"),
            f"{figures.source}.tokens": exact([figures.tokens[name] for name in figures.tokens], LENGTHS),
            f"{figures.source}.labels": exact([figures.labels[name] for name in figures.labels], LENGTHS),
            f"{figures.source}.visual_share": absolute(figures.visual_share, 1e-6, LENGTHS),
        }
    baseline(Measured(numbers, {"records": RECORDS, "image_max_pixels": settings.image_max_pixels}))


def test_groups_expected_of_odb_and_of_perfect_packing(baseline: Check, lengths: list[int]) -> None:
    grouping = "the grouping rule, or the samples' lengths"
    numbers: dict[str, Number] = {}
    for budget in (512, 1024, 2048):
        for warm_up in (True, False):
            fill = expected_fill(lengths, token_budget=budget, buffer_size=BUFFER, warm_up=warm_up)
            name = f"odb.{budget}.{'warm_up' if warm_up else 'no_warm_up'}"
            numbers |= {
                f"{name}.batches": exact(fill.batches, grouping),
                f"{name}.fill": absolute(fill.fill, 1e-9, grouping),
                f"{name}.padding": absolute(fill.padding, 1e-9, grouping),
            }
        groups = pack(lengths, budget, order="shortest_first")
        padded = sum(padded_tokens(lengths, group) for group in groups)
        numbers |= {
            f"packed.{budget}.batches": exact(len(groups), grouping),
            f"packed.{budget}.padding": absolute(1 - sum(lengths) / padded, 1e-9, grouping),
        }
    baseline(Measured(numbers, {"records": RECORDS, "buffer_size": BUFFER, "seed": SEED}))


def test_groups_that_odb_makes_of_the_miniature_mix(
    baseline: Check, samples: FinishedSamples, settings: Settings
) -> None:
    loader = build_loader(
        "odb", samples, Collator(pad_token_id=0), rank=0, world_size=1, seed=SEED, token_budget=BUDGET,
        buffer_size=BUFFER, max_patches=0, fixed_batch_size=1, num_workers=1, prefetch_factor=64, join=True,
        group_order_flip="none", no_warmup=False, accumulation_steps=1, timeout_s=120,
    )  # fmt: skip
    apply_odb(loader)  # type: ignore[arg-type]
    batches = list(loader)
    loader.close()
    rows = [len(batch["sample_index"]) for batch in batches]
    padded = sum(batch["attention_mask"].numel() for batch in batches)
    attended = sum(int(batch["attention_mask"].sum()) for batch in batches)
    grouping = "ODB's grouping, its order for one seed, or the samples' lengths"
    numbers = {
        "samples": exact(sum(rows), "samples lost or repeated"),
        "steps": exact(len(batches), grouping),
        "rows": exact(rows, grouping),
        "input_tokens": exact(attended, LENGTHS),
        "padded_tokens": exact(padded, grouping),
        "first_samples": exact(batches[0]["sample_index"].tolist(), "the order of one seed"),
    }
    baseline(Measured(numbers, {"token_budget": BUDGET, "buffer_size": BUFFER, "seed": SEED}))


def test_validation_loss_of_the_untrained_tiny_model(baseline: Check, settings: Settings, tmp_path: Path) -> None:
    result = evaluate_validation_loss(settings.model_copy(update={"eval_save_dir": str(tmp_path)}))
    weights = "the seeded weights, the samples, or the loss"
    counts = {name: value for name, value in result["label_tokens_per_sample"].items() if name != "mean"}
    numbers = {
        "eval_samples": exact(result["eval_samples"], "the split"),
        "label_tokens": exact(result["label_tokens"], "the label mask"),
        "label_tokens_per_sample": exact(list(counts.values()), "the label mask"),
        "eval_loss": relative(result["eval_loss"], 1e-4, weights),
        "token_weighted_eval_loss": relative(result["token_weighted_eval_loss"], 1e-4, weights),
    }
    baseline(Measured(numbers, {"val_size": 60, "split_seed": settings.split_seed}))


def test_benchmark_scores_and_audit_of_the_untrained_tiny_model(
    baseline: Check, settings: Settings, tmp_path: Path
) -> None:
    result = evaluate_benchmark(settings.model_copy(update={"benchmark_output_dir": str(tmp_path)}))
    audit = read_json(tmp_path / AUDIT)
    assert [str(finding) for finding in audit_run(tmp_path).findings] == []
    numbers = {
        "total_rows_seen": exact(result["total_rows_seen"], "the benchmark's files"),
        "excluded_by_reason": exact(_words(result["excluded_by_reason"]), "the answer filter"),
        "option_status_counts": exact(_words(result["option_status_counts"]), "parsing of the options"),
        "total_images": exact(result["total_images"], "the benchmark's files"),
        "letter_tokens": exact(
            [info["first_token_id"] for info in audit["candidate_token_info"].values()], "the tokenizer"
        ),
        "prompt_tokens": exact([e["prompt_tokens"] for e in audit["score_meta_examples"]], "the prompt or the cap"),
        "overall_total": exact(result["overall_total"], "the answer filter"),
        "overall_accuracy": absolute(result["overall_accuracy"], 3.5, "weights, prompt or letters (2 of 60 rows)"),
        "mean_log_probability": absolute(
            [bias["mean_log_probability"] for bias in audit["letter_bias"].values()], 1e-3, "weights, prompt or letters"
        ),
    }
    baseline(Measured(numbers, {"protocol": result["protocol"], "max_samples": settings.max_samples}))


def _words(counts: dict[str, Any]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
