"""Conversation to token ids and labels, in one pass over the text.

A skeleton (see `odb_example.data.chat`) is compiled once into a program: control tokens by id, image placeholders,
and runs of plain text between them. The tokenizer itself cuts at control tokens before it does anything else, so
run by run gives what the whole string gives; but text that people typed is only ever part of a run, where control
tokens are not looked for. So text stays text, and labels are known by construction rather than found by search.

Labels are what an assistant says, up to and with the control token that ends it. Where the tokenizer melts the
template's characters and the answer's into one token, that token is a label if it holds more of the answer than white
space: " Seven" after "ASSISTANT:" is, the line break that an answer opens with and a header ends with is not.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tokenizers import AddedToken, Encoding

from odb_example.data.chat import Skeleton, Slot, template_source

IGNORE_INDEX = -100


class ControlTokenError(ValueError):
    """A text spells a control token and cannot be kept apart from it."""


@dataclass(slots=True)
class Encoded:
    """Ids and labels of one conversation, and where its images lie.

    Attributes:
        images: (first, past the last) position of each image with the control tokens that frame it.
    """

    ids: list[int] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    images: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Fixed:
    ids: tuple[int, ...]
    labels: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Image:
    before: int  # framing control tokens in front of the placeholders
    after: int


@dataclass(frozen=True, slots=True)
class _Run:
    pieces: tuple[str | Slot, ...]
    spoken: tuple[bool, ...]  # of each piece: is it a label?
    header: tuple[int, ...]  # ids of the leading words of the template


Program = tuple[_Fixed | _Image | _Run, ...]


@dataclass(frozen=True, slots=True)
class Speech:
    """A stretch of what an assistant says: where it starts in a text, and its characters."""

    start: int
    text: str

    def in_token(self, offset: tuple[int, int]) -> bool:
        """Whether the token over the characters of ``offset`` is learnt for this stretch."""
        first, last = offset
        end = self.start + len(self.text)
        if self.start <= first and last <= end:
            return first < last
        shared = self.text[max(first - self.start, 0) : max(last - self.start, 0)]
        return bool(shared.strip())


def control_tokens(tokenizer: Any, template: str) -> dict[str, int]:
    """The added tokens that steer the model, by spelling: the special ones, and any other that the template writes."""
    added = tokenizer.added_tokens_decoder.items()
    return {token.content: id_ for id_, token in added if token.special or token.content in template}


class ConversationEncoder:
    """Compiles skeletons and runs them. Holds a private copy of the tokenizer that sees no control tokens."""

    def __init__(self, processor: Any) -> None:
        tokenizer = processor.tokenizer
        source = template_source(processor)
        control = control_tokens(tokenizer, source)
        self.control_ids = control
        self._image_token: str = processor.image_token
        self.image_id: int = processor.image_token_id
        self._control = re.compile("|".join(map(re.escape, sorted(control, key=len, reverse=True))))
        self._plain = copy.deepcopy(tokenizer.backend_tokenizer)
        self._plain.no_truncation()
        self._plain.no_padding()
        # Only special tokens can be left unparsed, so here every control token is one.
        self._plain.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in control])
        self._plain.encode_special_tokens = True

    def encode_text(self, text: str) -> Encoding:
        """Plain text; nothing in it becomes a control token."""
        return self._plain.encode(text, add_special_tokens=False)

    def compile(self, skeleton: Skeleton) -> Program:
        """The program of a skeleton: what is the same for every conversation of its shape is encoded here."""
        atoms = self._atoms(skeleton)
        program: list[_Fixed | _Image | _Run] = []
        run: list[tuple[str | Slot, bool]] = []

        def close_run() -> None:
            if run:
                program.append(self._compile_run(run))
                run.clear()

        answering = _answering(atoms)
        for position, (atom, spoken) in enumerate(zip(atoms, answering, strict=True)):
            if isinstance(atom, int):
                close_run()
                if atom == self.image_id:
                    before = int(position > 0 and isinstance(atoms[position - 1], int))
                    after = int(position + 1 < len(atoms) and isinstance(atoms[position + 1], int))
                    program.append(_Image(before, after))
                else:
                    program.append(_Fixed((atom,), (atom if spoken else IGNORE_INDEX,)))
            else:
                run.append((atom, spoken))
        close_run()
        return _merged(program)

    def encode(self, program: Program, texts: Sequence[str], image_tokens: Sequence[int]) -> Encoded:
        """Ids and labels of a conversation.

        Args:
            texts: what fills the slots.
            image_tokens: placeholders of each image, in order.
        """
        encoded = Encoded()
        ids, labels = encoded.ids, encoded.labels
        for step in program:
            if isinstance(step, _Fixed):
                ids.extend(step.ids)
                labels.extend(step.labels)
            elif isinstance(step, _Image):
                count = image_tokens[len(encoded.images)]
                encoded.images.append((len(ids) - step.before, len(ids) + count + step.after))
                ids.extend([self.image_id] * count)
                labels.extend([IGNORE_INDEX] * count)
            else:
                self._encode_run(step, texts, ids, labels)
        return encoded

    def _atoms(self, skeleton: Skeleton) -> list[int | str | Slot]:
        """Control tokens as ids, the template's other words, slots."""
        atoms: list[int | str | Slot] = []
        for piece in skeleton:
            if isinstance(piece, Slot):
                atoms.append(piece)
                continue
            start = 0
            for match in self._control.finditer(piece):
                if match.start() > start:
                    atoms.append(piece[start : match.start()])
                atoms.append(self.control_ids[match.group()])
                start = match.end()
            if start < len(piece):
                atoms.append(piece[start:])
        return atoms

    def _compile_run(self, run: Sequence[tuple[str | Slot, bool]]) -> _Fixed | _Run:
        pieces = tuple(piece for piece, _ in run)
        words = [piece for piece in pieces if isinstance(piece, str)]
        if len(words) == len(pieces):
            ids = tuple(self.encode_text("".join(words)).ids)
            return _Fixed(ids, (IGNORE_INDEX,) * len(ids))
        header = tuple(self.encode_text(pieces[0]).ids) if isinstance(pieces[0], str) else ()
        return _Run(pieces, tuple(spoken for _, spoken in run), header)

    def _encode_run(self, run: _Run, texts: Sequence[str], ids: list[int], labels: list[int]) -> None:
        encoding = self.encode_text(_run_text(run, texts))
        found = encoding.ids
        ids.extend(found)
        if not any(run.spoken):
            labels.extend([IGNORE_INDEX] * len(found))
            return
        header = len(run.header)
        if all(run.spoken[1:]) and not run.spoken[0] and tuple(found[:header]) == run.header:
            labels.extend([IGNORE_INDEX] * header)
            labels.extend(found[header:])
            return
        stretches = _speech(run, texts)
        labels.extend(
            id_ if any(stretch.in_token(offset) for stretch in stretches) else IGNORE_INDEX
            for id_, offset in zip(found, encoding.offsets, strict=True)
        )


