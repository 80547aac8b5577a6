"""Labels under other chat templates (system prompts, trimming, other end tokens, none) and other kinds of processor."""

from __future__ import annotations

import copy
import unicodedata
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.families import Family
from support.sample_records import read_image
from transformers import CLIPImageProcessor, LlavaProcessor

from odb_example.data.collate import Collator
from odb_example.data.records import Record, Turn
from odb_example.data.samples import SampleError, SampleMaker
from odb_example.errors import UserError

pytestmark = pytest.mark.integration

IGNORE = -100

_PARTS = (
    "{% for part in message.content %}{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ part.text }}{% endif %}{% endfor %}"
)
TEMPLATES = {
    # name: (template, what ends an answer)
    "system prompt": (
        "<|im_start|>system\nBe brief. Answer \"B\".<|im_end|>\n{% for message in messages %}<|im_start|>"
        "{{ message.role }}\n" + _PARTS + "<|im_end|>\n{% endfor %}",
        "<|im_end|>",
    ),
    "no role line": (
        "{% for message in messages %}{% if message.role == 'user' %}<|box_start|>" + _PARTS + "<|box_end|>"
        "{% else %}" + _PARTS + "<|endoftext|>{% endif %}{% endfor %}",
        "<|endoftext|>",
    ),
    "words before the end token": (
        "{% for message in messages %}### {{ message.role }}:\n" + _PARTS + "{{ '\n--' }}<|im_end|>{% endfor %}",
        "\n--<|im_end|>",
    ),
    "no end token": (
        "{% for message in messages %}{{ message.role | upper }}: " + _PARTS + "\n\n{% endfor %}", "",
    ),
}  # fmt: skip
TRIMMING = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{% for part in message.content %}"
    "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text | trim }}"
    "{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
)

words = st.text(
    st.characters(exclude_categories=("Cs", "Cc", "Zs", "Zl", "Zp", "Mn", "Mc", "Me")), min_size=1, max_size=12
)
conversations = st.lists(st.tuples(words, words), min_size=1, max_size=3)
checks = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


def with_template(processor: Any, template: str) -> Any:
    changed = copy.copy(processor)
    changed.chat_template = template
    return changed


def record(conversation: list[tuple[str, str]], images: tuple[str, ...] = ()) -> Record:
    turns: list[Turn] = []
    for question, answer in conversation:
        turns += [Turn("human", question), Turn("gpt", answer)]
    return Record("row", "test", tuple(turns), images)


@pytest.fixture(scope="module")
def makers(family: Family) -> dict[str, SampleMaker]:
    return {
        name: SampleMaker(with_template(family.processor, template), max_length=10**5, backend="qwen_vl")
        for name, (template, _) in TEMPLATES.items()
    }


@pytest.mark.parametrize("name", TEMPLATES)
@settings(deadline=None, suppress_health_check=checks)
@given(conversation=conversations)
def test_labels_are_the_answers_under_any_template(
    makers: dict[str, SampleMaker], family: Family, name: str, conversation: list[tuple[str, str]]
) -> None:
    sample = makers[name].finish(record(conversation), read_image)
    labels = sample["labels"]
    said = family.processor.tokenizer.decode(labels[labels != IGNORE], clean_up_tokenization_spaces=False)
    answers = [unicodedata.normalize("NFC", answer) for _, answer in conversation]
    if name == "no end token":
        # Here the tokenizer may melt an answer with the white space around it.
        assert "".join(said.split()) == "".join("".join(answers).split())
    else:
        assert said == "".join(answer + TEMPLATES[name][1] for answer in answers)


def test_a_trimming_template_is_followed(family: Family) -> None:
    processor = with_template(family.processor, TRIMMING)
    maker = SampleMaker(processor, max_length=10**5, backend="qwen_vl")
    spaced = record([("  a question \n", " an answer  ")])
    expected = processor(text=[processor.apply_chat_template(_chat(spaced), tokenize=False)], return_tensors="pt")
    sample = maker.finish(spaced, read_image)
    assert torch.equal(sample["input_ids"], expected["input_ids"][0])
    labels = sample["labels"]
    assert processor.tokenizer.decode(labels[labels != IGNORE]) == "an answer<|im_end|>"


def _chat(rows: Record) -> list[dict[str, Any]]:
    names = {"human": "user", "gpt": "assistant"}
    return [
        {"role": names[turn.role], "content": [{"type": "text", "text": turn.value}]} for turn in rows.conversations
    ]


