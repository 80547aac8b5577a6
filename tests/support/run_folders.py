"""Small run folders in the shape a real run leaves behind, made in milliseconds and with known answers.

Benchmark files come from the evaluator's own pure functions, so that the audit finds them sound; everything else is
written field by field, and `tests/unit/report/test_run_folders.py` holds the fields against the code that writes real
ones.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from odb_example.evaluate.folders import BENCHMARK_FOLDER, VALIDATION_FOLDER
from odb_example.evaluate.losses import summarize_losses
from odb_example.evaluate.mmmu import LETTERS, Exclusion, Question, protocol_name, read_row
from odb_example.evaluate.score_audit import DIGEST_FIELD, audit_digest, file_digest, letter_bias, row_register
from odb_example.evaluate.scores import count_scores, counted, excluded_row, prediction_row
from odb_example.files import write_json, write_json_lines

SOURCES = ("sharegpt4o", "image_textualization", "aokvqa", "chinese_text_recognition")
SUBJECTS = ("Art", "Biology", "Math", "Physics", "Sociology", "Manage")
FINGERPRINT = "0f" * 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run is to look like; the defaults make two loaders that may be compared."""

    loader: str = "odb"
    seed: int = 42
    train_samples: int = 1200
    speed: float = 1.7
    loss: float = 1.0
    skill: float = 0.45
    objective: str = "token"
    fingerprint: str = FINGERPRINT
    ranks: int = 2
    held_out: int = 160
    questions: int = 90
    dataset: str = "data/mm-mix-miniature/benchmark"
    question: str | None = None
    source: str | None = None
    seconds_of_step: float = 0.11


def write_run(folder: Path, plan: Plan, *, parts: Sequence[str] = ("training", "validation", "benchmark")) -> Path:
    """Write the named parts of a run; the folder is returned."""
    if "training" in parts:
        write_training(folder, plan)
    if "validation" in parts:
        write_validation(folder / VALIDATION_FOLDER, plan, folder)
    if "benchmark" in parts:
        write_benchmark(folder / BENCHMARK_FOLDER, plan, folder)
    return folder


def settings_of(folder: Path, plan: Plan) -> dict[str, Any]:
    odb = plan.loader == "odb"
    return {
        "preset": "miniature", "model": "outputs/miniature/model", "data": "data/mm-mix-miniature", "seed": plan.seed,
        "output_dir": str(folder), "loader": plan.loader, "odb_integration": "enable", "loss_scaling": plan.objective,
        "max_length": 1024, "image_max_pixels": 65536, "token_budget": 1024, "buffer_size": 256, "fixed_batch_size": 1,
        "num_workers": 2 if odb else 1, "lr": 8e-3, "lr_scheduler_type": "cosine", "warmup_ratio": 0.03,
        "max_grad_norm": 4.0, "num_train_epochs": 1.0, "dataset": plan.dataset, "split": "validation",
    }  # fmt: skip


def write_training(folder: Path, plan: Plan, *, finished: bool = True) -> None:
    """Settings, identity, steps and, where ``finished``, summary and log."""
    steps = step_rows(plan)
    settings = settings_of(folder, plan)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run_settings.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    split = split_of(plan)
    write_json(folder / "run_identity.json", {
        "model": settings["model"], "data": settings["data"], "data_fingerprint": plan.fingerprint,
        "split": str(split), "objective": plan.objective, "loader": plan.loader,
    })  # fmt: skip
    write_json_lines(folder / "steps.jsonl", steps)
    if not finished:
        return
    runtime = sum(row["seconds"] for row in steps) + 1.5
    tokens, padded = (sum(row[name] for row in steps) for name in ("input_tokens", "padded_tokens"))
    log = [
        {"step": row["step"], "epoch": row["epoch"], "loss": row["loss"], "learning_rate": row["lr"]} for row in steps
    ]
    write_json(folder / f"train_metrics_{plan.loader}.json", log)
    write_json(folder / f"train_summary_{plan.loader}.json", {
        "loader": plan.loader, "objective": plan.objective, "global_step": len(steps),
        "emitted_samples": plan.train_samples, "mean_emitted_samples_per_step": plan.train_samples / len(steps),
        "effective_emitted_samples_per_second": plan.train_samples / runtime, "tokens_per_second": tokens / runtime,
        "label_tokens_per_second": tokens / 2 / runtime, "padding_ratio": 1 - tokens / padded,
        "fill": tokens / (sum(row["groups"] for row in steps) * 1024) if plan.loader == "odb" else None,
        "steps": len(steps), "repeated_rows": 0, "totals": {}, "resumed_after_step": None,
        "trainer_metrics": {"train_runtime": runtime, "train_loss": 1.9 * plan.loss}, "world_size": plan.ranks,
        "split": split,
        "config": {
            "max_length": 1024, "image_max_pixels": 65536, "processor_backend": "qwen_vl", "num_workers": 1,
            "prefetch_factor": 2, "fixed_batch_size": None if plan.loader == "odb" else 1,
            "token_budget": 1024 if plan.loader == "odb" else None, "buffer_size": 256, "loss_scaling": plan.objective,
            "join": True, "deepspeed": None, "gradient_checkpointing": False, "use_cache": False,
            "trainable_keywords": "full", "precision": "fp32",
        },
        "model": settings["model"], "trainable_parameters": 551_000,
        "data": {"path": settings["data"], "fingerprint": plan.fingerprint, "raw_records": 3000,
                 "train_samples": plan.train_samples, "eval_samples": plan.held_out},
        "seed": plan.seed,
        "hardware": {"device": "cpu", "gpu_type": None, "gpus": 0, "cpu": "x86_64", "cpu_count": 2},
        "versions": {"odb-example": "0.1.0", "online-dynamic-batching": "0.1.2", "torch": "2.14.1",
                     "transformers": "5.24.0", "accelerate": "1.15.0"},
    })  # fmt: skip


