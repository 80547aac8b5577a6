"""Stop anywhere, go on anywhere: what a checkpoint holds beside the Trainer's own files, and how it becomes complete.

The Trainer writes weights, optimizer, schedule and random states into ``.checkpoints-being-written/checkpoint-N``. When
every rank is done, the loader's state (epoch, samples trained on), the step records and what the run was made from are
added, and the folder is renamed into the run folder: a checkpoint is complete or absent. Resuming compares what it was
made from with what is asked for now, and names what differs. The number of ranks may change.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from odb_example.distributed import barrier, gather_objects
from odb_example.errors import UserError
from odb_example.files import read_json, write_json
from odb_example.settings import Settings
from odb_example.train.exact_trainer import ExactTrainer
from odb_example.train.loaders import TrainLoader
from odb_example.train.records import Recorder, StepRecord, read_steps
from odb_example.train.run_folder import RunIdentity, checkpoints_of

STATE_FILE = "odb_example_state.json"

# Settings under which the rest of a run would not be the rest of *this* run.
FIXED_SETTINGS = (
    "max_length", "image_max_pixels", "processor_backend", "token_budget", "max_patches", "fixed_batch_size",
    "loss_scaling", "max_steps", "num_train_epochs", "gradient_accumulation_steps", "lr", "lr_scheduler_type",
    "warmup_ratio", "max_grad_norm", "seed", "trainable_keywords", "freeze_vision_tower",
    "freeze_multimodal_projector", "freeze_language_model", "lora_r", "lora_alpha", "lora_dropout",
    "lora_target_modules",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Where a run goes on.

    Attributes:
        checkpoint: folder for the Trainer.
        loader: state for the loader.
        steps: records of the steps taken before.
    """

    checkpoint: Path
    loader: dict[str, Any]
    steps: list[StepRecord]


def find_resume_point(folder: Path, identity: RunIdentity, settings: Settings) -> ResumePoint | None:
    """What ``--resume`` asks for; None without it.

    Raises:
        UserError: no such checkpoint, or one made with other data or settings, by name of what differs.
    """
    if settings.resume is None:
        return None
    if settings.resume in ("newest", "", "true"):
        found = checkpoints_of(folder)
        if not found:
            raise UserError(f"--resume: no complete checkpoint in {folder}", "train with --save-strategy first")
        checkpoint = found[-1]
    else:
        checkpoint = Path(settings.resume)
    if not (checkpoint / STATE_FILE).is_file():
        raise UserError(f"--resume: {checkpoint} is no complete checkpoint of a run", "name a checkpoint-N folder")
    state = read_json(checkpoint / STATE_FILE)
    differing = identity.differs_from(RunIdentity(**state["identity"])) + [
        f"{name} ({state['settings'][name]!r} there, {getattr(settings, name)!r} now)"
        for name in FIXED_SETTINGS
        if state["settings"][name] != getattr(settings, name)
    ]
    if differing:
        raise UserError(f"--resume: {checkpoint} was made with another {', '.join(differing)}", "resume with the same")
    return ResumePoint(checkpoint, state["loader"], read_steps(checkpoint, int(state["steps"])))


class TrainedSamples(TrainerCallback):
    """Tells the loader what was trained on, and makes checkpoints whole.

    Ranks keep their samples to themselves until an epoch ends or a checkpoint is written: one exchange then, none per
    step.
    """

    def __init__(
        self,
        trainer: ExactTrainer,
        loader: TrainLoader,
        recorder: Recorder,
        identity: RunIdentity,
        settings: Settings,
        folder: Path,
    ) -> None:
        self._trainer, self._loader, self._recorder = trainer, loader, recorder
        self._identity, self._settings, self._folder = identity, settings, folder

    def _tell(self) -> None:
        everyone = [index for rank in gather_objects(self._trainer.trained) for index in rank]
        self._trainer.trained.clear()
        if everyone:
            self._loader.mark_done(everyone)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._tell()

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._tell()
        barrier()  # every rank has written its part
        if state.is_world_process_zero:
            written = Path(str(args.output_dir), f"checkpoint-{state.global_step}")
            self._complete(written)
            self._recorder.write(self._folder)
        barrier()  # nobody goes on, or ends, before it stands

    def _complete(self, written: Path) -> None:
        self._recorder.write(written)
        write_json(
            written / STATE_FILE,
            {
                "loader": self._loader.state_dict(),
                "steps": len(self._recorder.records),
                "identity": asdict(self._identity),
                "settings": {name: getattr(self._settings, name) for name in FIXED_SETTINGS},
            },
        )
        target = self._folder / written.name
        shutil.rmtree(target, ignore_errors=True)
        os.replace(written, target)
        limit = self._settings.save_total_limit
        for old in checkpoints_of(self._folder)[: -limit if limit else 0]:
            shutil.rmtree(old)
