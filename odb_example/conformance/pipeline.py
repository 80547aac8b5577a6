"""What is under test: a frozen value of optional parts, each a plain callable or value.

Give what your stack has; a check that lacks a part reports itself as not applicable and says what to provide. A wrong
stack is ``dataclasses.replace(right, collate=...)``, which is how planted faults are written. `PARTS` describes each
part in the words a report uses.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, TypeVar, get_type_hints

import torch

from odb_example.data.records import Record
from odb_example.errors import UserError

if TYPE_CHECKING:
    from PIL.Image import Image

Sample = Mapping[str, torch.Tensor]
Batch = Mapping[str, Any]
ImageBytes = Callable[[str], bytes]
Made = TypeVar("Made")

# Per-token fields of a sample. Whatever else is a tensor is concatenated by a collator, not padded.
SEQUENCE_FIELDS = ("input_ids", "attention_mask", "labels", "mm_token_type_ids", "token_type_ids", "position_ids")
# What travels beside the model's inputs.
BESIDE_FIELDS = ("labels", "sample_index", "odb_n_patches", "total_batch_size", "local_batch_size",
                 "odb_total_tokens", "odb_local_tokens", "odb_step_info")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTotals:
    """What one optimizer step holds over all ranks and accumulated batches: what a loss may divide by.

    Attributes:
        label_tokens: labels that some position predicts.
        samples: samples with at least one such label.
        input_tokens: tokens of the samples, prompts and visual tokens included, padding not.
        batches: batches of the step, over all ranks and accumulation steps.
        world_size: ranks.
    """

    label_tokens: int
    samples: int
    input_tokens: int
    batches: int
    world_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A multiple-choice item to score: letters A, B, ... for the options in order."""

    question: str
    options: tuple[str, ...]
    images: tuple[Image, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """Log-probability (nats, over the whole vocabulary) of each letter, and the letter chosen."""

    scores: Mapping[str, float]
    prediction: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationLoss:
    """Loss over held-out samples: mean of the samples' means, mean over all label tokens, and how many those are."""

    sample_mean: float
    token_mean: float
    label_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkFiles:
    """The parsed files of one multiple-choice run, with the field names of the public example.

    Attributes:
        score_audit: digests and counts written beside the rows; empty where a stack writes none.
    """

    results: Mapping[str, Any]
    predictions: Sequence[Mapping[str, Any]]
    excluded: Sequence[Mapping[str, Any]]
    score_audit: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedStep:
    """One optimizer step as a training run recorded it, summed over ranks.

    Attributes:
        samples: indices of the samples trained on, repeats included as often as they counted.
        loss: the reported objective, in nats, before the weights changed.
    """

    samples: tuple[int, ...]
    label_tokens: int
    input_tokens: int
    padded_tokens: int
    loss: float
    learning_rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """A short training run: what it was given, what it says it did.

    Attributes:
        given: indices of the training samples; each belongs once into every epoch.
        warmup_steps: steps in which the learning rate rises.
        seconds: the run's training time, the base of ``samples_per_second``.
    """

    given: Sequence[int]
    epochs: int
    warmup_steps: int
    steps: Sequence[TrainedStep]
    emitted_samples: int
    seconds: float
    samples_per_second: float


class Collate(Protocol):
    def __call__(self, samples: Sequence[Sample], /) -> Batch: ...


class MakeLoader(Protocol):
    def __call__(self, kind: str, *, rank: int, world_size: int) -> Iterable[Batch]: ...


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """The stack under test; each part with its words. The guide is docs/conformance.md."""

    name: str = "pipeline"

    # data at rest
    records: Annotated[Sequence[Record] | None, "`records`: Records in the order of the samples"] = None
    image_bytes: Annotated[ImageBytes | None, "`image_bytes(path)`: the bytes of a record's image"] = None
    write_store: Annotated[
        Callable[[Path, Sequence[Record], Mapping[str, bytes]], None] | None,
        "`write_store(folder, records, images by path)`: write a store",
    ] = None
    open_store: Annotated[
        Callable[[Path], Any] | None, "`open_store(folder)`: a sequence of Records with `image_bytes(path)`"
    ] = None
    split: Annotated[
        Callable[[int, float, int], tuple[Sequence[int], Sequence[int]]] | None,
        "`split(num_records, val_size, seed)`: (training indices, held-out indices)",
    ] = None

    # finished samples
    sample: Annotated[Callable[[int], Sample] | None, "`sample(index)`: the finished sample of records[index]"] = None
    length: Annotated[Callable[[int], int] | None, "`length(index)`: its number of tokens, known without making it"] = (
        None
    )
    finish: Annotated[
        Callable[[Record, ImageBytes], Sample] | None,
        "`finish(record, image_bytes)`: the finished sample of any Record",
    ] = None

    # batches
    collate: Annotated[Collate | None, "`collate(samples)`: the padded batch"] = None
    loader: Annotated[MakeLoader | None, "`loader(kind, rank=, world_size=)`: an iterable of batches"] = None
    loader_kinds: Annotated[tuple[str, ...], "`loader_kinds`: loaders that need no process"] = ("standard",)
    process_kinds: Annotated[tuple[str, ...], "`process_kinds`: loaders that start processes, ODB among them"] = ()
    budget_kinds: Annotated[tuple[str, ...], "`budget_kinds`: loaders that keep `token_budget`"] = ()

    # training
    model: Annotated[Callable[[], torch.nn.Module] | None, "`model()`: the model"] = None
    loss: Annotated[
        Callable[[torch.nn.Module, Batch, StepTotals], torch.Tensor] | None,
        "`loss(model, batch, totals)`: this batch's share of the step's loss; the shares add up to it",
    ] = None
    run: Annotated[Callable[[], TrainingRun] | None, "`run()`: a short TrainingRun"] = None

    # evaluation
    score: Annotated[Callable[[Sequence[Choice]], Sequence[Scored]] | None, "`score(items)`: Choices to Scored"] = None
    validation_loss: Annotated[
        Callable[[Sequence[int], int], ValidationLoss] | None,
        "`validation_loss(indices, token_budget)`: ValidationLoss over these samples",
    ] = None
    benchmark: Annotated[Callable[[], BenchmarkFiles] | None, "`benchmark()`: BenchmarkFiles of a run"] = None
    audit: Annotated[
        Callable[[BenchmarkFiles], Sequence[str]] | None, "`audit(files)`: what is wrong with them, in words"
    ] = None

    # what a check must know to judge
    processor: Annotated[Any, "`processor`: the checkpoint's own processor, or its tokenizer with a chat template"] = (
        None
    )
    refusal: Annotated[type[Exception], "`refusal`: what is raised on bad input"] = UserError
    pad_id: Annotated[int | None, "`pad_id`: token id of padding"] = None
    padding_side: Annotated[Literal["right", "left"], "`padding_side`: of `collate`"] = "right"
    ignore_index: Annotated[int, "`ignore_index`: label of what is not predicted"] = -100
    end_of_turn: Annotated[str, "`end_of_turn`: text of the token that ends an answer"] = "<|im_end|>"
    visual_token_ids: Annotated[tuple[int, ...], "`visual_token_ids`: ids that stand for image features"] = ()
    patches_per_visual_token: Annotated[int, "`patches_per_visual_token`: image patches merged into one token"] = 4
    max_length: Annotated[int | None, "`max_length`: token cap of a sample"] = None
    image_max_pixels: Annotated[int | None, "`image_max_pixels`: pixel cap of an image"] = None
    patch_size: Annotated[int, "`patch_size`: side of an image patch, in pixels"] = 16
    token_budget: Annotated[int | None, "`token_budget`: padded-token cap of a batch with several rows"] = None
    objective: Annotated[Literal["token", "sample"], "`objective`: what the loss is a mean over"] = "token"
    examples: Annotated[int, "`examples`: samples each check looks at"] = 32

    def __post_init__(self) -> None:
        """Raises: UserError: a value that no check could make sense of."""
        choices: tuple[tuple[str, tuple[str, ...]], ...] = (
            ("padding_side", ("right", "left")),
            ("objective", ("token", "sample")),
        )
        for name, allowed in choices:
            if getattr(self, name) not in allowed:
                raise UserError(f"Pipeline({name}={getattr(self, name)!r})", f"give {' or '.join(map(repr, allowed))}")
        if self.examples < 1:
            raise UserError(f"Pipeline(examples={self.examples})", "give 1 or more samples to look at")
        if self.records is not None and not len(self.records):
            raise UserError("Pipeline(records) holds no record", "give it those that the samples are made of")

    @property
    def indices(self) -> tuple[int, ...]:
        """The samples that checks look at, spread evenly over all: sources stand in a store one after the other."""
        count = min(self.examples, self.size)
        return tuple(number * self.size // count for number in range(count))

    @cached_property
    def samples(self) -> tuple[Sample, ...]:
        """The samples of `indices`, made once."""
        assert self.sample is not None
        return tuple(self.sample(index) for index in self.indices)

    def batch(self, samples: Sequence[Sample]) -> Batch:
        """The padded batch of copies of ``samples``: a collator that writes into them spoils no other check."""
        assert self.collate is not None
        copies = [
            {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in sample.items()}
            for sample in samples
        ]
        return self.collate(copies)

    @property
    def numbered(self) -> Iterable[tuple[int, Sample]]:
        """`samples` with their indices."""
        return zip(self.indices, self.samples, strict=True)

    @cached_property
    def network(self) -> torch.nn.Module:
        """The model, without dropout, made once."""
        assert self.model is not None
        return self.model().eval()

    @cached_property
    def memory(self) -> dict[tuple[Any, tuple[str, ...]], Any]:
        """What checks of this pipeline share, by key; see `once`."""
        return {}

    def once(self, key: tuple[Any, ...], parts: tuple[str, ...], make: Callable[[], Made]) -> Made:
        """``make()``, which rests on ``parts`` alone, kept for the next check that asks for ``key``."""
        if (key, parts) not in self.memory:
            self.memory[key, parts] = make()
        made: Made = self.memory[key, parts]
        return made

    def replaced(self, wrong: Pipeline) -> Pipeline:
        """``wrong`` with what this pipeline remembers of the parts that both share."""
        changed = changed_parts(self, wrong)
        wrong.memory.update({entry: made for entry, made in self.memory.items() if not changed & set(entry[1])})
        return wrong

    @property
    def size(self) -> int:
        """Number of samples."""
        return len(self.records) if self.records is not None else self.examples

    @property
    def takes_images(self) -> bool:
        return bool(self.visual_token_ids)

    @property
    def tokenizer(self) -> Any:
        return getattr(self.processor, "tokenizer", self.processor)

    def part(self, name: str) -> Any:
        """A part that is there."""
        assert self.has(name), name
        return getattr(self, name)

    def has(self, part: str) -> bool:
        """Whether ``part`` was given."""
        return getattr(self, part) not in (None, ())

    def named(self, index: int) -> str:
        """What messages call a sample."""
        return self.records[index].id if self.records is not None else str(index)


PARTS: Mapping[str, str] = {
    name: hint.__metadata__[0]
    for name, hint in get_type_hints(Pipeline, include_extras=True).items()
    if hasattr(hint, "__metadata__")
}
"""Words for each part, by name."""


def changed_parts(one: Pipeline, other: Pipeline) -> frozenset[str]:
    """Names of the parts in which two pipelines differ by identity."""
    return frozenset(name for name in PARTS if getattr(one, name) is not getattr(other, name))


def load_pipeline(spec: str | None = None) -> Pipeline:
    """The pipeline that ``package.module:build`` makes; this project's own for None.

    Raises:
        UserError: no such module or function, one that fails, or one that makes something else.
    """
    if spec is None:
        from odb_example.conformance import ours

        return ours.build()
    module_name, _, attribute = spec.partition(":")
    if not (attribute.isidentifier() and all(part.isidentifier() for part in module_name.split("."))):
        raise UserError(f"--pipeline {spec!r} names no function of a module", "write package.module:function")
    module = _module(module_name, spec)
    build = getattr(module, attribute, None)
    if not callable(build):
        raise UserError(f"--pipeline {spec}: {module_name} has no function {attribute}")
    try:
        built = build()
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise _crash(spec, "its function fails", error) from error
    if not isinstance(built, Pipeline):
        raise UserError(f"--pipeline {spec} made a {type(built).__name__}", "return odb_example.conformance.Pipeline")
    return built


def _module(name: str, spec: str) -> Any:
    import sys

    if os.getcwd() not in sys.path:  # as `python -m` has it: the console script does not look where it is called
        sys.path.insert(0, os.getcwd())
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not name.startswith(error.name):
            raise _crash(spec, f"{name} cannot be imported", error) from error
        mend = f"write {spec.replace('.py:', ':')}" if name.endswith(".py") else "is its folder on PYTHONPATH?"
        raise UserError(f"--pipeline {spec}: there is no module {name}", mend) from error
    except (Exception, SystemExit) as error:
        raise _crash(spec, f"{name} cannot be imported", error) from error


def _crash(spec: str, what: str, error: BaseException) -> UserError:
    """Code of the user's own that fails while its pipeline is built, in one line with the place."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = "" if frame.filename.startswith("<") else f" ({Path(frame.filename).name}, line {frame.lineno})"
    module, _, build = spec.partition(":")
    mend = f"python -c 'import {module}; {module}.{build}()' shows all of it"
    return UserError(f"--pipeline {spec}: {what}: {type(error).__name__}: {error}{place}", mend)
