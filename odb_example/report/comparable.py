"""May these runs be compared at all? Asked and answered before any difference is shown.

Each `Condition` names what must be the same, where a run says it, and which figures fall where it is not. A condition
that some run does not state is unknown, never assumed. Files that contradict themselves (`integrity`) count as a
condition too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from odb_example.report.integrity import Disagreement
from odb_example.report.runs import Fact, Run
from odb_example.report.words import several

Status = Literal["comparable", "not comparable", "unknown"]
THROUGHPUT, TRAINING_LOSS, VALIDATION_LOSS, MMMU = "throughput", "training loss", "validation loss", "MMMU-MC"
FIGURES = (THROUGHPUT, TRAINING_LOSS, VALIDATION_LOSS, MMMU)
LEARNED = (TRAINING_LOSS, VALIDATION_LOSS, MMMU)
_FIGURE_OF_PART = {"training": (THROUGHPUT, TRAINING_LOSS), "validation": (VALIDATION_LOSS,), "benchmark": (MMMU,)}
_PART_OF_FIGURE = {VALIDATION_LOSS: "validation", MMMU: "benchmark", THROUGHPUT: "training", TRAINING_LOSS: "training"}

REFERENCE_OBJECTIVES = {"exact": "odb-exact", "approx": "odb-approx"}
"""What the reference's own files mean by these names; ours always write the resolved one."""


@dataclass(frozen=True, slots=True)
class Condition:
    """What must be the same. ``read`` gives a run's value and its source, or None where the run does not say."""

    name: str
    figures: tuple[str, ...]
    read: Callable[[Run], Fact | None]
    why: str


@dataclass(frozen=True, slots=True)
class Check:
    """One condition over all runs: same, different or unknown, with every run's value."""

    name: str
    status: Literal["same", "differs", "unknown"]
    figures: tuple[str, ...]
    values: Mapping[str, Fact | None]
    why: str


@dataclass(frozen=True, slots=True)
class FigureVerdict:
    """The verdict on one figure and the reasons for it."""

    status: Status
    because: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer: one sentence, every check, what each figure may be used for, and the runs' own contradictions."""

    status: Status
    sentence: str
    checks: tuple[Check, ...]
    figures: Mapping[str, FigureVerdict]
    damaged: Mapping[str, tuple[Disagreement, ...]]

    @property
    def differing(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.status == "differs")

    @property
    def unknown(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.status == "unknown")


def judge(runs: Sequence[Run], contradictions: Mapping[str, tuple[Disagreement, ...]]) -> Verdict:
    """The verdict over all ``runs``; of one run it says only whether its files agree with each other.

    ``contradictions`` are those of `integrity.disagreements`, by the name of the run.
    """
    damaged = {run.name: contradictions[run.name] for run in runs if contradictions[run.name]}
    checks = tuple(_check(condition, runs) for condition in CONDITIONS) if len(runs) > 1 else ()
    figures = {figure: _figure(figure, runs, checks, damaged) for figure in FIGURES}
    states = {verdict.status for verdict in figures.values()}
    status: Status = (
        "not comparable" if "not comparable" in states else "unknown" if "unknown" in states else "comparable"
    )
    return Verdict(status, _sentence(runs, status, checks, figures, damaged), checks, figures, damaged)


def _check(condition: Condition, runs: Sequence[Run]) -> Check:
    """Runs that lack the part a condition speaks of are left out: a run without MMMU has no MMMU protocol to differ."""
    parts = {_PART_OF_FIGURE[figure] for figure in condition.figures}
    concerned = [run for run in runs if len(parts) > 1 or _has(run, next(iter(parts)))]
    values = {run.name: condition.read(run) for run in concerned}
    stated = {_canonical(fact.value) for fact in values.values() if fact}
    silent = any(fact is None for fact in values.values())
    status: Literal["same", "differs", "unknown"] = "differs" if len(stated) > 1 else "unknown" if silent else "same"
    return Check(condition.name, status, condition.figures, values, condition.why)


def _has(run: Run, part: str) -> bool:
    if part == "benchmark":
        return "benchmark" in run.documents or run.find("summary.mmmu_mc_accuracy") is not None
    if part == "validation":
        return "validation" in run.documents or run.find("summary.validation_loss") is not None
    return True


