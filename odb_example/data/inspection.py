"""One record looked at closely: what its sample holds, and whether the sample keeps its promises.

The promises are few: a batch of it gives it back, the length known beforehand is its length, no visual token has a
label, and the placeholders in its text are as many as its grids make. What breaks one is a failure in words.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch

from odb_example.data.collate import SEQUENCE_KEYS, Collator, split_batch, unpad
from odb_example.data.encoding import IGNORE_INDEX
from odb_example.data.samples import FinishedSamples, Sample

_VISION_TOKENS = ("<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>")


@dataclass(frozen=True, slots=True)
class VisionTensor:
    """Shape, type and size of one tensor for the vision tower."""

    shape: list[int]
    dtype: str
    numel: int


@dataclass(frozen=True, slots=True)
class Inspected:
    """One sample in figures; the fields of the report."""

    index: int
    source: str
    has_image: bool
    num_record_images: int
    input_length: int
    label_tokens: int
    known_vision_token_count: int
    known_vision_label_values: list[int]
    vision_tensors: dict[str, VisionTensor]
    model_batch_keys: list[str]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def vision_token_ids(processor: Any) -> list[int]:
    """Ids that stand for or frame images: the placeholder, and those of Qwen's vision tokens that the tokenizer has."""
    known = processor.tokenizer.get_added_vocab()
    return sorted({processor.image_token_id, *(known[token] for token in _VISION_TOKENS if token in known)})


def inspect_sample(samples: FinishedSamples, position: int, collator: Collator) -> tuple[Inspected, Sample, list[str]]:
    """The sample at ``position`` in figures, itself, and what is wrong with it.

    Raises:
        SampleError: it cannot be made.
    """
    record, sample = samples.record(position), samples[position]
    vision = torch.isin(sample["input_ids"], torch.tensor(vision_token_ids(samples.maker.processor)))
    inputs, _ = split_batch(collator([sample]))
    inspected = Inspected(
        index=samples.indices[position],
        source=record.source,
        has_image=bool(record.images),
        num_record_images=len(record.images),
        input_length=len(sample["input_ids"]),
        label_tokens=int((sample["labels"] != IGNORE_INDEX).sum()),
        known_vision_token_count=int(vision.sum()),
        known_vision_label_values=sorted(set(sample["labels"][vision].tolist())),
        vision_tensors={
            name: VisionTensor(list(value.shape), str(value.dtype).removeprefix("torch."), value.numel())
            for name, value in inputs.items()
            if name not in SEQUENCE_KEYS
        },
        model_batch_keys=sorted(inputs),
    )
    return inspected, sample, list(_broken_promises(samples, position, sample, inspected, collator))


def _broken_promises(
    samples: FinishedSamples, position: int, sample: Sample, inspected: Inspected, collator: Collator
) -> Iterator[str]:
    known = samples.length(position)
    if known != inspected.input_length:
        yield f"its length was said to be {known} and is {inspected.input_length}"
    if inspected.known_vision_label_values not in ([], [IGNORE_INDEX]):
        yield f"visual tokens carry labels {inspected.known_vision_label_values}"
    if not inspected.label_tokens:
        yield "it has no label"
    if "image_grid_thw" in sample:
        processor = samples.maker.processor
        expected = int(sample["image_grid_thw"].prod(dim=1).sum()) // processor.image_processor.merge_size**2
        found = int((sample["input_ids"] == processor.image_token_id).sum())
        if found != expected:
            yield f"it holds {found} image placeholders where its grids make {expected}"
    padded = collator([sample, {**sample, **_longer(sample)}])
    for name, value in sample.items():
        if not torch.equal(unpad(padded, 0, name), value):
            yield f"a batch does not give its {name} back"


def _longer(sample: Sample) -> Sample:
    """The per-token fields one token longer, so that a batch with the sample must pad it."""
    return {name: torch.cat([value, value[-1:]]) for name, value in sample.items() if name in SEQUENCE_KEYS}
