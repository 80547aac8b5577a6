"""A public record (`results/*.json`) from run folders: the reference's shape, with what ours knows beside it.

In: runs, at most one of each loader. Out: one JSON file that `compare` reads again. A figure a run does not have is
absent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from odb_example.errors import UserError
from odb_example.files import require_replaceable, write_json
from odb_example.report.reading import read_runs
from odb_example.report.runs import Run

_SIDE: Mapping[str, tuple[str, ...]] = {
    "runtime_seconds": ("summary.trainer_metrics.train_runtime", "summary.runtime_seconds"),
    "train_loss": ("summary.trainer_metrics.train_loss", "summary.train_loss"),
    "validation_loss": ("validation.eval_loss", "summary.validation_loss"),
    "token_weighted_validation_loss": (
        "validation.token_weighted_eval_loss", "summary.token_weighted_validation_loss",
    ),
    "mmmu_mc_accuracy": ("benchmark.overall_accuracy", "summary.mmmu_mc_accuracy"),
    "mmmu_mc_correct": ("benchmark.overall_correct", "summary.mmmu_mc_correct"),
    "mmmu_mc_total": ("benchmark.overall_total", "summary.mmmu_mc_total"),
    "mmmu_mc_protocol": ("benchmark.protocol",),
    "seed": ("summary.seed",),
}  # fmt: skip
_DROPPED = ("split", "trainer_metrics", "totals", "data", "hardware", "versions", "model")
"""What the summary says once for all sides of a record."""


def write_record(runs: Sequence[Path], path: Path) -> None:
    """Write the record of ``runs`` (run folders or records) to ``path``.

    Raises:
        UserError: an unfinished run, or two of one loader: a record has one side a loader; a file that is no record.
    """
    require_replaceable(path, "record", b"{")
    write_json(path, record_of(read_runs(runs), name=path.stem))


def record_of(runs: Sequence[Run], *, name: str) -> dict[str, Any]:
    """The record as a value.

    Raises:
        UserError: as `write_record`.
    """
    sides: dict[str, Run] = {}
    for run in runs:
        if not run.finished:
            raise UserError(f"{run.name} has no train summary", "finish the run, or leave it out of the record")
        if run.loader in sides:
            raise UserError(f"{run.name} and {sides[run.loader].name} are both {run.loader}", "name one run a loader")
        sides[run.loader] = run
    first = next(iter(runs))
    training = {loader: _side(run) for loader, run in sides.items()}
    return {
        "name": name,
        "date": datetime.now(timezone.utc).date().isoformat(),
        "package": _package(first),
        "hardware": _hardware(first),
        "model": first.value("summary.model", "record.model"),
        "data": _data(first),
        "training": {
            "max_length": first.value("summary.config.max_length", "record.training.max_length"),
            "image_max_pixels": first.value("summary.config.image_max_pixels", "record.training.image_max_pixels"),
            "processor_backend": first.value("summary.config.processor_backend", "record.training.processor_backend"),
            "precision": first.value("summary.config.precision", "record.training.precision"),
            "epochs": first.value("settings.num_train_epochs", "record.training.epochs"),
            **training,
        },
        "derived": derived(training.get("odb", {}), training.get("standard", {})),
        "notes": [
            "effective_emitted_samples_per_second counts samples that were trained on, over wall time.",
            "mmmu_mc_* is a likelihood score over single letters: comparable with no generated-answer score.",
            "Losses are the objective itself, unscaled; `objective` names it.",
        ],
    }  # fmt: skip


def derived(odb: Mapping[str, Any], standard: Mapping[str, Any]) -> dict[str, float]:
    """ODB against standard: ratios of speed, and differences odb minus standard; what a side lacks is left out."""
    found: dict[str, float] = {}
    speed = "effective_emitted_samples_per_second"
    if odb.get(speed) and standard.get(speed):
        found["throughput_speedup"] = odb[speed] / standard[speed]
    if odb.get("runtime_seconds") and standard.get("runtime_seconds"):
        found["runtime_speedup"] = standard["runtime_seconds"] / odb["runtime_seconds"]
    for name, field in (
        ("validation_loss_delta_odb_minus_standard", "validation_loss"),
        ("token_weighted_validation_loss_delta_odb_minus_standard", "token_weighted_validation_loss"),
        ("mmmu_mc_delta_points", "mmmu_mc_accuracy"),
    ):
        if odb.get(field) is not None and standard.get(field) is not None:
            found[name] = odb[field] - standard[field]
    return found


def _side(run: Run) -> dict[str, Any]:
    """The summary's own fields, its configuration beside them, then the evaluations'."""
    summary = run.documents["summary"].value
    fields = {name: value for name, value in summary.items() if name not in _DROPPED}
    fingerprint = run.value("summary.data_fingerprint", "summary.data.fingerprint")
    found = {name: run.value(*places) for name, places in _SIDE.items()} | {"data_fingerprint": fingerprint}
    return fields | {name: value for name, value in found.items() if value is not None}


def _package(run: Run) -> dict[str, Any]:
    versions = run.value("summary.versions", "record.package") or {}
    named = {name.replace("-", "_"): version for name, version in versions.items()}
    return {"online_dynamic_batching": named.pop("online_dynamic_batching", None), **named}


def _hardware(run: Run) -> dict[str, Any]:
    stated = run.value("record.hardware")
    if stated:
        return dict(stated)
    hardware = run.value("summary.hardware") or {}
    nodes = run.value("settings.nnodes") or 1
    world = run.value("summary.world_size") or 1
    gpus = world // nodes if hardware.get("gpus") else 0
    return {"nodes": nodes, "gpus_per_node": gpus, **hardware}


def _data(run: Run) -> dict[str, Any]:
    stated = run.value("record.data")
    if stated:
        return dict(stated)
    data, split = run.value("summary.data") or {}, run.value("summary.split") or {}
    return {
        "recipe": run.value("settings.preset"),
        "fingerprint": run.value("summary.data_fingerprint", "summary.data.fingerprint"),
        **{name: data.get(name) for name in ("raw_records", "train_samples", "eval_samples")},
        **{name: split.get(name) for name in ("split_mode", "val_size", "split_seed", "eval_indices_preview")},
        "label_tokens": run.value("validation.label_tokens"),
        "label_tokens_per_sample": run.value("validation.label_tokens_per_sample"),
    }
