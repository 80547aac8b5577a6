"""Samples the Qwen-VL way: placeholders by id, one grid per image, text encoded run by run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image

from odb_example.data.chat import ChatTemplate, Message, Shape, shape_of
from odb_example.data.encoding import ConversationEncoder, Encoded, Program
from odb_example.data.samples import Made, Size, token_tensor
from odb_example.data.vision import GridVision
from odb_example.errors import UserError

_PROBE = (
    Message("user", (None, "Which one?\n\n ", None)),
    Message("assistant", (" 7, \u4e2d e\u0301.\n",)),
    Message("user", ("Sure?",)),
    Message("assistant", ("Yes",)),
)


class QwenBackend:
    """Qwen2-VL, Qwen2.5-VL, Qwen3-VL and processors that expand placeholders as theirs do.

    Raises:
        UserError: this processor's own output differs, on a small conversation, from what is made here.
    """

    def __init__(self, processor: Any) -> None:
        for name in ("image_token", "image_token_id"):
            if not hasattr(processor, name):
                raise UserError(f"{type(processor).__name__} has no {name}: no Qwen-VL processor", _GENERIC)
        if not hasattr(processor.image_processor, "merge_size"):
            raise UserError(f"{type(processor.image_processor).__name__} makes no Qwen-VL patch grids", _GENERIC)
        self._template = ChatTemplate(processor)
        self._encoder = ConversationEncoder(processor)
        self._vision = GridVision(processor)
        self._programs: dict[tuple[Shape, bool], Program] = {}
        self._token_types = False
        self._agree(processor)

    def measure(
        self, messages: Sequence[Message], sizes: Sequence[Size], *, generation_prompt: bool = False
    ) -> Encoded:
        """See `odb_example.data.samples.Backend`."""
        return self._encode(messages, sizes, generation_prompt=generation_prompt)

    def make(
        self, messages: Sequence[Message], images: Sequence[Image.Image], *, generation_prompt: bool = False
    ) -> Made:
        """See `odb_example.data.samples.Backend`."""
        sizes = [(image.height, image.width) for image in images]
        encoded = self._encode(messages, sizes, generation_prompt=generation_prompt)
        features = self._vision.pixels(images) if images else {}
        return Made(encoded, self._fields(encoded), features)

    def _fields(self, encoded: Encoded) -> dict[str, torch.Tensor]:
        """``mm_token_type_ids``, 1 on image placeholders, where this checkpoint's processor gives it."""
        if not self._token_types:
            return {}
        return {"mm_token_type_ids": (token_tensor(encoded.ids) == self._encoder.image_id).to(torch.int64)}

    def _encode(self, messages: Sequence[Message], sizes: Sequence[Size], *, generation_prompt: bool) -> Encoded:
        shape = shape_of(messages)
        skeleton = self._template.skeleton(shape, generation_prompt=generation_prompt)
        program = self._programs.get((shape, generation_prompt))
        if program is None:
            program = self._programs[shape, generation_prompt] = self._encoder.compile(skeleton)
        texts = self._template.texts_written(messages, skeleton, generation_prompt=generation_prompt)
        return self._encoder.encode(program, texts, self._vision.tokens(sizes))

    def _agree(self, processor: Any) -> None:
        images = [Image.new("RGB", (70, 40), "teal"), Image.new("RGB", (33, 90), "white")]
        text = self._template.render(_PROBE)
        theirs = processor(text=[text], images=images, return_tensors="pt")
        self._token_types = "mm_token_type_ids" in theirs
        made = self.make(_PROBE, images)
        ids = torch.tensor(made.encoded.ids)
        per_token = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **made.fields}
        for name, value in {**{name: row[None] for name, row in per_token.items()}, **made.features}.items():
            if not torch.equal(value, theirs[name]):
                raise UserError(f"{type(processor).__name__} makes other {name} than the Qwen-VL rule", _GENERIC)


_GENERIC = "use --processor-backend generic, or auto"