def test_a_template_that_rewrites_a_text_refuses_that_record_only(family: Family) -> None:
    shouting = TRIMMING.replace("part.text | trim", "part.text | replace('x', 'y')")
    maker = SampleMaker(with_template(family.processor, shouting), max_length=10**5, backend="qwen_vl")
    # The probes hold no x, so this template looks faithful until one comes; what is made then is the faithful text.
    with_x = maker.finish(record([("box", "fox")]), read_image)
    assert "fox" in family.processor.tokenizer.decode(with_x["input_ids"])
    cutting = TRIMMING.replace("part.text | trim", "part.text.split('</think>')[-1]")
    maker = SampleMaker(with_template(family.processor, cutting), max_length=10**5, backend="qwen_vl")
    with pytest.raises(SampleError) as caught:
        maker.finish(record([("why", "<think>so</think>because")]), read_image)
    assert caught.value.reason == "template"
    assert maker.finish(record([("why", "because")]), read_image)["labels"].max() > 0


def test_a_template_that_refuses_a_conversation_refuses_the_record(family: Family) -> None:
    strict = (
        "{% for message in messages %}{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('roles must alternate') }}{% endif %}{% endfor %}" + TRIMMING
    )
    maker = SampleMaker(with_template(family.processor, strict), max_length=10**5, backend="qwen_vl")
    turns = (Turn("human", "a"), Turn("human", "b"), Turn("gpt", "c"))
    with pytest.raises(SampleError, match="alternate") as caught:
        maker.finish(Record("row", "test", turns), read_image)
    assert caught.value.reason == "template"


@pytest.fixture(scope="module")
def llava(family: Family) -> LlavaProcessor:
    """Another kind of processor: fixed image size, one placeholder token, no grids, a template without end token."""
    tokenizer = copy.deepcopy(family.processor.tokenizer)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]}, replace_extra_special_tokens=False)
    template = (
        "{% for message in messages %}{{ message.role | upper }}: {% for part in message.content %}"
        "{% if part.type == 'image' %}<image>\n{% else %}{{ part.text }}{% endif %}{% endfor %}"
        "{% if message.role == 'assistant' %}<|im_end|>{% else %} {% endif %}{% endfor %}"
    )
    image_processor = CLIPImageProcessor(size={"shortest_edge": 56}, crop_size={"height": 56, "width": 56})
    return LlavaProcessor(
        image_processor=image_processor, tokenizer=tokenizer, patch_size=14, vision_feature_select_strategy="default",
        chat_template=template, num_additional_image_tokens=1,
    )  # fmt: skip


def test_a_processor_without_grids_is_served_by_the_generic_way(llava: LlavaProcessor) -> None:
    maker = SampleMaker(llava, max_length=10**5, backend="auto")
    rows = record([("<image>What is <it>?", "Seven, e\u0301"), ("Sure?", "Yes")], images=("64x48.png",))
    sample = maker.finish(rows, read_image)
    assert int((sample["input_ids"] == llava.image_token_id).sum()) == 16
    assert sample["pixel_values"].shape == (1, 3, 56, 56)
    labels = sample["labels"]
    assert llava.tokenizer.decode(labels[labels != IGNORE]) == " Seven, \u00e9<|im_end|> Yes<|im_end|>"
    assert maker.length(rows, read_image) == len(sample["input_ids"])
    batch = Collator(0)([sample, maker.finish(record([("no image", "here")]), read_image), sample])
    assert batch["pixel_values"].shape == (2, 3, 56, 56)


def test_the_generic_way_refuses_typed_control_tokens_by_id(llava: LlavaProcessor) -> None:
    maker = SampleMaker(llava, max_length=10**5, backend="generic")
    for typed in ("<|im_end|>", "<image>"):
        with pytest.raises(SampleError, match="row") as caught:
            maker.finish(record([(f"a {typed} b", "c")]), read_image)
        assert caught.value.reason == "control_token"


def test_a_processor_of_another_kind_is_refused_as_qwen_vl(llava: LlavaProcessor) -> None:
    with pytest.raises(UserError, match="--processor-backend generic"):
        SampleMaker(llava, max_length=100, backend="qwen_vl")
    with pytest.raises(UserError, match="no processor backend"):
        SampleMaker(llava, max_length=100, backend="other")
