"""The run folder: where a run writes, and whether it may.

A folder remembers what it was made from (`RunIdentity`). Another model, data, split or objective is refused without
``--overwrite``, and so is a fresh start over checkpoints that could be resumed, or over a finished run that other
settings made. Importing this costs no torch.
"""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from odb_example.errors import UserError
from odb_example.evaluate.folders import BENCHMARK_FOLDER, VALIDATION_FOLDER
from odb_example.files import read_json, write_json, writing
from odb_example.settings import Settings

IDENTITY_FILE = "run_identity.json"
SETTINGS_FILE = "run_settings.yaml"
# What decides, beside `RunIdentity`, what a run ends with; other settings say where, how fast, or what is told.
DECIDING = (
    "seed", "processor_backend", "max_length", "image_max_pixels", "on_bad_record", "token_budget", "buffer_size",
    "max_patches", "join", "group_order_flip", "no_warmup", "fixed_batch_size", "max_steps", "num_train_epochs",
    "gradient_accumulation_steps", "lr", "lr_scheduler_type", "warmup_ratio", "max_grad_norm", "bf16", "fp16",
    "trainable_keywords", "freeze_vision_tower", "freeze_multimodal_projector", "freeze_language_model", "lora_r",
    "lora_alpha", "lora_dropout", "lora_target_modules", "save_final_model", "trainer",
)  # fmt: skip
PARTIAL_CHECKPOINTS = ".checkpoints-being-written"


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """What makes two runs comparable continuations of each other."""

    model: str
    data: str
    data_fingerprint: str
    split: str
    objective: str
    loader: str

    def differs_from(self, other: RunIdentity) -> list[str]:
        """The names of what differs, with both values."""
        return [
            f"{f.name} ({getattr(other, f.name)!r} there, {getattr(self, f.name)!r} now)"
            for f in fields(self)
            if f.name != "data" and getattr(self, f.name) != getattr(other, f.name)
        ]


def run_folder(settings: Settings) -> Path:
    """The run folder that training under these settings writes to."""
    if settings.output_dir:
        return Path(settings.output_dir)
    integration = settings.odb_integration if settings.loader == "odb" else "none"
    return Path(settings.output_root, f"{settings.loader}-{integration}")


def checkpoints_of(folder: Path) -> list[Path]:
    """The complete checkpoints of a run folder, oldest first."""
    found = [path for path in folder.glob("checkpoint-*") if path.name.removeprefix("checkpoint-").isdigit()]
    return sorted(found, key=lambda path: int(path.name.removeprefix("checkpoint-")))


def refuse_anothers(folder: Path, identity: RunIdentity, settings: Settings) -> None:
    """Refuse a folder that holds another run, or checkpoints that a fresh start would orphan, without ``--overwrite``.

    Raises:
        UserError: it does.
    """
    if settings.overwrite:
        return
    if (folder / IDENTITY_FILE).is_file():
        differing = identity.differs_from(RunIdentity(**read_json(folder / IDENTITY_FILE)))
        if settings.resume is None and any(folder.glob("train_summary_*.json")):
            differing += _other_settings(folder, settings)
        if differing:
            raise UserError(
                f"run folder {folder} was made with other settings: {', '.join(differing)}",
                "give another --output-dir, or --overwrite to replace it",
            )
    if settings.resume is None and (kept := checkpoints_of(folder)):
        raise UserError(
            f"run folder {folder} holds {kept[-1].name}",
            "give --resume newest to go on from it, or --overwrite to start again",
        )


def _other_settings(folder: Path, settings: Settings) -> list[str]:
    """The deciding settings in which the run that ended in ``folder`` differs from this one, with both values."""
    try:
        earlier = yaml.safe_load((folder / SETTINGS_FILE).read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        return [f"{SETTINGS_FILE} cannot be read ({' '.join(str(error).split())})"]
    now = settings.model_dump()
    there = {name: earlier.get(name, Settings.model_fields[name].default) for name in DECIDING}
    return [f"{name} ({there[name]!r} there, {now[name]!r} now)" for name in DECIDING if there[name] != now[name]]


def forget_the_former_model(folder: Path, *, another_is_saved: bool) -> None:
    """Remove what an earlier run left about its model, now that another has been trained in its place.

    Evaluations would be taken for the new model's, and a model that stays would be evaluated as if it were the new one.
    """
    for name in (VALIDATION_FOLDER, BENCHMARK_FOLDER, "adapter"):
        shutil.rmtree(folder / name, ignore_errors=True)
    if not another_is_saved:
        for path in (folder / "config.json", *folder.glob("model*.safetensors*")):
            path.unlink(missing_ok=True)


def claim(folder: Path, identity: RunIdentity, settings: Settings) -> None:
    """Make ``folder`` this run's: clear what a fresh start replaces, write who owns it.

    Raises:
        UserError: it is another's (`refuse_anothers`), or cannot be written to.
    """
    refuse_anothers(folder, identity, settings)
    if settings.resume is None:
        for path in checkpoints_of(folder):
            shutil.rmtree(path)
    shutil.rmtree(folder / PARTIAL_CHECKPOINTS, ignore_errors=True)
    write_json(folder / IDENTITY_FILE, asdict(identity))
    write_settings(folder, settings)


def write_settings(folder: Path, settings: Settings) -> None:
    """Write ``run_settings.yaml``, which ``--settings`` takes to repeat the run."""
    values: dict[str, Any] = settings.model_dump(exclude_none=True, exclude={"overwrite", "resume"})
    with writing(folder / SETTINGS_FILE) as stream:
        yaml.safe_dump(values, stream, sort_keys=False, allow_unicode=True)
