"""Samples against the checkpoint's own processor, over generated records, for each Qwen-VL family."""

from __future__ import annotations

import unicodedata
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.families import Family
from support.sample_records import LOOK_ALIKES, NEARLY, read_image, records

from odb_example.data.chat import fill, messages_of, shape_of, texts_of
from odb_example.data.images import open_image
from odb_example.data.records import Record
from odb_example.data.samples import SampleError, SampleMaker

pytestmark = pytest.mark.integration

IGNORE = -100
checks = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
patient = settings(deadline=None, suppress_health_check=checks)  # examples: the profile's (thorough: 3,000 records)


def chat(record: Record) -> list[dict[str, Any]]:
    """The record as the messages a user of the processor would write."""
    messages: list[dict[str, Any]] = []
    for turn in record.conversations:
        content: list[dict[str, str]] = []
        pieces = turn.value.split("<image>") if turn.role == "human" and record.images else [turn.value]
        for position, piece in enumerate(pieces):
            if position:
                content.append({"type": "image"})
            content.append({"type": "text", "text": piece})
        messages.append({"role": {"human": "user", "gpt": "assistant"}[turn.role], "content": content})
    return messages


def processed(family: Family, record: Record) -> dict[str, torch.Tensor]:
    """The whole conversation through template and processor."""
    text = family.processor.apply_chat_template(chat(record), tokenize=False)
    images = [open_image(read_image(path)) for path in record.images]
    return dict(family.processor(text=[text], images=images or None, return_tensors="pt"))


def labelled_text(family: Family, sample: dict[str, torch.Tensor]) -> str:
    labels = sample["labels"]
    return family.processor.tokenizer.decode(labels[labels != IGNORE], clean_up_tokenization_spaces=False)


@patient
@given(record=records())
def test_a_sample_is_what_the_processor_makes_of_the_whole_conversation(family: Family, record: Record) -> None:
    expected = processed(family, record)
    sample = family.maker.finish(record, read_image)
    for name, value in expected.items():
        ours = sample[name] if name in ("pixel_values", "image_grid_thw") else sample[name][None]
        assert torch.equal(ours, value), f"{name} differs for {record}"
    assert set(sample) - set(expected) == {"labels", "odb_n_patches"}
    assert family.maker.length(record, read_image) == len(sample["input_ids"])
    assert int(sample["odb_n_patches"]) == len(sample.get("pixel_values", ()))


@patient
@given(record=records())
def test_labels_are_the_assistant_turns_with_their_end_tokens_and_nothing_else(family: Family, record: Record) -> None:
    sample = family.maker.finish(record, read_image)
    ids, labels = sample["input_ids"], sample["labels"]
    seen = labels != IGNORE
    assert torch.equal(labels[seen], ids[seen])
    answers = [unicodedata.normalize("NFC", turn.value) for turn in record.conversations if turn.role == "gpt"]
    said = labelled_text(family, sample).split("<|im_end|>")
    assert said.pop() == ""
    for answer, labelled in zip(answers, said, strict=True):
        # An answer that opens with a line break shares its first token with the template's own; the rest is labelled.
        assert answer.endswith(labelled)
        assert not answer.removesuffix(labelled).strip()
        if not answer[:1].isspace():
            assert answer == labelled


@patient
@given(record=records(spelled=(*LOOK_ALIKES, *NEARLY)))
def test_typed_control_tokens_stay_text(family: Family, record: Record) -> None:
    sample = family.maker.finish(record, read_image)
    processor, template = family.processor, family.maker.backend._template
    messages = messages_of(record)
    skeleton = template.skeleton(shape_of(messages))
    written = fill(skeleton, ["" for _ in texts_of(messages)])
    ids = sample["input_ids"].tolist()
    added = processor.tokenizer.added_tokens_decoder
    for id_, token in added.items():
        if token.special and id_ != processor.image_token_id:
            assert ids.count(id_) == written.count(token.content), token.content
    if record.images:
        merge = processor.image_processor.merge_size**2
        assert ids.count(processor.image_token_id) == int(sample["image_grid_thw"].prod(dim=1).sum()) // merge
    else:
        assert processor.image_token_id not in ids
    # Nothing is lost either: the ids read as the template's output with the texts in it.
    collapsed = [id_ for place, id_ in enumerate(ids) if id_ != processor.image_token_id or ids[place - 1] != id_]
    expected = fill(skeleton, [unicodedata.normalize("NFC", text) for text in texts_of(messages)])
    assert processor.tokenizer.decode(collapsed, clean_up_tokenization_spaces=False) == expected


@patient
@given(record=records())
def test_the_generic_backend_makes_the_same_samples(family: Family, record: Record) -> None:
    generic = SampleMaker(family.processor, max_length=100_000, backend="generic")
    if any(token in turn.value for turn in record.conversations for token in LOOK_ALIKES):
        return
    ours, theirs = family.maker.finish(record, read_image), generic.finish(record, read_image)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert value.dtype == theirs[name].dtype
        assert torch.equal(value, theirs[name]), name


@patient
@given(record=records(), cap=st.integers(1, 400))
def test_a_cut_sample_is_a_prefix_with_whole_images_or_is_refused(family: Family, record: Record, cap: int) -> None:
    whole = family.maker.finish(record, read_image)
    short = SampleMaker(family.processor, max_length=cap, backend="qwen_vl")
    length = min(cap, len(whole["input_ids"]))
    images = (whole["input_ids"] == family.processor.image_token_id).nonzero().flatten().tolist()
    whole_images = not images or images[-1] + 2 <= length  # the token after the last placeholder closes the image
    labels_left = bool((whole["labels"][1:length] != IGNORE).any())
    try:
        sample = short.finish(record, read_image)
    except SampleError as error:
        assert error.record_id == record.id
        assert (error.reason == "image_cut" and not whole_images) or (error.reason == "no_label" and not labels_left)
        with pytest.raises(SampleError, match=str(cap)):
            short.length(record, read_image)
        return
    assert whole_images
    assert labels_left
    assert short.length(record, read_image) == length
    for name, value in whole.items():
        cut = value[:length] if value.ndim == 1 and len(value) == len(whole["input_ids"]) else value
        assert torch.equal(sample[name], cut), name
