"""MMMU multiple choice by likelihood: `MMMU-MC-choice-likelihood-v1`, batched, over all ranks, restartable, audited.

A question's score for a letter is the log-probability of that letter's first token right after the prompt. Prompts are
padded on the left, so that every row ends at the last position and logits are computed there only; positions count from
each row's own first token, so that a batched row gets what it gets alone. Results lie in
`mmmu_mc_likelihood_results.json`, `predictions.jsonl`, `excluded.jsonl` and `score_audit.json`.
"""

from __future__ import annotations

import hashlib
import math
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import PreTrainedModel

from odb_example import distributed
from odb_example.data.collate import Collator, split_batch
from odb_example.data.samples import Sample, SampleMaker
from odb_example.distributed import Ranks
from odb_example.errors import UserError
from odb_example.evaluate.batching import Batch, Effort, Scored, score_samples
from odb_example.evaluate.benchmark_files import Evidence, write_benchmark, write_excluded
from odb_example.evaluate.checkpoint import (
    find_checkpoint,
    output_folder,
    refuse_other_results,
)
from odb_example.evaluate.environment import describe_effort, describe_environment, describe_model
from odb_example.evaluate.folders import BENCHMARK_FOLDER, RESULTS
from odb_example.evaluate.mmmu import Exclusion, Question, not_comparable_with, protocol_name, read_row
from odb_example.evaluate.mmmu_rows import BenchmarkRows, open_benchmark
from odb_example.evaluate.partial import PARTIAL_FOLDER, PartialRows, discard_partial
from odb_example.evaluate.prompts import PromptSamples, candidate_tokens
from odb_example.evaluate.score_audit import canonical
from odb_example.evaluate.scores import count_scores, excluded_row, prediction_row
from odb_example.models.loading import load_for_scoring, load_processor
from odb_example.settings import Settings

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
INVARIANCE_SHARE, INVARIANCE_SEED = 0.05, 0


@torch.inference_mode()
def letter_log_probabilities(model: PreTrainedModel, batch: Batch, letter_ids: Sequence[int]) -> list[list[float]]:
    """Log-probabilities (nats, float32 log-softmax over the whole vocabulary) of the letters after each prompt.

    Args:
        batch: padded on the left; ``input_ids`` and ``attention_mask`` of shape (rows, tokens), the images' tensors.
    """
    inputs, _ = split_batch(batch)
    if "image_grid_thw" not in inputs:
        # With images, Qwen-VL models place tokens by mask and grids themselves; without, they would count from the
        # batch's first column, padding included.
        inputs["position_ids"] = (inputs["attention_mask"].cumsum(1) - 1).clamp(min=0)
    logits = model(**inputs, use_cache=False, logits_to_keep=1).logits[:, -1]
    scores: list[list[float]] = torch.log_softmax(logits.float(), dim=-1)[:, list(letter_ids)].tolist()
    return scores


@dataclass(frozen=True, slots=True)
class ReadRows:
    """A benchmark's rows under the protocol's filter, in order; ``places`` goes with ``questions``."""

    rows: BenchmarkRows
    questions: tuple[Question, ...]
    places: tuple[tuple[int, int], ...]
    exclusions: tuple[Exclusion, ...]


def read_benchmark(rows: BenchmarkRows, max_samples: int = 0) -> ReadRows:
    """Apply the filter to every row; with a cap, stop at the row that fills it."""
    questions: list[Question] = []
    places: list[tuple[int, int]] = []
    exclusions: list[Exclusion] = []
    for number, part in enumerate(rows.subjects):
        for index, row in enumerate(part.text()):
            if max_samples and len(questions) == max_samples:
                break
            read = read_row(row, subject=part.subject, index=index, order=len(questions) + len(exclusions))
            if isinstance(read, Question):
                questions.append(read)
                places.append((number, index))
            else:
                exclusions.append(read)
    return ReadRows(rows, tuple(questions), tuple(places), tuple(exclusions))


