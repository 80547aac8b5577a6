"""Samples of any image-text checkpoint whose processor expands placeholders: through the processor's own call.

One call of the processor makes ids, pixels and the map from characters to tokens; labels follow from the map. Text that
spells a control token is refused, since the processor would parse it. A length needs the pixels here, as only the
processor knows what it expands an image to.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image

from odb_example.data.chat import ChatTemplate, Message, Skeleton, Slot, fill, shape_of, template_source
from odb_example.data.encoding import IGNORE_INDEX, ControlTokenError, Encoded, Speech, control_tokens
from odb_example.data.samples import Made, Size
from odb_example.errors import UserError

Span = tuple[int, int]

_PROBE = (Message("user", (None, "Which?")), Message("assistant", ("Seven",)))
_HANDLED = frozenset({"input_ids", "attention_mask", "offset_mapping", "text_replacement_offsets"})


class GenericBackend:
    """Any processor that reports where in the text it expanded its placeholders.

    Raises:
        UserError: this one does not, or its template drops what is said.
    """

    def __init__(self, processor: Any) -> None:
        self._processor = processor
        self._template = ChatTemplate(processor)
        control = control_tokens(processor.tokenizer, template_source(processor))
        self._control_ids = frozenset(control.values())
        self._control = re.compile("|".join(map(re.escape, sorted(control, key=len, reverse=True))) or "(?!)")
        self._check()

    def measure(
        self, messages: Sequence[Message], sizes: Sequence[Size], *, generation_prompt: bool = False
    ) -> Encoded | None:
        """Nothing: only the processor's own call tells."""
        return None

    def make(
        self, messages: Sequence[Message], images: Sequence[Image.Image], *, generation_prompt: bool = False
    ) -> Made:
        """See `odb_example.data.samples.Backend`."""
        skeleton = self._template.skeleton(shape_of(messages), generation_prompt=generation_prompt)
        texts = self._template.texts_written(messages, skeleton, generation_prompt=generation_prompt)
        for text in texts:
            if match := self._control.search(text):
                raise ControlTokenError(f"its text spells the control token {match.group()!r}")
        written = fill(skeleton, texts)
        output = self._call(written, images)
        ids = [int(id_) for id_ in output["input_ids"][0]]
        expansions = output["text_replacement_offsets"][0] if images else []
        stretches = [_shifted(speech, expansions) for speech in self._spoken(skeleton, texts)]
        offsets = [(int(start), int(end)) for start, end in output["offset_mapping"][0]]
        encoded = Encoded(
            ids,
            [
                id_ if any(stretch.in_token(offset) for stretch in stretches) else IGNORE_INDEX
                for id_, offset in zip(ids, offsets, strict=True)
            ],
            [_framed(_tokens_of(expansion["new_span"], offsets), ids, self._control_ids) for expansion in expansions],
        )
        fields, features = {}, {}
        for name, value in output.items():
            if name in _HANDLED:
                continue
            tensor = value if isinstance(value, torch.Tensor) else torch.tensor(value)
            if tensor.ndim == 2 and tensor.shape == (1, len(ids)):
                fields[name] = tensor[0].to(torch.int64)
            else:
                features[name] = tensor
        return Made(encoded, fields, features)

    def _call(self, written: str, images: Sequence[Image.Image]) -> dict[str, Any]:
        start = self._processor.tokenizer.bos_token
        return dict(
            self._processor(
                text=[written],
                images=list(images) or None,
                # A template that writes the opening token itself must not get a second one.
                add_special_tokens=not (start and written.startswith(start)),
                return_offsets_mapping=True,
                return_text_replacement_offsets=True,
                images_kwargs={"return_tensors": "pt"},
            )
        )

    def _spoken(self, skeleton: Skeleton, texts: Sequence[str]) -> list[Speech]:
        """What an assistant says, up to and with the control token that ends it."""
        stretches: list[Speech] = []
        position = 0
        for number, piece in enumerate(skeleton):
            text = piece if isinstance(piece, str) else texts[piece.number]
            if isinstance(piece, Slot) and piece.spoken:
                following = skeleton[number + 1] if number + 1 < len(skeleton) else ""
                words = following if isinstance(following, str) else ""
                match = self._control.search(words)
                stretches.append(Speech(position, text + words[: match.end() if match else 0]))
            position += len(text)
        return stretches

    def _check(self) -> None:
        name = type(self._processor).__name__
        image = Image.new("RGB", (64, 64), "teal")
        try:
            made = self.make(_PROBE, [image])
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{name} does not say where it expands images: {error}") from error
        label_ids = [label for label in made.encoded.labels if label != IGNORE_INDEX]
        said = self._processor.tokenizer.decode(label_ids)
        if not said.strip().startswith("Seven"):
            raise UserError(f"{name}: labels of a probe answer read {said!r} instead of 'Seven'")


def _shifted(speech: Speech, expansions: Sequence[Any]) -> Speech:
    """A stretch of the text before expansion in the text after it; none crosses a placeholder."""
    ends = [expansion["span"][1] for expansion in expansions]
    gained = [0, *(expansion["new_span"][1] - expansion["span"][1] for expansion in expansions)]
    return Speech(speech.start + gained[bisect_right(ends, speech.start)], speech.text)


def _tokens_of(span: Span, offsets: Sequence[Span]) -> Span:
    """First and past-the-last token that overlap a span of characters."""
    touching = [
        position for position, (start, end) in enumerate(offsets) if start < span[1] and end > span[0] and end > start
    ]
    return touching[0], touching[-1] + 1


def _framed(span: Span, ids: Sequence[int], control: frozenset[int]) -> Span:
    """A span of placeholders with the control tokens around it, such as those that open and close an image."""
    start, end = span
    return (
        start - int(start > 0 and ids[start - 1] in control),
        end + int(end < len(ids) and ids[end] in control),
    )
