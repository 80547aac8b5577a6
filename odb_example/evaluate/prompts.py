"""Scored questions as finished samples: images decoded as the protocol says, prompt encoded, length known from headers.

Also the letters: which token stands for each, and whether it is the one that follows a real prompt.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image, ImageOps

from odb_example.data.images import ImageError, image_size
from odb_example.data.samples import Sample, SampleMaker
from odb_example.errors import UserError
from odb_example.evaluate.mmmu import (
    LETTERS,
    REFUSED_IMAGE_SHAPE,
    REFUSED_PROMPT,
    UNDECODABLE_IMAGE,
    Question,
    Variant,
    build_prompt,
)
from odb_example.evaluate.mmmu_rows import BenchmarkRows

SPECIAL_TOKEN = "special_token_in_text"


class UnscorableError(UserError):
    """A row that the protocol cannot score; the message opens with the reason's name."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")


@dataclass(frozen=True, slots=True)
class PromptSamples:
    """Finished prompts by position in ``questions``; picklable.

    Args:
        places: where each question's row lies in ``rows``.
    """

    rows: BenchmarkRows
    places: Sequence[tuple[int, int]]
    questions: Sequence[Question]
    maker: SampleMaker
    processor: Any
    variant: Variant

    def __len__(self) -> int:
        return len(self.questions)

    def __getitem__(self, position: int) -> Sample:
        """The prompt's tensors, without labels.

        Raises:
            UnscorableError: an image that does not decode or whose shape is refused, or a prompt that has no encoding.
        """
        images = [decode(data) for data in self._encoded(position)]
        if SPECIAL_TOKEN in self.questions[position].oddities:
            return self._as_typed(position, images)
        try:
            return self.maker.prompt(self.text(position), images)
        except ValueError as error:
            raise UnscorableError(REFUSED_IMAGE_SHAPE, str(error)) from error

    def length(self, position: int) -> int:
        """Tokens of the prompt, visual tokens included, from the images' headers.

        Raises:
            UnscorableError: as on access, as far as the headers tell.
        """
        if SPECIAL_TOKEN in self.questions[position].oddities:
            return len(self[position]["input_ids"])
        try:
            sizes = [image_size(data) for data in self._encoded(position)]
        except ImageError as error:
            raise UnscorableError(UNDECODABLE_IMAGE, str(error)) from error
        try:
            length = self.maker.prompt_length(self.text(position), sizes)
        except ValueError as error:
            raise UnscorableError(REFUSED_IMAGE_SHAPE, str(error)) from error
        return len(self[position]["input_ids"]) if length is None else length

    def text(self, position: int) -> str:
        """The words of the user turn."""
        question = self.questions[position]
        return build_prompt(question.question, question.options, self.variant)

    def rendered(self, position: int) -> str:
        """The chat as the checkpoint's template writes it, up to where the answer begins."""
        parts: list[dict[str, str]] = [{"type": "image"}] * self.questions[position].num_images
        chat = [{"role": "user", "content": [*parts, {"type": "text", "text": self.text(position)}]}]
        return str(self.processor.apply_chat_template(chat, tokenize=False, add_generation_prompt=True))

    def pictures(self, position: int) -> str:
        """SHA-256 over the encoded images, in order."""
        digest = hashlib.sha256()
        for data in self._encoded(position):
            digest.update(hashlib.sha256(data).digest())
        return digest.hexdigest()

    def all_pictures(self) -> list[str]:
        """`pictures` of every prompt; empty where a row's images cannot be read."""
        found = []
        for position in range(len(self)):
            try:
                found.append(self.pictures(position))
            except UnscorableError:
                found.append("")
        return found

    def drops_alpha(self, position: int) -> bool:
        """Whether an image of the row has transparency, which the protocol's conversion drops."""
        return any(has_alpha(data) for data in self._encoded(position))

    def _encoded(self, position: int) -> list[bytes]:
        try:
            return self.rows.images(self.places[position])
        except UserError as error:
            raise UnscorableError(UNDECODABLE_IMAGE, str(error)) from error

    def _as_typed(self, position: int, images: list[Image.Image]) -> Sample:
        """Text that holds a control token: the protocol does not escape it, so the processor reads it as one."""
        try:
            made = self.processor(text=[self.rendered(position)], images=images or None, return_tensors="pt")
        except (ValueError, IndexError) as error:
            raise UnscorableError(REFUSED_PROMPT, str(error)) from error
        sample: Sample = {
            name: value[0] if name in ("input_ids", "attention_mask", "mm_token_type_ids") else value
            for name, value in made.items()
        }
        patches = len(sample["pixel_values"]) if images else 0
        placeholders = int((sample["input_ids"] == self.processor.image_token_id).sum())
        if placeholders * self.processor.image_processor.merge_size**2 != patches:
            raise UnscorableError(REFUSED_PROMPT, f"{placeholders} image tokens in the text for {len(images)} images")
        return sample | {"odb_n_patches": torch.tensor(patches, dtype=torch.int64)}


def decode(data: bytes) -> Image.Image:
    """The protocol's picture: upright as `datasets` decodes it, then ``convert("RGB")``, which drops alpha.

    Raises:
        UnscorableError: it does not decode.
    """
    try:
        with Image.open(io.BytesIO(data)) as image:
            return ImageOps.exif_transpose(image).convert("RGB")
    except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as error:
        raise UnscorableError(UNDECODABLE_IMAGE, str(error)) from error


def has_alpha(data: bytes) -> bool:
    """Whether an image has transparency, which the protocol's conversion drops; False where it does not open."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            return bool(image.has_transparency_data)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return False


def candidate_tokens(tokenizer: Any) -> dict[str, dict[str, Any]]:
    """Per letter: its text without a leading space, the token that is scored, and all tokens it is written with.

    Raises:
        UserError: two letters begin with the same token, so that likelihood cannot tell them apart.
    """
    info = {}
    for letter in LETTERS:
        ids = [int(token) for token in tokenizer(letter, add_special_tokens=False)["input_ids"]]
        info[letter] = {"candidate_text": letter, "first_token_id": ids[0], "token_ids": ids}
    if len({entry["first_token_id"] for entry in info.values()}) < len(LETTERS):
        raise UserError("two of the letters A-H begin with the same token of this tokenizer", "it cannot be scored so")
    return info


def letters_in_context(tokenizer: Any, rendered: Sequence[str]) -> dict[str, list[int]]:
    """Per letter, the tokens found in its place when it is written after each rendered prompt."""
    found: dict[str, set[int]] = {letter: set() for letter in LETTERS}
    for prompt in rendered:
        before = tokenizer(prompt, add_special_tokens=False)["input_ids"]
        for letter in LETTERS:
            after = tokenizer(prompt + letter, add_special_tokens=False)["input_ids"]
            same = next((i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), len(before))
            found[letter].add(int(after[same]))
    return {letter: sorted(tokens) for letter, tokens in found.items()}