def _answering(atoms: Sequence[int | str | Slot]) -> list[bool]:
    """Of each atom, whether it is an answer: an assistant's slot, and what follows up to its end token, if any."""
    spoken = [isinstance(atom, Slot) and atom.spoken for atom in atoms]
    for position, atom in enumerate(atoms):
        if isinstance(atom, Slot) and atom.spoken:
            end = position + 1
            while end < len(atoms) and isinstance(atoms[end], str):
                end += 1
            if end < len(atoms) and isinstance(atoms[end], int):
                spoken[position + 1 : end + 1] = [True] * (end - position)
    return spoken


def _run_text(run: _Run, texts: Sequence[str]) -> str:
    return "".join(piece if isinstance(piece, str) else texts[piece.number] for piece in run.pieces)


def _speech(run: _Run, texts: Sequence[str]) -> list[Speech]:
    stretches: list[Speech] = []
    start = 0
    for piece, spoken in zip(run.pieces, run.spoken, strict=True):
        text = piece if isinstance(piece, str) else texts[piece.number]
        if spoken and stretches and stretches[-1].start + len(stretches[-1].text) == start:
            stretches[-1] = Speech(stretches[-1].start, stretches[-1].text + text)
        elif spoken:
            stretches.append(Speech(start, text))
        start += len(text)
    return stretches


def _merged(program: Sequence[_Fixed | _Image | _Run]) -> Program:
    merged: list[_Fixed | _Image | _Run] = []
    for step in program:
        last = merged[-1] if merged else None
        if isinstance(step, _Fixed) and isinstance(last, _Fixed):
            merged[-1] = _Fixed(last.ids + step.ids, last.labels + step.labels)
        else:
            merged.append(step)
    return tuple(merged)
