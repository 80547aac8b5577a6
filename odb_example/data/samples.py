"""Record to finished sample: everything a model needs, true length included, before anything is grouped.

`SampleMaker` turns one record and its image bytes into a plain dict of tensors; `FinishedSamples` is the lazy data set
over a store. Nothing downstream adds, masks or drops a token: what `length` says here is what a budget may count on.

Truncation: a conversation longer than ``max_length`` keeps its first ``max_length`` tokens. Where that would cut into
an image or leave no label, the record is refused instead (`SampleError.reason`), never altered further.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset

from odb_example.data.chat import Message, TemplateRefusedError, messages_of
from odb_example.data.encoding import IGNORE_INDEX, ControlTokenError, Encoded
from odb_example.data.images import ImageError, image_size, open_image
from odb_example.data.records import Record
from odb_example.errors import UserError

Sample = dict[str, torch.Tensor]
ReadImage = Callable[[str], bytes]
Size = tuple[int, int]  # height, width
_Result = TypeVar("_Result")
Reason = Literal["image", "image_shape", "template", "no_label", "image_cut", "control_token", "missing_image"]


class SampleError(UserError):
    """A record that cannot become a sample; ``reason`` is one word for counting, the message says the rest."""

    def __init__(self, record_id: str, reason: Reason, problem: str, mend: str = "") -> None:
        self.record_id, self.reason = record_id, reason
        super().__init__(f"record {record_id!r}: {problem}", mend or "mend it, or leave it out: --on-bad-record skip")


@dataclass(frozen=True, slots=True)
class Made:
    """One conversation as a processor's kind makes it, untruncated.

    Attributes:
        fields: further per-token fields the model takes, int64 of shape (length,).
        features: what the vision tower takes.
    """

    encoded: Encoded
    fields: dict[str, torch.Tensor]
    features: dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Measured:
    """Tokens of a sample: all of them, those with a label, and image placeholders."""

    length: int
    label_tokens: int
    visual_tokens: int


class Backend(Protocol):
    """How one kind of processor turns messages and images into tokens; deterministic, picklable.

    Both methods raise `TemplateRefusedError`, `ControlTokenError` for text that would have to become a control token,
    and ValueError where the processor refuses an image's shape.
    """

    def measure(
        self, messages: Sequence[Message], sizes: Sequence[Size], *, generation_prompt: bool = False
    ) -> Encoded | None:
        """What `make` would encode, from the images' sizes alone; None where only pixels tell."""
        ...

    def make(
        self, messages: Sequence[Message], images: Sequence[Image.Image], *, generation_prompt: bool = False
    ) -> Made:
        """The conversation, with one call of the image processor; ``generation_prompt`` asks for an answer."""
        ...


class SampleMaker:
    """Makes finished samples with one checkpoint's processor; deterministic and picklable.

    Args:
        processor: as `odb_example.models.loading.load_processor` gives it, image cap included.
        max_length: token cap of one sample, visual tokens included.
        backend: ``qwen_vl`` for Qwen2-VL, Qwen2.5-VL and Qwen3-VL, ``generic`` for other image-text processors,
            ``auto`` to find out.

    Raises:
        UserError: the processor does not fit the backend.
    """

    def __init__(self, processor: Any, *, max_length: int, backend: str = "auto") -> None:
        self.processor = processor
        self.max_length = max_length
        # The backends need this module's types, and which of them is wanted shows only here.
        from odb_example.data.backends import choose_backend

        self.backend: Backend = choose_backend(processor, backend)

    def finish(self, record: Record, image_bytes: ReadImage) -> Sample:
        """One finished sample; see the module's words for truncation.

        Returns:
            ``input_ids``, ``attention_mask``, ``labels`` and, where the model takes it, ``mm_token_type_ids``: int64
            of shape (length,); with images ``pixel_values`` (patches, dim) and ``image_grid_thw`` (images, 3);
            ``odb_n_patches``: int64 of shape (), patches before merging.

        Raises:
            SampleError: the record cannot become a sample.
        """
        images = [self._image(record, path, open_image, image_bytes) for path in record.images]
        made = self._refusing(record, lambda: self.backend.make(messages_of(record), images))
        encoded = truncated(record.id, made.encoded, self.max_length)
        sample = _sample(encoded, made)
        sample["labels"] = token_tensor(encoded.labels)
        return sample

    def length(self, record: Record, image_bytes: ReadImage) -> int:
        """``len(input_ids)`` of the finished sample, from its text and its images' headers.

        Raises:
            SampleError: as `finish`, as far as the headers tell.
        """
        return self.measure(record, image_bytes).length

    def measure(self, record: Record, image_bytes: ReadImage) -> Measured:
        """`length`, and how much of it is images and labels.

        Raises:
            SampleError: as `length`.
        """
        sizes = [self._image(record, path, image_size, image_bytes) for path in record.images]
        encoded = self._refusing(record, lambda: self.backend.measure(messages_of(record), sizes))
        if encoded is None:
            sample = self.finish(record, image_bytes)
            ids, labels = sample["input_ids"].tolist(), sample["labels"].tolist()
        else:
            encoded = truncated(record.id, encoded, self.max_length)
            ids, labels = encoded.ids, encoded.labels
        return Measured(
            length=len(ids),
            label_tokens=len(labels) - labels.count(IGNORE_INDEX),
            visual_tokens=ids.count(self.processor.image_token_id) if record.images else 0,
        )

    def check(self, record: Record, image_bytes: ReadImage) -> int:
        """`length`, after decoding the images: what passes here passes `finish`.

        Raises:
            SampleError: the record cannot become a sample.
        """
        for path in record.images:
            self._image(record, path, open_image, image_bytes)
        return self.length(record, image_bytes)

    def prompt(self, text: str, images: Sequence[Image.Image]) -> Sample:
        """A question to be answered, images first, for scoring: no labels, and never cut.

        Raises:
            ValueError: the processor refuses an image's shape, or a control token in the text.
        """
        messages = (Message("user", (*[None] * len(images), text)),)
        made = self.backend.make(messages, images, generation_prompt=True)
        return _sample(made.encoded, made)

    def prompt_length(self, text: str, sizes: Sequence[Size]) -> int | None:
        """Tokens of `prompt` for images of ``sizes`` (height, width); None where only pixels tell.

        Raises:
            ValueError: as `prompt`.
        """
        messages = (Message("user", (*[None] * len(sizes), text)),)
        encoded = self.backend.measure(messages, sizes, generation_prompt=True)
        return None if encoded is None else len(encoded.ids)

    def _refusing(self, record: Record, work: Callable[[], _Result]) -> _Result:
        try:
            return work()
        except TemplateRefusedError as error:
            raise SampleError(record.id, "template", str(error)) from error
        except ControlTokenError as error:
            raise SampleError(record.id, "control_token", str(error)) from error
        except ValueError as error:
            raise SampleError(record.id, "image_shape", str(error)) from error

    def _image(self, record: Record, path: str, read: Callable[[bytes], Any], image_bytes: ReadImage) -> Any:
        try:
            return read(image_bytes(path))
        except ImageError as error:
            raise SampleError(record.id, "image", f"{path}: {error}") from error
        except (UserError, OSError) as error:
            raise SampleError(record.id, "missing_image", f"{path}: {error}") from error


