"""From per-sample losses to the validation figures. Pure: anyone can recompute them from ``samples.jsonl``.

A row is ``id, source, index, length, nll_sum, label_tokens``; ``nll_sum`` (nats) is the summed negative log-likelihood
of the sample's label tokens. The sample mean weighs every sample the same, the token mean every label token. Sums are
exact (`math.fsum`): no order of rows changes a digit of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from odb_example.evaluate.statistics import quantile

Row = Mapping[str, Any]
LENGTH_BUCKETS = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


def summarize_losses(rows: Sequence[Row]) -> dict[str, Any]:
    """Sample mean, token mean, label-token counts, and both means by source and by length bucket.

    ``mean_batch_loss`` is the mean over samples: the reference's batches hold one sample each.
    """
    overall = means(rows)
    counts = [row["label_tokens"] for row in rows]
    return {
        "eval_samples": len(rows),
        "eval_loss": overall["eval_loss"],
        "mean_batch_loss": overall["eval_loss"],
        "loss_aggregation": "sample_mean_of_model_loss",
        "token_weighted_eval_loss": overall["token_weighted_eval_loss"],
        "label_tokens": sum(counts),
        "label_tokens_per_sample": spread(counts),
        "by_source": by(rows, lambda row: row["source"], str),
        "by_length": by(rows, lambda row: bucket(row["length"]), bucket_name),
    }


def means(rows: Sequence[Row]) -> dict[str, Any]:
    """Both mean losses of some rows, with their counts."""
    tokens = sum(row["label_tokens"] for row in rows)
    return {
        "eval_loss": math.fsum(row["nll_sum"] / row["label_tokens"] for row in rows) / len(rows),
        "token_weighted_eval_loss": math.fsum(row["nll_sum"] for row in rows) / tokens,
        "samples": len(rows),
        "label_tokens": tokens,
    }


def spread(counts: Sequence[int]) -> dict[str, float]:
    """min, p10, p50, p90, max and mean of label tokens a sample, quantiles as the reference takes them."""
    return {
        "min": min(counts),
        "p10": quantile(counts, 0.1),
        "p50": quantile(counts, 0.5),
        "p90": quantile(counts, 0.9),
        "max": max(counts),
        "mean": sum(counts) / len(counts),
    }


def by(rows: Sequence[Row], key: Callable[[Row], Any], name: Callable[[Any], str]) -> dict[str, dict[str, Any]]:
    """`means` of each group, groups in order of their key."""
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return {name(value): means(groups[value]) for value in sorted(groups)}


def bucket(length: int) -> float:
    """Upper end of the bucket a length falls into, infinity above the last."""
    return next((limit for limit in LENGTH_BUCKETS if length <= limit), math.inf)


def bucket_name(limit: float) -> str:
    """``<=128`` for the bucket of 65 to 128 tokens."""
    return f">{LENGTH_BUCKETS[-1]}" if limit == math.inf else f"<={limit}"