def _figure(
    figure: str, runs: Sequence[Run], checks: Sequence[Check], damaged: Mapping[str, tuple[Disagreement, ...]]
) -> FigureVerdict:
    differs = [f"{c.name} differs: {c.why}" for c in checks if figure in c.figures and c.status == "differs"]
    for name, found in damaged.items():
        files = sorted({d.file for d in found if figure in _FIGURE_OF_PART[d.part]})
        differs += [f"files of {name} contradict each other: {several(files)}"] if files else []
    if figure == TRAINING_LOSS:
        scaled = [run.name for run in runs if _reported_times_world(run)]
        if scaled:
            differs.append(f"the training loss of {several(scaled)} is reported times the world size")
    unknown = [f"{c.name} is not stated by every run" for c in checks if figure in c.figures and c.status == "unknown"]
    if differs:
        return FigureVerdict("not comparable", tuple(differs))
    return FigureVerdict("unknown" if unknown else "comparable", tuple(unknown))


def _sentence(
    runs: Sequence[Run],
    status: Status,
    checks: Sequence[Check],
    figures: Mapping[str, FigureVerdict],
    damaged: Mapping[str, tuple[Disagreement, ...]],
) -> str:
    parts = []
    if damaged:
        parts.append(f"The files of {several(list(damaged))} contradict themselves.")
    if len(runs) == 1:
        return " ".join([*parts, "One run: nothing to compare it with."])
    differing = [check.name for check in checks if check.status == "differs"]
    silent = [check.name for check in checks if check.status == "unknown"]
    if status == "comparable":
        parts.append(f"All figures may be compared: the runs are the same in all {len(checks)} conditions.")
    if differing:
        parts.append(f"The runs differ in {several(differing)}.")
    if silent:
        parts.append(f"Not stated by every run: {several(silent)}.")
    fallen = [name for name, verdict in figures.items() if verdict.status == "not comparable"]
    open_ones = [name for name, verdict in figures.items() if verdict.status == "unknown"]
    if fallen:
        parts.append(f"Not comparable: {several(fallen)}.")
    if open_ones:
        parts.append(f"Unknown: {several(open_ones)}.")
    sound = [name for name, verdict in figures.items() if verdict.status == "comparable"]
    if sound and status != "comparable":
        parts.append(f"Comparable: {several(sound)}.")
    return " ".join(parts)


def _at(*places: str) -> Callable[[Run], Fact | None]:
    return lambda run: run.find(*places)


def _objective(run: Run) -> Fact | None:
    """The resolved objective; in the reference's files, which do not state it, what its trainer optimised."""
    stated = run.find("summary.objective", "summary.config.objective", "identity.objective")
    if stated:
        return stated
    scaling = run.find("summary.config.loss_scaling", "summary.loss_scaling", "record.training.loss_scaling")
    if run.loader == "odb" and scaling:
        return Fact(REFERENCE_OBJECTIVES.get(scaling.value, scaling.value), f"{scaling.source} (the reference's name)")
    if not run.from_record:
        return run.find("settings.loss_scaling")
    rows = run.find("summary.config.fixed_batch_size", "summary.fixed_batch_size")
    if rows and rows.value == 1:
        return Fact("sample", f"{rows.source} (a batch of one per rank is a mean over samples)")
    return None


def _reported_times_world(run: Run) -> bool:
    """The reference's standard loader reports, and optimises, its loss times the world size."""
    world = run.number("summary.world_size", "record.hardware.gpus_per_node") or 1
    return run.from_record and run.loader == "standard" and world > 1 and not run.find("summary.objective")


def _split(run: Run) -> Fact | None:
    split = run.find("summary.split")
    if split:
        names = (
            "split_mode",
            "train_size_arg",
            "val_size",
            "split_seed",
            "train_indices_preview",
            "eval_indices_preview",
        )
        return Fact({name: split.value.get(name) for name in names}, split.source)
    data = run.find("record.data")
    if not data:
        return None
    stated = ("split_mode", "split_seed", "train_samples", "eval_samples", "eval_indices_preview")
    return Fact({name: data.value[name] for name in stated if name in data.value}, data.source)


def _held_out(run: Run) -> Fact | None:
    """Ids of the scored rows, else their number and first indices."""
    if run.samples:
        ids = sorted(row.id for row in run.samples)
        return Fact(_digest(ids), f"samples.jsonl: id of {len(ids)} rows")
    return run.find("validation.eval_indices_preview", "record.data.eval_indices_preview")