@dataclass(frozen=True, slots=True)
class Scorer:
    """A model and what it takes to score prompts with it."""

    model: PreTrainedModel
    collate: Collator
    letter_ids: tuple[int, ...]

    def __call__(self, batch: Batch) -> list[dict[str, Any]]:
        """Per row: log-probabilities of A-H and the prompt's tokens."""
        lengths = batch["attention_mask"].sum(1).tolist()
        scores = letter_log_probabilities(self.model, batch, self.letter_ids)
        return [{"scores": row, "prompt_tokens": length} for row, length in zip(scores, lengths, strict=True)]


@dataclass(frozen=True, slots=True)
class Chosen:
    """Some of the prompts."""

    samples: PromptSamples
    positions: Sequence[int]

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, place: int) -> Sample:
        return self.samples[self.positions[place]]

    def length(self, place: int) -> int:
        """Tokens of the prompt."""
        return self.samples.length(self.positions[place])


def score_alone(
    samples: PromptSamples, scored: Scored, scorer: Scorer, ranks: Ranks, effort: Effort
) -> dict[int, list[float]]:
    """A random 5% of the scored prompts (at least one), each in a batch of its own: scores by position."""
    there = list(scored.values)
    count = math.ceil(INVARIANCE_SHARE * len(there))
    chosen = sorted(random.Random(INVARIANCE_SEED).sample(there, count))
    single = replace(effort, token_budget=1, log_every=0)
    alone = score_samples(Chosen(samples, chosen), scorer.collate, scorer, ranks, single)
    return {chosen[place]: value["scores"] for place, value in alone.values.items()}


def evaluate_benchmark(settings: Settings) -> dict[str, Any]:
    """Score the benchmark in this rank; the first rank writes and prints the results.

    Raises:
        UserError: no checkpoint or data set, results of another checkpoint in the way, letters that share a token,
            scores that are not finite.
        SystemExit: 1 where no row could be scored; ``excluded.jsonl`` says why.
    """
    checkpoint = find_checkpoint(settings)
    asked = settings.benchmark_output_dir or settings.eval_save_dir
    folder = output_folder(settings, checkpoint, BENCHMARK_FOLDER, asked)
    refuse_other_results(folder, RESULTS, checkpoint, overwrite=settings.overwrite)
    ranks = distributed.start(settings.device, settings.ddp_timeout)
    read = read_benchmark(open_on_ranks(settings, ranks), settings.max_samples)
    processor = load_processor(checkpoint.name, image_max_pixels=0, trust_remote_code=settings.trust_remote_code)
    letters = candidate_tokens(processor.tokenizer)
    dtype = DTYPES[settings.torch_dtype or ("bf16" if ranks.device.type == "cuda" else "fp32")]
    model = load_for_scoring(checkpoint.name, settings, dtype, ranks.device)
    maker = SampleMaker(processor, max_length=sys.maxsize, backend="auto")
    samples = PromptSamples(read.rows, read.places, read.questions, maker, processor, settings.prompt_variant)
    pictures = distributed.gather_objects(samples.all_pictures() if ranks.is_main else [])[0]
    # What the figures depend on; rows of a stopped run are taken over only where all of it is the same.
    basis = {
        "protocol": protocol_name(settings.prompt_variant),
        "checkpoint_fingerprint": distributed.gather_objects(checkpoint.fingerprint() if ranks.is_main else "")[0],
        "dataset_fingerprint": dataset_fingerprint(read, pictures),
        "split": settings.split,
        "max_samples": settings.max_samples,
        "image_size": dict(processor.image_processor.size),
        **describe_model(model),
    }
    effort = Effort(
        token_budget=settings.token_budget,
        num_workers=settings.num_workers,
        prefetch_factor=settings.prefetch_factor,
        log_every=settings.limit_log_steps,
        label="benchmark",
    )
    letter_ids = tuple(info["first_token_id"] for info in letters.values())
    scorer = Scorer(model, Collator(processor.tokenizer.pad_token_id, "left"), letter_ids)
    with PartialRows(folder / PARTIAL_FOLDER, basis, ranks) as partial:
        scored = score_samples(samples, scorer.collate, scorer, ranks, effort, partial)
    _require_finite(read, scored)
    predictions, excluded = result_rows(read, scored, settings)
    if not predictions:
        if ranks.is_main:
            write_excluded(folder, excluded)
            print(f"no row could be scored; {folder} holds excluded.jsonl, which says why", file=sys.stderr)
        raise SystemExit(1)
    alone = score_alone(samples, scored, scorer, ranks, effort)
    result = {
        "protocol": basis["protocol"],
        "split": settings.split,
        "checkpoint": checkpoint.name,
        "dataset": settings.dataset,
        "subjects": [part.subject for part in read.rows.subjects],
        **count_scores(predictions, excluded),
        "prompt_variant": settings.prompt_variant,
        "not_comparable_with": not_comparable_with(settings.prompt_variant),
        "basis": basis,
        "environment": describe_environment(ranks.device),
        "effort": describe_effort(effort, scored, ranks),
    }
    if ranks.is_main:
        evidence = Evidence(samples, list(scored.values), letters, pictures, alone, INVARIANCE_SEED)
        write_benchmark(folder, result, predictions, excluded, evidence)
        discard_partial(folder / PARTIAL_FOLDER)
    distributed.barrier()
    return result


