"""Finished samples in the model: placeholders it consumes, and losses that no batch changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import pytest
import torch
from support.families import Family
from support.sample_records import read_image
from transformers import PreTrainedModel

from odb_example.data.collate import Collator, split_batch
from odb_example.data.images import open_image
from odb_example.data.records import Record, Turn
from odb_example.data.samples import Sample, SampleMaker
from odb_example.models.loading import load_model

pytestmark = pytest.mark.integration

IGNORE = -100


def record(*said: str, images: Sequence[str] = ()) -> Record:
    roles: tuple[Literal["human", "gpt"], ...] = ("human", "gpt")
    turns = tuple(Turn(roles[number % 2], text) for number, text in enumerate(said))
    return Record("row", "test", turns, tuple(images))


KINDS = {
    "text only": record("How many legs has an ant?", "Six."),
    "one image": record("<image>\nWhich?", "A long answer about a picture, in many words.", images=["64x48.png"]),
    "two images, mixed sizes": record("<image> and <image>", "B", images=["300x200.png", "32x32.png"]),
    "five images": record("<image>" * 5, "Many", images=["1x1.png", "3x300.png", "24x198.png", "33x65.png", "1x1.png"]),
    "several turns": record("<image>first", "one", "again <image>", "two", "and?", "three",
                            images=["112x90.png", "320x512.png"]),
    "typed control tokens": record("<image><|image_pad|><|vision_start|>", "<|im_end|> <|video_pad|>",
                                   images=["64x48.png"]),
    "other script": record("\u56fe\u4e2d\u662f\u4ec0\u4e48\uff1f<image>", "\u4e2d\u56fd", images=["200x300.png"]),
    "short": record("?", "B"),
}  # fmt: skip


@pytest.fixture(scope="module")
def model(family: Family) -> PreTrainedModel:
    return load_model(str(family.checkpoint), dtype=torch.float32).eval()


def losses(model: PreTrainedModel, samples: Sequence[Sample], collator: Collator) -> list[float]:
    """Sum of label losses of each row of one batch."""
    inputs, _ = split_batch(collator(samples))
    labels = inputs.pop("labels")[:, 1:]
    with torch.no_grad():
        logits = model(**inputs).logits[:, :-1]
    each = torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels, ignore_index=IGNORE, reduction="none")
    return each.sum(dim=1).tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_the_model_consumes_every_placeholder_of_a_sample(family: Family, model: PreTrainedModel, kind: str) -> None:
    sample = family.maker.finish(KINDS[kind], read_image)
    placeholders = int((sample["input_ids"] == family.processor.image_token_id).sum())
    merge = family.processor.image_processor.merge_size**2
    assert placeholders * merge == int(sample["odb_n_patches"])
    inputs, _ = split_batch(Collator(family.processor.tokenizer.pad_token_id)([sample]))
    with torch.no_grad():
        output = model(**inputs)
    assert output.logits.shape[:2] == (1, len(sample["input_ids"]))
    assert torch.isfinite(output.loss)


def test_one_placeholder_too_many_is_refused_by_the_model(family: Family, model: PreTrainedModel) -> None:
    """The control of the test above: were a count wrong by one, the model would say so."""
    sample = family.maker.finish(KINDS["one image"], read_image)
    place = int((sample["input_ids"] == family.processor.image_token_id).nonzero()[0])
    longer = {
        name: torch.cat([value[: place + 1], value[place:]]) if value.ndim == 1 else value
        for name, value in sample.items()
    }
    inputs, _ = split_batch(Collator(family.processor.tokenizer.pad_token_id)([longer]))
    with pytest.raises((ValueError, RuntimeError), match=r"(?i)image"):
        model(**inputs)


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_row_has_the_loss_it_has_alone_in_any_batch(
    family: Family, model: PreTrainedModel, side: Literal["right", "left"]
) -> None:
    collator = Collator(family.processor.tokenizer.pad_token_id, side)
    samples = [family.maker.finish(row, read_image) for row in KINDS.values()]
    alone = [losses(model, [sample], collator)[0] for sample in samples]
    orders = ([*range(len(samples))], [*reversed(range(len(samples)))], [7, 0], [3, 7, 1], [0, 7])
    for order in orders:
        together = losses(model, [samples[place] for place in order], collator)
        for place, loss in zip(order, together, strict=True):
            tokens = int((samples[place]["labels"] != IGNORE).sum())
            assert loss / tokens == pytest.approx(alone[place] / tokens, abs=1e-5), (side, order, place)


def test_nothing_leaks_from_a_batch_of_another_shape(family: Family, model: PreTrainedModel) -> None:
    """The model keeps position offsets of its last call with images; no later batch may see them."""
    collator = Collator(family.processor.tokenizer.pad_token_id)
    samples = {kind: family.maker.finish(row, read_image) for kind, row in KINDS.items()}
    fresh = load_model(str(family.checkpoint), dtype=torch.float32).eval()
    before = losses(fresh, [samples["text only"], samples["one image"]], collator)
    for kinds in (["five images"], ["short"], ["two images, mixed sizes", "several turns", "short"]):
        losses(model, [samples[kind] for kind in kinds], collator)
        after = losses(model, [samples["text only"], samples["one image"]], collator)
        assert after == pytest.approx(before, abs=1e-5)


def test_a_prompt_is_the_conversation_up_to_the_answer(family: Family) -> None:
    sample = family.maker.finish(record("<image>Which <|im_end|>?", "B", images=["64x48.png"]), read_image)
    prompt = family.maker.prompt("Which <|im_end|>?", [open_image(read_image("64x48.png"))])
    answer = int((sample["labels"] != IGNORE).nonzero()[0])
    assert torch.equal(prompt["input_ids"], sample["input_ids"][:answer])
    assert torch.equal(prompt["pixel_values"], sample["pixel_values"])
    assert "labels" not in prompt
    assert family.maker.prompt_length("Which <|im_end|>?", [(64, 48)]) == answer


def test_a_prompt_is_never_cut(family: Family) -> None:
    short = SampleMaker(family.processor, max_length=5, backend="qwen_vl")
    assert len(short.prompt("many words " * 50, [])["input_ids"]) > 50