def _scored_rows(run: Run) -> Fact | None:
    if run.predictions:
        ids = sorted(f"{row.subject}/{row.sample_id}" for row in run.predictions)
        return Fact(_digest(ids), f"predictions.jsonl: sample_id of {len(ids)} rows")
    return run.find("benchmark.overall_total", "summary.mmmu_mc_total")


def _model(run: Run) -> Fact | None:
    return run.find("summary.model", "identity.model", "settings.model", "record.model")


def _versions(run: Run) -> Fact | None:
    versions = run.find("summary.versions", "record.package")
    if not versions or not isinstance(versions.value, Mapping):
        return None
    return Fact({name: versions.value[name] for name in _WEIGHTY if name in versions.value}, versions.source)


def _optimizer(run: Run) -> Fact | None:
    settings = run.find("settings")
    if not settings:
        return None
    return Fact({name: settings.value.get(name) for name in _OPTIMIZER}, settings.source)


def _hardware(run: Run) -> Fact | None:
    """Of one record both sides ran on the same machines."""
    return run.find("summary.hardware", "record.hardware")


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _digest(ids: Sequence[str]) -> str:
    import hashlib

    return f"{len(ids)} rows, sha256 {hashlib.sha256(chr(10).join(ids).encode()).hexdigest()[:12]}"


_WEIGHTY = ("torch", "transformers", "accelerate", "online-dynamic-batching", "online_dynamic_batching", "deepspeed")
_OPTIMIZER = (
    "lr", "lr_scheduler_type", "warmup_ratio", "max_grad_norm", "trainable_keywords", "freeze_vision_tower",
    "freeze_multimodal_projector", "freeze_language_model", "lora_r", "lora_alpha", "lora_dropout",
    "lora_target_modules", "trainer",
)  # fmt: skip

FINGERPRINT = ("summary.data_fingerprint", "summary.data.fingerprint", "identity.data_fingerprint")

CONDITIONS: tuple[Condition, ...] = (
    Condition("data fingerprint", FIGURES, _at(*FINGERPRINT),
              "the runs saw other records"),
    Condition("split", FIGURES, _split, "other records were trained on or held out"),
    Condition("model", FIGURES, _model, "the runs started from other weights"),
    Condition("image cap", FIGURES, _at("summary.config.image_max_pixels", "record.training.image_max_pixels"),
              "the same image has another number of tokens"),
    Condition("length cap", FIGURES, _at("summary.config.max_length", "record.training.max_length"),
              "long samples were cut elsewhere"),
    Condition("precision", FIGURES, _at("summary.precision", "summary.config.precision", "record.training.precision"),
              "speed and rounding depend on it"),
    Condition("versions", FIGURES, _versions, "other software computed it"),
    Condition("objective", LEARNED, _objective,
              "a mean over samples and a mean over tokens are different goals"),
    Condition("optimizer settings", LEARNED, _optimizer, "the difference may be the learning rate's, not the loader's"),
    Condition("epochs", LEARNED, _at("summary.epochs", "settings.num_train_epochs", "record.training.epochs"),
              "one run trained longer"),
    Condition("emitted samples", LEARNED, _at("summary.emitted_samples"), "one run trained on more samples"),
    Condition("hardware", (THROUGHPUT,), _hardware, "other machines"),
    Condition("world size", (THROUGHPUT,), _at("summary.world_size", "record.hardware.gpus_per_node"),
              "another number of processes"),
    Condition("held-out rows", (VALIDATION_LOSS,), _held_out, "the losses are over other samples"),
    Condition("evaluation precision", (VALIDATION_LOSS,), _at("validation.basis.dtype", "validation.dtype"),
              "rounding differs"),
    Condition("evaluation caps", (VALIDATION_LOSS,), lambda run: _pair(run, "validation"),
              "the same sample has another length"),
    Condition("benchmark protocol", (MMMU,), _at("benchmark.protocol", "record.mmmu_protocol"),
              "scores of two protocols are two quantities"),
    Condition("benchmark rows", (MMMU,), _scored_rows, "the scores are over other questions"),
    Condition("benchmark precision", (MMMU,), _at("benchmark.basis.dtype", "benchmark.dtype"),
              "near-ties fall differently"),
)  # fmt: skip


def _pair(run: Run, part: str) -> Fact | None:
    length, pixels = run.find(f"{part}.max_length"), run.find(f"{part}.image_max_pixels")
    if not (length and pixels):
        return None
    return Fact([length.value, pixels.value], f"{length.source}, image_max_pixels")
