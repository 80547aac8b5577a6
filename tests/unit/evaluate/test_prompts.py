"""Scored prompts as samples: encoding, lengths, pictures, letters."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from odb_example.errors import UserError
from odb_example.evaluate.mmmu import LETTERS
from odb_example.evaluate.prompts import (
    UnscorableError,
    candidate_tokens,
    decode,
    has_alpha,
    letters_in_context,
)

pytestmark = pytest.mark.unit


def test_every_prompt_is_what_the_processor_itself_makes(invent_run: Callable[..., Any]) -> None:
    run = invent_run()
    samples = run.samples
    for position in run.scored.values:
        images = [decode(data) for data in samples.rows.images(samples.places[position])]
        own = samples.processor(text=[samples.rendered(position)], images=images or None, return_tensors="pt")
        made = samples[position]
        for name in ("input_ids", "attention_mask", "mm_token_type_ids"):
            assert torch.equal(made[name], own[name][0].to(made[name].dtype)), (position, name)
        for name in ("pixel_values", "image_grid_thw"):
            assert (name in made) == (name in own)
            assert name not in own or torch.equal(made[name], own[name])


def test_lengths_are_known_without_pixels(invent_run: Callable[..., Any]) -> None:
    run = invent_run()
    for position in run.scored.values:
        assert run.samples.length(position) == len(run.samples[position]["input_ids"])


def test_rows_that_cannot_be_scored_are_excluded_with_their_reason(invent_run: Callable[..., Any]) -> None:
    run = invent_run()
    reasons = {
        run.read.questions[position].sample_id: reason.split(":")[0] for position, reason in run.scored.refused.items()
    }
    assert reasons == {
        "validation_Math_3": "undecodable_image",
        "validation_Math_4": "undecodable_image",
        "validation_Math_5": "refused_image_shape",
        "validation_Pharmacy_23": "refused_prompt",
    }
    assert Counter(row.reason for row in run.read.exclusions) == {"non_letter_answer": 3}


def test_a_control_token_in_a_question_is_read_as_one_since_the_protocol_does_not_escape(
    invent_run: Callable[..., Any],
) -> None:
    run = invent_run(subjects="Pharmacy")
    position = next(p for p, q in enumerate(run.read.questions) if q.sample_id == "validation_Pharmacy_22")
    ids = run.samples[position]["input_ids"].tolist()
    assert ids.count(run.samples.processor.tokenizer.convert_tokens_to_ids("<|im_end|>")) == 2


def test_pictures_are_upright_rgb_with_alpha_dropped() -> None:
    half_seen = Image.new("RGBA", (4, 2), (10, 200, 30, 0))
    stream = io.BytesIO()
    half_seen.save(stream, "PNG")
    picture = decode(stream.getvalue())
    assert (picture.mode, picture.getpixel((0, 0))) == ("RGB", (10, 200, 30))
    assert has_alpha(stream.getvalue())

    turned = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("L", (40, 20), 7).save(turned, "JPEG", exif=exif)
    assert (decode(turned.getvalue()).size, decode(turned.getvalue()).mode) == ((20, 40), "RGB")
    assert not has_alpha(turned.getvalue())


@pytest.mark.parametrize("data", [b"", b"no image", b"\x89PNG\r\n\x1a\n" + b"\0" * 40])
def test_bytes_that_are_no_picture_are_refused_with_the_reason_first(data: bytes) -> None:
    with pytest.raises(UnscorableError, match=r"^undecodable_image: "):
        decode(data)


def byte_tokenizer(*words: str) -> PreTrainedTokenizerFast:
    """A tokenizer of characters and a few longer words that it prefers."""
    characters = sorted({*LETTERS, *"abcdefghijklmnopqrstuvwxyz \n:", "?"})
    vocab = {token: number for number, token in enumerate([*characters, *words])}
    merges = []
    for word in words:
        for place in range(1, len(word)):
            merged = word[: place + 1]
            vocab.setdefault(merged, len(vocab))
            merges.append((word[:place], word[place]))
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("|", "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def test_letters_of_a_plain_tokenizer_are_one_token_and_the_one_in_context() -> None:
    tokenizer = byte_tokenizer()
    info = candidate_tokens(tokenizer)
    assert {letter: len(entry["token_ids"]) for letter, entry in info.items()} == dict.fromkeys(LETTERS, 1)
    found = letters_in_context(tokenizer, ["answer:\n", "say:"])
    assert found == {letter: [entry["first_token_id"]] for letter, entry in info.items()}


def test_a_letter_that_melts_into_the_prompt_is_found_by_its_context() -> None:
    tokenizer = byte_tokenizer("\nA")
    info = candidate_tokens(tokenizer)
    found = letters_in_context(tokenizer, ["answer:\n"])
    melted = tokenizer.convert_tokens_to_ids("\nA")
    assert found["A"] == [melted] != [info["A"]["first_token_id"]]
    assert found["B"] == [info["B"]["first_token_id"]]


def test_letters_that_begin_alike_cannot_be_scored() -> None:
    tokenizer = Tokenizer(models.WordLevel({"?": 0, "A": 1}, unk_token="?"))
    with pytest.raises(UserError, match="begin with the same token"):
        candidate_tokens(PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="?"))