def open_on_ranks(settings: Settings, ranks: Ranks) -> BenchmarkRows:
    """The rows on every rank; the first one loads first, so that only it fetches from the Hub."""
    for turn in (True, False):
        if ranks.is_main == turn:
            rows = open_benchmark(
                settings.dataset, split=settings.split, subjects=settings.subjects, cache_dir=settings.cache_dir
            )
        distributed.barrier()
    return rows


def dataset_fingerprint(read: ReadRows, pictures: Sequence[str]) -> str:
    """SHA-256 over what was read of every row: words, options, answer, and the encoded images of scored rows."""
    digest = hashlib.sha256()
    for question, picture in zip(read.questions, pictures, strict=True):
        words = (question.order, question.subject, question.sample_id, question.question, question.answer, picture)
        digest.update(canonical([*words, list(question.options)]))
    for row in read.exclusions:
        digest.update(canonical([row.order, row.subject, row.sample_id, str(row.answer_raw), list(row.options)]))
    return digest.hexdigest()


def result_rows(
    read: ReadRows, scored: Scored, settings: Settings
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Lines of ``predictions.jsonl`` and ``excluded.jsonl``, in the order of the data set."""
    variant = settings.prompt_variant
    predictions = [
        prediction_row(
            read.questions[position],
            value["scores"],
            split=settings.split,
            variant=variant,
            prompt_tokens=value["prompt_tokens"],
        )
        for position, value in scored.values.items()
    ]
    unscorable = [_as_exclusion(read, position, reason) for position, reason in scored.refused.items()]
    exclusions = sorted([*read.exclusions, *unscorable], key=lambda exclusion: exclusion.order)
    return predictions, [excluded_row(exclusion, split=settings.split, variant=variant) for exclusion in exclusions]


def _as_exclusion(read: ReadRows, position: int, reason: str) -> Exclusion:
    question = read.questions[position]
    name, _, detail = reason.partition(": ")
    return Exclusion(
        order=question.order,
        subject=question.subject,
        sample_id=question.sample_id,
        reason=name,
        answer_raw=question.answer,
        normalized_answer=question.answer,
        options=question.options,
        detail=detail,
    )


def _require_finite(read: ReadRows, scored: Scored) -> None:
    for position, value in scored.values.items():
        if not all(math.isfinite(score) for score in value["scores"]):
            raise UserError(
                f"row {read.questions[position].sample_id}: scores are not finite numbers",
                "use --torch-dtype bf16 or fp32, and check that the checkpoint is whole",
            )
