"""The benchmark's four files, in an order that a reader can trust: the audit last, with digests of the others."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from odb_example.evaluate.folders import AUDIT, EXCLUDED, PREDICTIONS, RESULTS
from odb_example.evaluate.mmmu import suffix_of
from odb_example.evaluate.prompts import PromptSamples, letters_in_context
from odb_example.evaluate.score_audit import (
    DIGEST_FIELD,
    audit_digest,
    batch_invariance,
    check_known,
    duplicates,
    file_digest,
    letter_bias,
    margins,
    oddity_counts,
    row_register,
)
from odb_example.evaluate.scores import Row, counted
from odb_example.evaluate.subjects import known_split
from odb_example.files import write_json, write_json_lines

EXAMPLES = 5


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the audit needs beside the rows.

    Attributes:
        positions: position among ``samples`` of each row of the predictions.
        letters: `candidate_tokens`.
        pictures: digest of each sample's images.
        alone: log-probabilities of A-H of the positions scored again one at a time.
        seed: which chose them.
    """

    samples: PromptSamples
    positions: Sequence[int]
    letters: Mapping[str, Mapping[str, Any]]
    pictures: Sequence[str]
    alone: Mapping[int, Sequence[float]]
    seed: int


def write_excluded(folder: Path, excluded: Sequence[Row]) -> None:
    """``excluded.jsonl`` alone, where nothing could be scored."""
    write_json_lines(folder / EXCLUDED, excluded)


def write_benchmark(
    folder: Path, result: Mapping[str, Any], predictions: Sequence[Row], excluded: Sequence[Row], evidence: Evidence
) -> None:
    """Write all four files and say the score."""
    (folder / AUDIT).unlink(missing_ok=True)  # an older audit must not stand beside newer rows
    write_json_lines(folder / PREDICTIONS, predictions)
    write_excluded(folder, excluded)
    write_json(folder / RESULTS, result)
    audit = build_audit(result, predictions, excluded, evidence)
    audit["files"] = {name: file_digest(folder / name) for name in (RESULTS, PREDICTIONS, EXCLUDED)}
    audit[DIGEST_FIELD] = audit_digest(audit)
    write_json(folder / AUDIT, audit)
    announce(folder, result, audit)


def build_audit(
    result: Mapping[str, Any], predictions: Sequence[Row], excluded: Sequence[Row], evidence: Evidence
) -> dict[str, Any]:
    """``score_audit.json`` without the digests of files."""
    samples = evidence.samples
    rendered = [samples.rendered(position) for position in evidence.positions[:EXAMPLES]]
    in_context = letters_in_context(samples.processor.tokenizer, rendered)
    row_at = dict(zip(evidence.positions, predictions, strict=True))
    invariance = batch_invariance([(row_at[place], scores) for place, scores in evidence.alone.items()], evidence.seed)
    max_samples = result["basis"]["max_samples"]
    known = known_split(result["dataset"], result["split"], result["subjects"], max_samples)
    return {
        "protocol": result["protocol"],
        "candidate_token_info": evidence.letters,
        "prompt_suffix": suffix_of(samples.variant),
        "score_meta_examples": [
            {
                "prompt_tokens": row["prompt_tokens"],
                "rendered_chat_chars": len(text),
                "subject": row["subject"],
                "sample_id": row["sample_id"],
            }
            for row, text in zip(predictions, rendered, strict=False)
        ],
        "split": result["split"],
        "checkpoint": result["checkpoint"],
        "dataset": result["dataset"],
        "subjects": result["subjects"],
        "max_samples": max_samples,
        "letters": {
            letter: {
                "one_token": len(info["token_ids"]) == 1,
                "tokens_in_context": in_context[letter],
                "scored_token_is_the_one_in_context": in_context[letter] == [info["first_token_id"]],
            }
            for letter, info in evidence.letters.items()
        },
        "row_counts": {
            "seen": len(predictions) + len(excluded),
            "scored": len(predictions),
            "excluded": len(excluded),
            "scored_by_subject": counted(row["subject"] for row in predictions),
            "excluded_by_subject": counted(row["subject"] for row in excluded),
        },
        "known_figures": check_known(known, predictions, excluded) if known else None,
        "option_status_counts": counted(row["option_status"] for row in predictions),
        "prediction_counts": counted(row["prediction"] for row in predictions),
        "answer_counts": counted(row["ground_truth"] for row in predictions),
        "oddities": oddity_counts(predictions),
        "alpha_dropped": [row["sample_id"] for place, row in row_at.items() if samples.drops_alpha(place)],
        "letter_bias": letter_bias(predictions),
        "margins": margins(predictions, noise=2 * invariance["largest_difference"]),
        "batch_invariance": invariance,
        "duplicates": duplicates(predictions, [evidence.pictures[place] for place in evidence.positions]),
        "baselines": result["baselines"],
        "not_comparable_with": result["not_comparable_with"],
        "basis": result["basis"],
        "environment": result["environment"],
        "rows": row_register(predictions),
        "excluded_rows": row_register(excluded),
    }


def announce(folder: Path, result: Mapping[str, Any], audit: Mapping[str, Any]) -> None:
    """The score as one line on stdout, and beside it, on stderr, what it takes to read it."""
    low, high = result["accuracy_interval_95"]
    base = result["baselines"]
    print(
        f"[odb-hf-benchmark] overall_accuracy={result['overall_accuracy']:.2f} "
        f"({result['overall_correct']}/{result['overall_total']}) result={folder / RESULTS}",
        flush=True,
    )
    lines = [
        f"95% interval {low:.2f} to {high:.2f}; on these rows chance is {base['chance_over_valid_letters']:.2f}, "
        f"always A {base['always_A']:.2f}",
        f"scored again alone: {audit['batch_invariance']['rows']} rows, largest difference "
        f"{audit['batch_invariance']['largest_difference']:.2g}, {len(audit['batch_invariance']['flips'])} flips",
        *(f"not comparable with {what}" for what in result["not_comparable_with"]),
    ]
    if not result["complete"]:
        lines.insert(0, f"not complete: rows were left out, {result['excluded_by_reason']}")
    wrong = [letter for letter, info in audit["letters"].items() if not info["scored_token_is_the_one_in_context"]]
    if wrong:
        lines.append(f"after a prompt, {', '.join(wrong)} are written with other tokens than the ones scored")
    known = audit["known_figures"] or {}
    lines += [
        f"known figure differs: {name} is {value['found']}, expected {value['expected']}"
        for name, value in known.items()
        if not value["holds"]
    ]
    print("\n".join(lines), file=sys.stderr, flush=True)