def truncated(record_id: str, encoded: Encoded, max_length: int) -> Encoded:
    """The first ``max_length`` tokens, images whole and at least one label that the model's shift by one reads.

    Raises:
        SampleError: an image would be cut or lost, or no label is left.
    """
    total = len(encoded.ids)
    if total > max_length:
        if encoded.images and encoded.images[-1][1] > max_length:
            raise SampleError(
                record_id, "image_cut", f"{total} tokens, and the cap of {max_length} would cut an image or lose it",
                "raise --max-length or lower --image-max-pixels",
            )  # fmt: skip
        encoded = Encoded(encoded.ids[:max_length], encoded.labels[:max_length], encoded.images)
    if all(label == IGNORE_INDEX for label in encoded.labels[1:]):
        cut = f" within the first {max_length} of {total} tokens" if total > max_length else ""
        raise SampleError(record_id, "no_label", f"no assistant text{cut} to learn from")
    return encoded


def token_tensor(values: Sequence[int]) -> torch.Tensor:
    """int64 of shape (length,); by way of numpy, which reads a list five times as fast as torch does."""
    return torch.from_numpy(np.array(values, dtype=np.int64))


def _sample(encoded: Encoded, made: Made) -> Sample:
    ids = token_tensor(encoded.ids)
    fields = {name: values[: len(ids)] for name, values in made.fields.items()}
    patches = len(made.features["pixel_values"]) if made.features else 0
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        **fields,
        **made.features,
        "odb_n_patches": torch.tensor(patches, dtype=torch.int64),
    }


class FinishedSamples(Dataset[Sample]):
    """Finished samples of some records of a store, made on access; what ODB's contract calls ready.

    Args:
        store: records and image bytes.
        indices: store indices of the samples, in order.
        maker: makes them.
    """

    odb_ready = True

    def __init__(self, store: Any, indices: Sequence[int], maker: SampleMaker) -> None:
        self.store = store
        self.indices = [int(index) for index in indices]
        self.maker = maker

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, position: int) -> Sample:
        """The finished sample with its store index as ``sample_index``, shape (1,).

        Raises:
            IndexError: past the end; loaders that iterate rely on it.
            SampleError: the record cannot become one.
        """
        sample = self.maker.finish(self.record(position), self.store.image_bytes)
        sample["sample_index"] = torch.tensor([self.indices[position]], dtype=torch.int64)
        return sample

    def length(self, position: int) -> int:
        """``len(self[position]["input_ids"])`` without decoding pixels."""
        return self.maker.length(self.record(position), self.store.image_bytes)

    def record(self, position: int) -> Record:
        """The record behind a sample."""
        if not 0 <= position < len(self.indices):
            raise IndexError(f"sample {position} of {len(self.indices)}")
        return self.store[self.indices[position]]
