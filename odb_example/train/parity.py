"""Gradient of every optimizer step against one process over the union batch: what makes two loaders comparable.

`measure_ranks` runs in each rank: for every loader, accumulation and objective it trains one short epoch, the last
window of an accumulation included, and before each update compares the gradient that DDP left with a reference. The
reference knows nothing of the run but which samples the step held (by ``sample_index``, over all ranks): it makes those
samples anew, runs them one by one, unpadded, without blank images or weightless copies, in float64, and weighs them by
the objective's definition. `parity` does so on 1, 2 and 4 ranks and prints the table, ODB's own weights beside it.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console, JustifyMethod
from rich.table import Table
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from odb_example import distributed
from odb_example.console import report_console
from odb_example.data.collate import Collator, split_batch
from odb_example.data.samples import FinishedSamples
from odb_example.files import read_json, write_json
from odb_example.models.loading import load_processor
from odb_example.settings import Settings
from odb_example.train.exact_trainer import ExactTrainer
from odb_example.train.inputs import open_inputs
from odb_example.train.objective import IGNORE_INDEX, ExactObjective
from odb_example.train.records import Recorder
from odb_example.train.trainer import assemble, model_of

STAGE = "odb_example.train.parity:measure_ranks"
EXACT = ("token", "sample")
TOLERANCE = 1e-5
WORLD_SIZES = (1, 2, 4)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    Attributes:
        steps: optimizer steps compared.
        worst: the largest relative error ||g - r|| / ||r|| of any step.
        mean: the mean of them.
        worst_loss: the largest relative error of the reported loss.
        samples, distinct: rows trained on, and how many different ones.
    """

    world_size: int
    loader: str
    accumulation: int
    objective: str
    steps: int
    worst: float
    mean: float
    worst_loss: float
    samples: int
    distinct: int

    @property
    def exact(self) -> bool:
        """Whether this row promises to be exact."""
        return self.objective in EXACT


@dataclass(frozen=True, slots=True)
class Case:
    """What one row trains with."""

    loader: str
    accumulation: int
    objective: str


def all_cases() -> Iterator[Case]:
    """Both loaders, accumulation 1 and 4, both exact objectives; ODB's own weights without and with accumulation."""
    for accumulation in (1, 4):
        for loader in ("odb", "standard"):
            for objective in EXACT:
                yield Case(loader, accumulation, objective)
        for weights in ("odb-exact", "odb-approx", "none"):
            yield Case("odb", accumulation, weights)
        yield Case("standard", accumulation, "none")


def reference_gradient(
    model: torch.nn.Module, dataset: FinishedSamples, positions: Sequence[int], objective: ExactObjective
) -> tuple[torch.Tensor, float]:
    """Gradient and value of the objective over ``positions``, one sample at a time; (parameters,) float64.

    Args:
        model: in float64, on the CPU; its gradients are used and cleared.
    """
    model.zero_grad(set_to_none=True)
    collate = Collator(pad_token_id=0)
    samples = [split_batch(collate([dataset[position]]))[0] for position in positions]
    labels = [sample.pop("labels")[0, 1:] for sample in samples]
    counts = [int((row != IGNORE_INDEX).sum()) for row in labels]
    whole = sum(counts) if objective == "token" else sum(count > 0 for count in counts)
    value = 0.0
    for sample, row, count in zip(samples, labels, counts, strict=True):
        if not count:
            continue
        nll = F.cross_entropy(model(**sample).logits[0, :-1], row, ignore_index=IGNORE_INDEX, reduction="sum")
        share = nll / whole if objective == "token" else nll / count / whole
        share.backward()
        value += float(share.detach())
    return flat_gradient(model), value


def flat_gradient(model: torch.nn.Module) -> torch.Tensor:
    """Every parameter's gradient in one float64 vector; zero where a parameter has none."""
    parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    return torch.cat([part.detach().double().flatten().cpu() for part in parts])


class Compare(TrainerCallback):
    """Collects the errors of one run; only the main rank computes references, from what all ranks held."""

    def __init__(self, trainer: ExactTrainer, dataset: FinishedSamples, objective: ExactObjective) -> None:
        assert trainer.model is not None
        self._trainer, self._model, self._dataset, self._objective = trainer, trainer.model, dataset, objective
        self._reference = copy.deepcopy(trainer.model).double().cpu()
        self._position_of = {index: position for position, index in enumerate(dataset.indices)}
        self._seen = 0
        self.errors: list[float] = []
        self.values: list[float] = []
        self.samples: list[int] = []

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        held = self._trainer.trained[self._seen :]
        self._seen = len(self._trainer.trained)
        union = [index for rank in distributed.gather_objects(held) for index in rank]
        self.samples += union
        if not state.is_world_process_zero:
            return
        self._reference.load_state_dict(self._model.state_dict())
        reference, value = reference_gradient(
            self._reference, self._dataset, [self._position_of[index] for index in union], self._objective
        )
        gradient = flat_gradient(self._model)
        self.errors.append(float((gradient - reference).norm() / reference.norm()))
        self.values.append(value)


