"""Validation loss over the held-out split: batches by token budget, all ranks, restartable, one row a sample.

Every sample's loss is the sum over its own label tokens, from logits computed at label positions only, so no grouping,
budget or rank count changes the sums beyond float noise; the means are taken once, from all rows. Results lie in
`eval_results.json`, `all_results.json` (the same), `samples.jsonl`, and `refused.jsonl` for records without a loss.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from torch.nn import functional
from transformers import PreTrainedModel

from odb_example import distributed
from odb_example.data.collate import Collator, split_batch
from odb_example.data.samples import FinishedSamples, SampleMaker
from odb_example.data.store import Store
from odb_example.errors import UserError
from odb_example.evaluate.batching import Batch, Effort, Scored, score_samples
from odb_example.evaluate.checkpoint import (
    find_checkpoint,
    output_folder,
    refuse_other_results,
    train_summary,
)
from odb_example.evaluate.environment import describe_effort, describe_environment, describe_model
from odb_example.evaluate.folders import VALIDATION_FOLDER
from odb_example.evaluate.held_out import choose_held_out
from odb_example.evaluate.losses import summarize_losses
from odb_example.evaluate.partial import PARTIAL_FOLDER, PartialRows, discard_partial
from odb_example.files import write_json, write_json_lines
from odb_example.models.loading import load_for_scoring, load_processor
from odb_example.settings import Settings

PROTOCOL = "validation-loss-v1"
IGNORE_INDEX = -100


@torch.inference_mode()
def sample_losses(model: PreTrainedModel, batch: Batch) -> list[tuple[float, int]]:
    """(summed negative log-likelihood in nats, label tokens) of each row of a padded batch.

    The label at position t is predicted at t - 1. Log-softmax is taken in float32, sums in float64.

    Args:
        batch: ``input_ids``, ``labels`` and ``attention_mask`` of shape (rows, tokens), and the images' tensors.
    """
    inputs, _ = split_batch(batch)
    labels = inputs.pop("labels")
    targets = functional.pad(labels[:, 1:], (0, 1), value=IGNORE_INDEX)
    predicting = targets != IGNORE_INDEX
    logits = model(**inputs, use_cache=False, logits_to_keep=predicting).logits
    losses = functional.cross_entropy(logits.float(), targets[predicting], reduction="none").double()
    rows = predicting.nonzero()[:, 0]
    sums = torch.zeros(len(labels), dtype=torch.float64, device=losses.device).index_add_(0, rows, losses)
    return list(zip(sums.tolist(), predicting.sum(1).tolist(), strict=True))


def evaluate_validation_loss(settings: Settings) -> dict[str, Any]:
    """Score the checkpoint's held-out records in this rank; the first rank writes and prints the results.

    Raises:
        UserError: no checkpoint or data, another split than the checkpoint's, results of another checkpoint in the way,
            a record that cannot become a sample (unless they are to be skipped), or nothing left to score.
    """
    checkpoint = find_checkpoint(settings)
    folder = output_folder(settings, checkpoint, VALIDATION_FOLDER, settings.eval_save_dir)
    refuse_other_results(folder, "eval_results.json", checkpoint, overwrite=settings.overwrite)
    store = Store.open(settings.data)
    held_out = choose_held_out(settings, len(store), store.fingerprint, train_summary(checkpoint))
    ranks = distributed.start(settings.device, settings.ddp_timeout)
    if ranks.is_main:
        for mark in held_out.marks:
            print(f"note: {mark}", file=sys.stderr)
    processor = load_processor(
        checkpoint.name, image_max_pixels=settings.image_max_pixels, trust_remote_code=settings.trust_remote_code
    )
    half = ranks.device.type == "cuda" if settings.eval_bf16 is None else settings.eval_bf16
    model = load_for_scoring(checkpoint.name, settings, torch.bfloat16 if half else torch.float32, ranks.device)
    indices = held_out.indices[: settings.max_samples or None]
    maker = SampleMaker(processor, max_length=settings.max_length, backend=settings.processor_backend)
    samples = FinishedSamples(store, indices.tolist(), maker)
    # What the figures depend on; rows of a stopped run are taken over only where all of it is the same.
    basis = {
        "protocol": PROTOCOL,
        "checkpoint_fingerprint": distributed.gather_objects(checkpoint.fingerprint() if ranks.is_main else "")[0],
        "data_fingerprint": store.fingerprint,
        "split": held_out.describe(),
        "rows": len(indices),
        "max_length": settings.max_length,
        "image_max_pixels": settings.image_max_pixels,
        "image_size": dict(processor.image_processor.size),
        "processor_backend": settings.processor_backend,
        **describe_model(model),
    }
    effort = Effort(
        token_budget=settings.token_budget,
        num_workers=settings.num_workers,
        prefetch_factor=settings.prefetch_factor,
        log_every=settings.limit_log_steps,
        label="validation loss",
    )
    collate = Collator(pad_token_id=processor.tokenizer.pad_token_id)
    with PartialRows(folder / PARTIAL_FOLDER, basis, ranks) as partial:
        scored = score_samples(samples, collate, lambda batch: _rows(model, batch), ranks, effort, partial)
    _stop_at_refused(scored, samples, settings.on_bad_record)
    rows = _sample_rows(samples, scored)
    if not rows:
        raise UserError("no held-out record has a label token: there is no loss", "raise --max-length")
    unscored = _unscored(samples, scored)
    result = (
        {"checkpoint": checkpoint.name, "data": settings.data}
        | held_out.describe()
        | summarize_losses(rows)
        | {name: basis[name] for name in ("max_length", "image_max_pixels", "processor_backend")}
        | {
            "unscored_samples": len(unscored),
            "basis": basis,
            "environment": describe_environment(ranks.device),
            "effort": describe_effort(effort, scored, ranks),
        }
    )
    if ranks.is_main:
        write_json_lines(folder / "samples.jsonl", rows)
        write_json_lines(folder / "refused.jsonl", unscored)
        write_json(folder / "all_results.json", result)
        write_json(folder / "eval_results.json", result)
        discard_partial(folder / PARTIAL_FOLDER)
        print("[hf-valloss] " + json.dumps(result, ensure_ascii=False), flush=True)
    distributed.barrier()
    return result


def _rows(model: PreTrainedModel, batch: Batch) -> list[dict[str, Any]]:
    lengths = batch["attention_mask"].sum(1).tolist()
    return [
        {"length": length, "nll_sum": nll, "label_tokens": tokens}
        for length, (nll, tokens) in zip(lengths, sample_losses(model, batch), strict=True)
    ]


def _stop_at_refused(scored: Scored, samples: FinishedSamples, on_bad_record: str) -> None:
    if scored.refused and on_bad_record == "refuse":
        position, reason = next(iter(scored.refused.items()))
        raise UserError(
            f"{len(scored.refused)} held-out records cannot become a sample; the first is "
            f"{samples.record(position).id}: {reason}",
            "mend the data, or add --on-bad-record skip to leave them out and count them",
        )


def _sample_rows(samples: FinishedSamples, scored: Scored) -> list[dict[str, Any]]:
    """Lines of ``samples.jsonl``: what was scored, in evaluation order."""
    rows = []
    for position, value in scored.values.items():
        if value["label_tokens"]:
            record = samples.record(position)
            rows.append({"id": record.id, "source": record.source, "index": int(samples.indices[position])} | value)
    return rows


def _unscored(samples: FinishedSamples, scored: Scored) -> list[dict[str, str]]:
    """Lines of ``refused.jsonl``: records of the split without a loss, and why."""
    reasons = dict(scored.refused)
    reasons |= {position: "no label token" for position, row in scored.values.items() if not row["label_tokens"]}
    return [{"id": samples.record(position).id, "reason": reasons[position]} for position in sorted(reasons)]
