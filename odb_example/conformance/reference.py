"""What a sample, a loss and a score must be, computed here in the plainest way and independently of what is tested.

One sample at a time, no padding, no batching, full logits: slow and easy to trust.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image, ImageOps

from odb_example.conformance.pipeline import BESIDE_FIELDS, SEQUENCE_FIELDS, Choice, ImageBytes, Pipeline, Sample
from odb_example.data.records import IMAGE_PLACEHOLDER, Record

LETTERS = "ABCDEFGH"
PROMPT_SUFFIX = "Answer with the option letter only."


def rendered(pipeline: Pipeline, record: Record, image_bytes: ImageBytes | None) -> dict[str, torch.Tensor]:
    """The whole conversation through the checkpoint's own processor: ``input_ids`` (1-D) and what comes with images."""
    text = pipeline.tokenizer.apply_chat_template if pipeline.processor is pipeline.tokenizer else None
    messages = conversation(record, as_parts=text is None)
    if text is not None:
        ids = text(messages, tokenize=True, return_dict=False)
        return {"input_ids": torch.tensor(ids).flatten()}
    prompt = pipeline.processor.apply_chat_template(messages, tokenize=False)
    images = [upright(image_bytes(path)) for path in record.images] if image_bytes else []
    made = pipeline.processor(text=[prompt], images=images or None, return_tensors="pt")
    return {name: value[0] if name in SEQUENCE_FIELDS else value for name, value in made.items()}


def conversation(record: Record, *, as_parts: bool) -> list[dict[str, Any]]:
    """A record as chat messages; a human turn is parted at its placeholders where the record has images."""
    messages: list[dict[str, Any]] = []
    for turn in record.conversations:
        role = "user" if turn.role == "human" else "assistant"
        if not as_parts:
            messages.append({"role": role, "content": turn.value})
            continue
        pieces = turn.value.split(IMAGE_PLACEHOLDER) if turn.role == "human" and record.images else [turn.value]
        content: list[dict[str, str]] = []
        for number, piece in enumerate(pieces):
            content += [{"type": "image"}] if number else []
            content += [{"type": "text", "text": piece}] if piece else []
        messages.append({"role": role, "content": content})
    return messages


def upright(data: bytes) -> Image.Image:
    """An image as people see it: turned by its EXIF tag, transparency on white, RGB."""
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    if image.has_transparency_data:
        shown = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", shown.size, "white"), shown)
    return image.convert("RGB")


def model_inputs(sample: Sample) -> dict[str, torch.Tensor]:
    """A sample as a batch of one for the model."""
    return {
        name: value.unsqueeze(0) if name in SEQUENCE_FIELDS else value
        for name, value in sample.items()
        if name not in BESIDE_FIELDS
    }


def token_losses(model: torch.nn.Module, sample: Sample, ignore_index: int, *, ahead: int = 1) -> torch.Tensor:
    """Loss of each predicted label of one sample, in nats, differentiable; shape (labels,).

    Args:
        ahead: how far before its label a position stands; 1, but for what a mistake would yield.
    """
    logits = model(**model_inputs(sample)).logits[0, : len(sample["labels"]) - ahead].float()
    targets = sample["labels"][ahead:]
    return F.cross_entropy(logits, targets, reduction="none", ignore_index=ignore_index)[targets != ignore_index]


def objective(model: torch.nn.Module, samples: Sequence[Sample], kind: str, ignore_index: int) -> torch.Tensor:
    """The loss of one optimizer step over ``samples``: the mean over label tokens, or over samples with labels."""
    losses = [token_losses(model, sample, ignore_index) for sample in samples]
    labelled = [row for row in losses if len(row)]
    if kind == "token":
        return torch.cat(labelled).mean()
    return torch.stack([row.mean() for row in labelled]).mean()


def predicted(sample: Sample, ignore_index: int) -> int:
    """Labels that some position predicts: the first token never is."""
    return int((sample["labels"][1:] != ignore_index).sum())


def choice_prompt(item: Choice) -> str:
    """The user's text of a multiple-choice item, to the letter of MMMU-MC-choice-likelihood-v1."""
    listed = "\n".join(f"({chr(65 + number)}) {option}" for number, option in enumerate(item.options))
    return f"{item.question}\n{listed}\n{PROMPT_SUFFIX}"


def choice_inputs(pipeline: Pipeline, item: Choice, *, generation_prompt: bool = True) -> dict[str, torch.Tensor]:
    """An item rendered by the processor as a batch of one; images first."""
    text = choice_prompt(item)
    if pipeline.processor is pipeline.tokenizer:
        messages: list[dict[str, Any]] = [{"role": "user", "content": text}]
        ids = pipeline.processor.apply_chat_template(
            messages, add_generation_prompt=generation_prompt, tokenize=True, return_dict=False
        )
        return {"input_ids": torch.tensor(ids).reshape(1, -1)}
    content = [{"type": "image"}] * len(item.images) + [{"type": "text", "text": text}]
    prompt = pipeline.processor.apply_chat_template(
        [{"role": "user", "content": content}], add_generation_prompt=generation_prompt, tokenize=False
    )
    return dict(pipeline.processor(text=[prompt], images=list(item.images) or None, return_tensors="pt"))


def next_token_scores(pipeline: Pipeline, inputs: dict[str, torch.Tensor], position: int = -1) -> torch.Tensor:
    """Log-probabilities of the vocabulary for the token after ``position``; shape (vocabulary,), float32."""
    with torch.no_grad():
        logits = pipeline.network(**inputs).logits[0, position]
    return torch.log_softmax(logits.float(), dim=-1)


def letter_ids(pipeline: Pipeline, *, leading: str = "") -> dict[str, int]:
    """First token of each letter A-H."""
    return {letter: pipeline.tokenizer.encode(leading + letter, add_special_tokens=False)[0] for letter in LETTERS}


def best_letter(scores: dict[str, float], valid: str) -> str:
    """The best of the valid letters; of a tie, the earlier one."""
    return max(sorted(valid), key=lambda letter: scores[letter])