def split_of(plan: Plan) -> dict[str, Any]:
    return {
        "split_mode": "lf_val_size", "train_size_arg": 0, "val_size": 0.05, "split_seed": 42, "val_start": None,
        "train_indices_preview": list(range(10)), "eval_indices_preview": list(range(100, 110)),
    }  # fmt: skip


def step_rows(plan: Plan) -> list[dict[str, Any]]:
    """Steps whose loss falls, with token counts as uneven as real ones."""
    chance = random.Random(f"steps/{plan.loader}/{plan.seed}")
    per_step = 12 if plan.loader == "odb" else plan.ranks
    count = math.ceil(plan.train_samples / per_step)
    rows, emitted = [], 0
    for number in range(1, count + 1):
        samples = min(per_step, plan.train_samples - emitted)
        emitted += samples
        share = number / count
        lengths = [chance.choice((60, 90, 140, 400, 700)) for _ in range(samples)]
        tokens, padding = sum(lengths), 1.04 if plan.loader == "odb" else 1.0
        ranks = [sum(lengths[rank :: plan.ranks]) for rank in range(plan.ranks)]
        rows.append({
            "step": number, "epoch": emitted / plan.train_samples, "emitted_samples": emitted, "samples": samples,
            "label_tokens": tokens // 2, "input_tokens": tokens, "padded_tokens": int(tokens * padding),
            "largest_batch_tokens": min(1024, max(ranks)), "groups": max(1, tokens // 900), "idle": 0,
            "text_only_groups": 0, "repeated_rows": 0,
            "seconds": samples * plan.seconds_of_step / plan.speed * chance.uniform(0.8, 1.25),
            "wait_seconds": 0.02 * chance.random(),
            "loss": plan.loss * (1.0 + 5.5 * math.exp(-5 * share)) + chance.gauss(0, 0.12),
            "grad_norm": 0.6 + 4 * math.exp(-4 * share) * chance.uniform(0.5, 1.5),
            "lr": 8e-3 * min(1.0, share / 0.03) * (0.5 + 0.5 * math.cos(math.pi * share)),
            "ranks": [
                {"samples": len(lengths[rank :: plan.ranks]), "input_tokens": ranks[rank],
                 "padded_tokens": int(ranks[rank] * padding)} for rank in range(plan.ranks)
            ],
        })  # fmt: skip
    return rows


def write_validation(folder: Path, plan: Plan, checkpoint: Path) -> None:
    rows = sample_rows(plan)
    write_json_lines(folder / "samples.jsonl", rows)
    result = {
        "checkpoint": str(checkpoint), "data": "data/mm-mix-miniature", **split_of(plan), "marks": [],
        **summarize_losses(rows), "max_length": 1024, "image_max_pixels": 65536, "processor_backend": "qwen_vl",
        "basis": {"data_fingerprint": plan.fingerprint, "dtype": "float32"},
    }  # fmt: skip
    write_json(folder / "eval_results.json", result)
    write_json(folder / "all_results.json", result)


def sample_rows(plan: Plan) -> list[dict[str, Any]]:
    """The same samples for every plan; the losses differ by ``plan.loss`` and a little noise of the loader's own."""
    same, own = random.Random("held out"), random.Random(f"own/{plan.loader}/{plan.seed}")
    rows = []
    for number in range(plan.held_out):
        source = plan.source if plan.source and number == 0 else SOURCES[number % len(SOURCES)]
        labels = same.choice((3, 6, 40, 120, 260))
        hardness = same.uniform(0.4, 1.8)
        rows.append({
            "id": f"{source[:40]}-{number:05d}", "source": source, "index": number,
            "length": labels + same.choice((40, 90, 500)),
            "nll_sum": labels * plan.loss * hardness * math.exp(own.gauss(0, 0.08)), "label_tokens": labels,
        })  # fmt: skip
    return rows


def benchmark_rows(plan: Plan) -> list[dict[str, Any]]:
    """Questions in the benchmark's own schema; the last is open, without a letter."""
    chance = random.Random("questions")
    rows = []
    for number in range(plan.questions):
        subject = SUBJECTS[number % len(SUBJECTS)]
        options = [
            f"{word} {number}"
            for word in ("red", "green", "blue", "grey", "white")[: chance.choice((2, 3, 4, 4, 4, 5))]
        ]
        hostile = plan.question if plan.question and number < 3 else None
        rows.append({
            "id": f"validation_{subject}_{number + 1}", "subject": subject,
            "question": hostile or f"<image 1> Which colour has item {number}?",
            "options": repr([hostile, *options[1:]] if hostile else options),
            "answer": chance.choice("ABCDE"[: len(options)]), "image_1": True, "question_type": "multiple-choice",
        })  # fmt: skip
    return [*rows, {**rows[0], "id": "validation_Art_999", "subject": "Art", "answer": "blue, of course"}]


def write_benchmark(folder: Path, plan: Plan, checkpoint: Path) -> None:
    same, own = random.Random("scores"), random.Random(f"answers/{plan.loader}/{plan.seed}")
    predictions, excluded = [], []
    for order, row in enumerate(benchmark_rows(plan)):
        item = read_row(row, subject=row["subject"], index=order, order=order)
        if isinstance(item, Exclusion):
            excluded.append(excluded_row(item, split="validation", variant="v1"))
        else:
            scores = _scores(item, plan, same, own)
            predictions.append(prediction_row(item, scores, split="validation", variant="v1", prompt_tokens=150))
    head = {
        "protocol": protocol_name("v1"), "split": "validation", "checkpoint": str(checkpoint), "dataset": plan.dataset,
        "subjects": sorted(SUBJECTS),
    }  # fmt: skip
    write_json_lines(folder / "predictions.jsonl", predictions)
    write_json_lines(folder / "excluded.jsonl", excluded)
    write_json(
        folder / "mmmu_mc_likelihood_results.json", head | count_scores(predictions, excluded) | {"dtype": "float32"}
    )
    audit = head | {
        "candidate_token_info": {
            letter: {"candidate_text": letter, "first_token_id": 32 + i, "token_ids": [32 + i]}
            for i, letter in enumerate(LETTERS)
        },
        "prompt_suffix": "Answer with the option letter only.", "score_meta_examples": [],
        "option_status_counts": counted(row["option_status"] for row in predictions),
        "prediction_counts": counted(row["prediction"] for row in predictions),
        "answer_counts": counted(row["ground_truth"] for row in predictions), "letter_bias": letter_bias(predictions),
        "rows": row_register(predictions), "excluded_rows": row_register(excluded),
        "files": {name: file_digest(folder / name) for name in
                  ("predictions.jsonl", "excluded.jsonl", "mmmu_mc_likelihood_results.json")},
    }  # fmt: skip
    write_json(folder / "score_audit.json", audit | {DIGEST_FIELD: audit_digest(audit)})


def _scores(question: Question, plan: Plan, same: random.Random, own: random.Random) -> list[float]:
    """Log-probabilities of A-H; right more often with skill, and shared luck keeps most rows the same between runs."""
    knows = same.random() < plan.skill
    raw = [same.gauss(0, 1.0) + own.gauss(0, 0.5) for _ in LETTERS]
    if knows:
        raw[LETTERS.index(question.answer)] += 2.5
    whole = math.log(sum(math.exp(value) for value in raw)) + 0.3
    return [value - whole for value in raw]
