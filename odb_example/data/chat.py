"""A record as chat messages, and the checkpoint's chat template as a skeleton to fill.

The template is rendered once for each shape of conversation, with a mark in place of every text; what comes out is
cut at the marks into the template's own words and slots. Filling the slots gives the template's output for any texts
of that shape without running it again, and says which characters are whose. A template that rewrites what it is
given (trims it, moves it) is noticed when it is first seen; its output is then compared for every record.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jinja2

from odb_example.data.records import IMAGE_PLACEHOLDER, Record, Turn
from odb_example.errors import UserError

_ROLE_NAMES = {"human": "user", "gpt": "assistant"}
# Private-use characters: no template writes them, and no filter a template may apply changes them.
_MARK = "\ue0f0{}\ue0f1"
_MARKED = re.compile("\ue0f0(\\d+)\ue0f1")
_PROBES = (
    " \n outer space \n ",
    "",
    "{{ braces }} {% raw %}",
    "<think>\nwhy\n</think>\n\nso",
    "<tool_response>a\nb</tool_response>",
)


class TemplateRefusedError(ValueError):
    """The template cannot write this conversation; the message says why."""


@dataclass(frozen=True, slots=True)
class Message:
    """One side's parts in order: a text, or None for an image."""

    role: str
    parts: tuple[str | None, ...]


Shape = tuple[tuple[str, tuple[bool, ...]], ...]  # role, and for each part whether it is an image


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a text goes: the ``number``-th text of the conversation, and whether an assistant says it."""

    number: int
    spoken: bool


Skeleton = tuple["str | Slot", ...]


def messages_of(record: Record) -> tuple[Message, ...]:
    """The record's turns as messages; placeholders in human turns become image parts, in place."""
    return tuple(_message(turn, bool(record.images)) for turn in record.conversations)


def _message(turn: Turn, has_images: bool) -> Message:
    if turn.role != "human" or not has_images:
        return Message(_ROLE_NAMES[turn.role], (turn.value,))
    parts: list[str | None] = []
    for position, text in enumerate(turn.value.split(IMAGE_PLACEHOLDER)):
        if position:
            parts.append(None)
        if text:
            parts.append(text)
    return Message("user", tuple(parts) or ("",))


def shape_of(messages: Sequence[Message]) -> Shape:
    """What the skeleton depends on."""
    return tuple((message.role, tuple(part is None for part in message.parts)) for message in messages)


def texts_of(messages: Sequence[Message]) -> list[str]:
    """The texts that fill the slots, in order."""
    return [part for message in messages for part in message.parts if part is not None]


def fill(skeleton: Skeleton, texts: Sequence[str]) -> str:
    """The template's output with ``texts`` in its slots."""
    return "".join(piece if isinstance(piece, str) else texts[piece.number] for piece in skeleton)


class ChatTemplate:
    """The processor's template; `skeleton` is cached by shape.

    Attributes:
        verbatim: the template writes texts as they are, whatever they contain.
    """

    def __init__(self, processor: Any) -> None:
        self._processor = processor
        self._skeletons: dict[tuple[Shape, bool], Skeleton] = {}
        self.verbatim = self._is_verbatim()

    def render(self, messages: Sequence[Message], *, generation_prompt: bool = False) -> str:
        """The template's own output.

        Raises:
            TemplateRefusedError: the template raised an error, e.g. over the order of roles.
        """
        chat = [{"role": message.role, "content": [_part(part) for part in message.parts]} for message in messages]
        try:
            return self._processor.apply_chat_template(chat, tokenize=False, add_generation_prompt=generation_prompt)
        except (jinja2.TemplateError, TypeError) as error:
            raise TemplateRefusedError(f"the chat template refuses it: {error}") from error

    def skeleton(self, shape: Shape, *, generation_prompt: bool = False) -> Skeleton:
        """The template's output for conversations of ``shape``, with slots in place of texts.

        Raises:
            TemplateRefusedError: the template refuses the shape, drops, repeats or reorders a text.
        """
        key = (shape, generation_prompt)
        if key not in self._skeletons:
            self._skeletons[key] = self._cut(shape, generation_prompt)
        return self._skeletons[key]

    def texts_written(
        self, messages: Sequence[Message], skeleton: Skeleton, *, generation_prompt: bool = False
    ) -> list[str]:
        """The texts as the template writes them: as they are, or without outer white space.

        Raises:
            TemplateRefusedError: the template rewrites them in another way.
        """
        texts = texts_of(messages)
        if self.verbatim:
            return texts
        written = self.render(messages, generation_prompt=generation_prompt)
        for candidate in (texts, [text.strip() for text in texts]):
            if fill(skeleton, candidate) == written:
                return candidate
        raise TemplateRefusedError("the chat template rewrites its text")

    def _cut(self, shape: Shape, generation_prompt: bool) -> Skeleton:
        count = 0
        spoken: list[bool] = []
        marked: list[Message] = []
        for role, kinds in shape:
            parts: list[str | None] = []
            for is_image in kinds:
                parts.append(None if is_image else _MARK.format(count))
                if not is_image:
                    spoken.append(role == "assistant")
                    count += 1
            marked.append(Message(role, tuple(parts)))
        pieces = _MARKED.split(self.render(marked, generation_prompt=generation_prompt))
        if pieces[1::2] != [str(number) for number in range(count)]:
            raise TemplateRefusedError("the chat template drops, repeats or reorders its texts")
        skeleton: list[str | Slot] = []
        for position, piece in enumerate(pieces):
            if position % 2:
                skeleton.append(Slot(int(piece), spoken[int(piece)]))
            elif piece:
                skeleton.append(piece)
        return tuple(skeleton)

    def _is_verbatim(self) -> bool:
        for probe in _PROBES:
            for messages in (
                (Message("user", (None, probe)), Message("assistant", (probe,))),
                (Message("user", (probe,)), Message("assistant", (probe,))) * 2,
            ):
                if fill(self.skeleton(shape_of(messages)), texts_of(messages)) != self.render(messages):
                    return False
        return True


def template_source(processor: Any) -> str:
    """The Jinja text of the processor's default template."""
    template = processor.chat_template
    if isinstance(template, dict):
        if "default" not in template:
            raise UserError("the checkpoint's chat templates have no default", "name one of them `default`")
        return str(template["default"])
    return str(template)


def _part(part: str | None) -> dict[str, str]:
    return {"type": "image"} if part is None else {"type": "text", "text": part}