def measure(settings: Settings, cases: Iterable[Case]) -> list[Row]:
    """The rows of ``cases`` on the ranks this process belongs to; the same on every rank but for errors on rank 0."""
    ranks = distributed.start(settings.device, settings.ddp_timeout)
    model_name = model_of(settings, ranks)
    processor = load_processor(model_name, image_max_pixels=settings.image_max_pixels)
    rows = []
    for case in cases:
        run = settings.model_copy(
            update={
                "loader": case.loader,
                "gradient_accumulation_steps": case.accumulation,
                "loss_scaling": case.objective,
                "fixed_batch_size": 3 if case.loader == "standard" else 1,
            }
        )
        inputs = open_inputs(run, processor, ranks)
        recorder = Recorder(len(inputs.training))
        made = assemble(run, ranks, inputs, model_name, processor, recorder)
        objective: ExactObjective = "sample" if case.objective == "sample" else "token"
        compare = Compare(made.trainer, inputs.training, objective)
        made.trainer.add_callback(compare)
        made.trainer.train()
        losses = [abs(r.loss - v) / v for r, v in zip(recorder.records, compare.values, strict=False) if r.loss]
        rows.append(
            Row(
                world_size=ranks.world_size,
                loader=case.loader,
                accumulation=case.accumulation,
                objective=case.objective,
                steps=len(recorder.records),
                worst=max(compare.errors, default=0.0),
                mean=sum(compare.errors) / max(len(compare.errors), 1),
                worst_loss=max(losses, default=0.0),
                samples=len(compare.samples),
                distinct=len(set(compare.samples)),
            )
        )
    return rows


def measure_ranks(settings: Settings) -> None:
    """`measure` of all cases, with the main rank's rows left in the run folder as ``parity-{world size}.json``."""
    rows = measure(settings, all_cases())
    if distributed.start(settings.device, settings.ddp_timeout).is_main:
        write_json(
            Path(settings.output_dir or ".") / f"parity-{rows[0].world_size}.json", [asdict(row) for row in rows]
        )


def parity(settings: Settings) -> int:
    """Measure on 1, 2 and 4 ranks, print the table; 1 where an exact row is not exact."""
    from odb_example.launch import run_stage

    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="odb-example-parity-") as scratch:
        for world_size in WORLD_SIZES:
            status = run_stage(STAGE, short_run(settings, world_size, Path(scratch)))
            if status:
                return status
            rows += [Row(**row) for row in read_json(Path(scratch) / f"parity-{world_size}.json")]
    folder = Path(settings.output_root) / "parity"
    write_json(folder / "parity.json", [asdict(row) for row in rows])
    show(rows)
    print(f"[odb-parity] {folder / 'parity.json'}")
    return 0 if all(row.worst < TOLERANCE for row in rows if row.exact) else 1


def short_run(settings: Settings, world_size: int, scratch: Path) -> Settings:
    """One short epoch on the CPU, small groups, a learning rate that moves the weights between steps."""
    return settings.model_copy(
        update={
            "num_processes": world_size,
            "device": "cpu",
            "output_dir": str(scratch),
            "train_size": 46,
            "token_budget": 512,
            "buffer_size": 8,
            "num_workers": 1,
            "num_train_epochs": 1.0,
            "max_steps": 0,
            "lr": 1e-3,
            "max_grad_norm": 0.0,
            "deepspeed": "none",
            "fsdp": None,
            "save_strategy": "no",
            "eval_steps": 0,
            "report_to": "none",
            "resume": None,
            "lora_r": 0,
        }
    )


def show(rows: Sequence[Row], console: Console | None = None) -> None:
    """Print the table."""
    table = Table(title="gradient of every optimizer step against one process over the union batch")
    for heading in ("ranks", "loader", "accum.", "objective", "steps", "worst error", "mean", "loss error"):
        justify: JustifyMethod = "left" if heading in ("loader", "objective") else "right"
        table.add_column(heading, justify=justify, no_wrap=heading == "objective")
    for row in rows:
        table.add_row(
            str(row.world_size), row.loader, str(row.accumulation), row.objective, str(row.steps),
            f"{row.worst:.1e}", f"{row.mean:.1e}", f"{row.worst_loss:.1e}",
        )  # fmt: skip
    (console or report_console()).print(table)
