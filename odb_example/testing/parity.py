"""Is a recorded step the objective it claims to be? The steps of a run against one process over the same samples.

`note_and_train` runs in every rank: it writes down which samples the first steps hold, as the loader hands them out,
then trains as the command does. `replay` takes those steps in one process, sample by sample, unpadded, with its own
cross entropy and plain AdamW, and gives loss and gradient norm of each; `differences` sets them beside the run's.
Float32 throughout: rounding of another precision would hide a wrong weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F

from odb_example import distributed
from odb_example.data.collate import split_batch
from odb_example.data.samples import Sample
from odb_example.files import read_json, write_json
from odb_example.models.loading import load_model, load_processor
from odb_example.settings import Settings
from odb_example.train import trainer
from odb_example.train.inputs import open_inputs
from odb_example.train.records import StepRecord, read_steps
from odb_example.train.run_folder import run_folder

NOTED = "noted_steps.json"
NOTED_STEPS = 4


@dataclass(frozen=True, slots=True)
class Replayed:
    """One optimizer step taken by one process: mean loss per label token (nats), gradient norm before clipping."""

    loss: float
    grad_norm: float
    label_tokens: int
    samples: int


def note_and_train(settings: Settings) -> None:
    """Stage for `odb_example.launch.run_stage`: note the samples of the first steps, then train."""
    ranks = distributed.start(settings.device, settings.ddp_timeout)
    processor = load_processor(settings.model, image_max_pixels=settings.image_max_pixels)
    loader = trainer._build_loader(settings, ranks, open_inputs(settings, processor, ranks))
    mine = [batch["sample_index"].tolist() for _, batch in zip(range(NOTED_STEPS), loader, strict=False)]
    loader.close()
    everyone = distributed.gather_objects(mine)
    if ranks.is_main:
        steps = [
            sorted(index for batch in together for index in batch if index >= 0)
            for together in zip(*everyone, strict=True)
        ]
        folder = run_folder(settings)
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / NOTED, steps)
    distributed.barrier()
    trainer.train(settings)


def replay(settings: Settings, recorded: Sequence[StepRecord], device: torch.device) -> list[Replayed]:
    """Take the noted steps again in this process, at the learning rates of the run."""
    steps: list[list[int]] = read_json(run_folder(settings) / NOTED)
    processor = load_processor(settings.model, image_max_pixels=settings.image_max_pixels)
    alone = distributed.Ranks(rank=0, world_size=1, local_rank=0, device=device)
    training = open_inputs(settings, processor, alone).training
    position = {int(index): place for place, index in enumerate(training.indices)}
    model = load_model(settings.model, dtype=torch.float32).to(device).train()  # type: ignore[arg-type]
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.0)
    taken = []
    for indices, record in zip(steps, recorded, strict=False):
        samples = [training[position[index]] for index in indices]
        total = sum(int((sample["labels"][1:] != -100).sum()) for sample in samples)
        optimizer.zero_grad()
        loss = sum(_backward(model, sample, total, device) for sample in samples)
        norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm))
        optimizer.param_groups[0]["lr"] = record.lr
        optimizer.step()
        taken.append(Replayed(loss=loss, grad_norm=norm, label_tokens=total, samples=len(samples)))
    return taken


def _backward(model: torch.nn.Module, sample: Sample, total: int, device: torch.device) -> float:
    batch = {
        name: value.to(device)[None]
        if name in ("input_ids", "attention_mask", "labels", "mm_token_type_ids")
        else value
        for name, value in sample.items()
    }
    inputs, _ = split_batch(batch)
    inputs = {name: value.to(device) for name, value in inputs.items()}
    labels = inputs.pop("labels")[0, 1:]
    logits = model(**inputs, use_cache=False).logits[0, :-1]
    loss = F.cross_entropy(logits.float(), labels, ignore_index=-100, reduction="sum") / total
    loss.backward()
    return float(loss.detach())


def recorded_steps(folder: Path) -> list[StepRecord]:
    """The first steps of a run folder, as many as were noted."""
    return read_steps(folder, up_to=NOTED_STEPS)
