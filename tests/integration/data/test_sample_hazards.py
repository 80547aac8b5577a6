"""The faults people met when they made samples: each a kind of input, with its stated outcome."""

from __future__ import annotations

import io
import multiprocessing
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from PIL import Image
from support.families import IMAGE_CAP, Family
from support.sample_records import LOOK_ALIKES

from odb_example.data.collate import Collator
from odb_example.data.records import Record, Turn
from odb_example.data.samples import FinishedSamples, Sample, SampleError, SampleMaker
from odb_example.data.scan import scan, sound
from odb_example.data.store import Store
from odb_example.errors import UserError
from odb_example.models.loading import load_processor

pytestmark = pytest.mark.integration

IGNORE = -100
Role = Literal["human", "gpt"]


def png(height: int, width: int) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(np.full((height, width, 3), 90, np.uint8)).save(stream, "PNG")
    return stream.getvalue()


def drawn(path: str) -> bytes:
    """An image file named by its size, ``HEIGHTxWIDTH``."""
    height, width = map(int, path.split("x"))
    return png(height, width)


def chat(*said: tuple[Role, str], images: tuple[str, ...] = ()) -> Record:
    return Record("row-7", "test", tuple(Turn(role, text) for role, text in said), images)


def labelled(family: Family, sample: Sample) -> str:
    labels = sample["labels"]
    return family.processor.tokenizer.decode(labels[labels != IGNORE])


def maker(family: Family, max_length: int) -> SampleMaker:
    return SampleMaker(family.processor, max_length=max_length, backend="qwen_vl")


def test_a_cap_between_or_within_images_refuses_the_record_and_never_halves_one(family: Family) -> None:
    record = chat(("human", "<image>one<image>two"), ("gpt", "both"), images=("128x128", "128x128"))
    whole = family.maker.finish(record, drawn)
    ends = (whole["input_ids"] == family.processor.image_token_id).nonzero().flatten()
    for cap in range(4, int(ends[-1]) + 2):
        with pytest.raises(SampleError, match="row-7") as caught:
            maker(family, cap).finish(record, drawn)
        assert caught.value.reason == "image_cut"


@pytest.mark.parametrize("typed", LOOK_ALIKES)
@pytest.mark.parametrize("role", ["human", "gpt"])
def test_a_typed_control_token_never_becomes_one(family: Family, typed: str, role: Role) -> None:
    said = [("human", "Look:"), ("gpt", "yes")]
    said[role == "gpt"] = (role, f"a {typed} b")
    plain = [("human", "Look:"), ("gpt", "yes")]
    id_ = family.processor.tokenizer.convert_tokens_to_ids(typed)
    sample, clean = (family.maker.finish(chat(*turns), drawn) for turns in (said, plain))
    assert int((sample["input_ids"] == id_).sum()) == int((clean["input_ids"] == id_).sum())
    assert f"a {typed} b" in family.processor.tokenizer.decode(sample["input_ids"])


def test_every_assistant_turn_is_learnt_with_its_end_and_no_user_turn_is(family: Family) -> None:
    record = chat(("human", "q1"), ("gpt", "a1"), ("human", "q2"), ("gpt", "a2"), ("human", "q3"), ("gpt", "a3"))
    assert labelled(family, family.maker.finish(record, drawn)) == "a1<|im_end|>a2<|im_end|>a3<|im_end|>"


def test_an_unanswered_last_question_is_not_learnt(family: Family) -> None:
    record = chat(("human", "q1"), ("gpt", "a1"), ("human", "q2"))
    assert labelled(family, family.maker.finish(record, drawn)) == "a1<|im_end|>"


def test_visual_tokens_have_no_label_in_the_sample_itself(family: Family) -> None:
    sample = family.maker.finish(chat(("human", "<image>?"), ("gpt", "x"), images=("64x64",)), drawn)
    known = [family.processor.tokenizer.convert_tokens_to_ids(token) for token in LOOK_ALIKES if "vision" in token]
    visual = torch.isin(sample["input_ids"], torch.tensor([*known, family.processor.image_token_id]))
    assert visual.sum() > 4
    assert (sample["labels"][visual] == IGNORE).all()


@pytest.mark.parametrize("size", ["1x228", "228x1", "30x6030", "6030x30"])
def test_a_strip_above_the_ratio_is_refused_by_name_from_its_header(family: Family, size: str) -> None:
    record = chat(("human", "<image>"), ("gpt", "a strip"), images=(size,))
    for attempt in (family.maker.finish, family.maker.length, family.maker.check):
        with pytest.raises(SampleError, match="row-7") as caught:
            attempt(record, drawn)
        assert caught.value.reason == "image_shape"


@pytest.mark.parametrize("size", ["24x198", "1x1", "1x200", "200x1", "3x300", "690x15420"])
def test_small_and_slender_images_make_samples_of_the_length_foreseen(family: Family, size: str) -> None:
    record = chat(("human", "<image>"), ("gpt", "a picture"), images=(size,))
    assert len(family.maker.finish(record, drawn)["input_ids"]) == family.maker.length(record, drawn)


def test_the_pixel_cap_rules_the_grid(family: Family) -> None:
    record = chat(("human", "<image>"), ("gpt", "large"), images=("1200x1600",))
    patch = family.processor.image_processor.patch_size
    capped = family.maker.finish(record, drawn)
    assert int(capped["image_grid_thw"].prod()) * patch**2 <= IMAGE_CAP
    free = SampleMaker(load_processor(str(family.checkpoint), image_max_pixels=0), max_length=10**5, backend="qwen_vl")
    assert int(free.finish(record, drawn)["image_grid_thw"].prod()) * patch**2 > 20 * IMAGE_CAP


def test_a_cap_below_the_smallest_image_is_refused(family: Family) -> None:
    with pytest.raises(UserError, match="smallest image"):
        load_processor(str(family.checkpoint), image_max_pixels=100)


def test_all_per_token_fields_are_cut_together_and_pixels_never(family: Family) -> None:
    record = chat(("human", "<image>tell"), ("gpt", "word " * 60), images=("64x64",))
    whole = family.maker.finish(record, drawn)
    cap = len(whole["input_ids"]) - 20
    sample = maker(family, cap).finish(record, drawn)
    assert "mm_token_type_ids" in sample
    for name in ("input_ids", "attention_mask", "labels", "mm_token_type_ids"):
        assert len(sample[name]) == cap, name
    assert torch.equal(sample["pixel_values"], whole["pixel_values"])
    assert torch.equal(sample["image_grid_thw"], whole["image_grid_thw"])


def test_a_sample_whose_labels_would_all_be_cut_is_refused(family: Family) -> None:
    record = chat(("human", "long question " * 30), ("gpt", "B"))
    with pytest.raises(SampleError, match="row-7") as caught:
        maker(family, 60).finish(record, drawn)
    assert caught.value.reason == "no_label"


def test_a_record_without_an_answer_is_refused(family: Family) -> None:
    with pytest.raises(SampleError) as caught:
        family.maker.finish(chat(("human", "hello?")), drawn)
    assert caught.value.reason == "no_label"


def test_what_is_left_of_a_cut_answer_stays_labelled(family: Family) -> None:
    record = chat(("human", "tell"), ("gpt", "one two three four five six seven eight nine ten"))
    whole = family.maker.finish(record, drawn)
    first = int((whole["labels"] != IGNORE).nonzero()[0])
    sample = maker(family, first + 5).finish(record, drawn)
    assert torch.equal(sample["labels"][first:], whole["input_ids"][first : first + 5])


def test_labels_are_not_found_by_searching_for_the_answer(family: Family) -> None:
    record = chat(("human", "is it B? assistant\nB"), ("gpt", "B"))
    sample = family.maker.finish(record, drawn)
    places = (sample["labels"] != IGNORE).nonzero().flatten().tolist()
    assert labelled(family, sample) == "B<|im_end|>"
    assert places == [len(sample["input_ids"]) - 3, len(sample["input_ids"]) - 2]


def test_an_end_token_that_doubles_as_padding_keeps_label_and_attention(family: Family) -> None:
    end = family.processor.tokenizer.convert_tokens_to_ids("<|im_end|>")
    samples = [family.maker.finish(chat(("human", "q"), ("gpt", text)), drawn) for text in ("a", "many more words")]
    batch = Collator(pad_token_id=end)(samples)
    short = len(samples[0]["input_ids"])
    assert batch["labels"][0, short - 2] == end
    assert batch["attention_mask"][0, :short].all()
    assert (batch["input_ids"][0, short:] == end).all()
    assert not batch["attention_mask"][0, short:].any()
    assert (batch["labels"][0, short:] == IGNORE).all()


def test_an_empty_answer_teaches_the_end_token_alone(family: Family) -> None:
    assert labelled(family, family.maker.finish(chat(("human", "q"), ("gpt", "")), drawn)) == "<|im_end|>"


def _read_in_a_fresh_process(pickled: bytes, position: int, queue: Any) -> None:
    dataset, collator = pickle.loads(pickled)
    queue.put({name: value.numpy() for name, value in collator([dataset[position]]).items()})


def test_data_set_and_collator_work_in_a_spawned_process(tiny_checkpoint: Path, miniature_store: Path) -> None:
    processor = load_processor(str(tiny_checkpoint), image_max_pixels=IMAGE_CAP)
    tiny = SampleMaker(processor, max_length=1024, backend="qwen_vl")
    dataset, collator = FinishedSamples(Store.open(miniature_store), range(20), tiny), Collator(0)
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    process = context.Process(target=_read_in_a_fresh_process, args=(pickle.dumps((dataset, collator)), 5, queue))
    process.start()
    received = queue.get()
    process.join(60)
    assert process.exitcode == 0
    for name, value in collator([dataset[5]]).items():
        assert np.array_equal(received[name], value.numpy()), name


class FewRecords(list[Record]):
    """A store in memory."""

    fingerprint = "test"

    def image_bytes(self, relative: str) -> bytes:
        if relative == "broken":
            return png(40, 40)[:60]
        return drawn(relative)


@pytest.fixture
def mixed(family: Family) -> FinishedSamples:
    """Records 1, 3 and 4 cannot become a sample."""
    store = FewRecords(
        [
            chat(("human", "q"), ("gpt", "a")),
            chat(("human", "<image>"), ("gpt", "a"), images=("1x228",)),
            chat(("human", "<image>"), ("gpt", "a"), images=("32x32",)),
            chat(("human", "<image>"), ("gpt", "a"), images=("broken",)),
            chat(("human", "alone")),
        ]
    )
    return FinishedSamples(store, range(5), family.maker)


def test_a_scan_finds_every_bad_record_and_every_length(mixed: FinishedSamples, tmp_path: Any) -> None:
    found = scan(mixed, cache=tmp_path)
    assert [(refusal.index, refusal.reason) for refusal in found.refused] == [
        (1, "image_shape"), (3, "image"), (4, "no_label"),
    ]  # fmt: skip
    assert [bool(length) for length in found.lengths] == [True, False, True, False, False]
    assert [found.lengths[place] for place in (0, 2)] == [len(mixed[place]["input_ids"]) for place in (0, 2)]
    assert scan(mixed, cache=tmp_path) == found
    assert len(list(tmp_path.iterdir())) == 1


def test_bad_records_stop_a_run_before_it_starts_or_are_left_out_and_listed(
    mixed: FinishedSamples, tmp_path: Any
) -> None:
    with pytest.raises(UserError, match="3 of 5 records"):
        sound(mixed, "refuse", report=tmp_path)
    left, found = sound(mixed, "skip", report=tmp_path)
    assert left.indices == [0, 2]
    assert found.lengths == tuple(left.length(place) for place in range(2))
    assert (tmp_path / "refused.jsonl").read_text().count("\n") == 3
    assert [int(left[place]["sample_index"]) for place in range(len(left))] == [0, 2]


@pytest.mark.parametrize("change", [lambda family: maker(family, 30), lambda family: family.maker])
def test_a_scan_is_not_reused_for_another_cap(
    mixed: FinishedSamples, family: Family, change: Callable[[Family], SampleMaker], tmp_path: Any
) -> None:
    scan(mixed, cache=tmp_path)
    scan(FinishedSamples(mixed.store, mixed.indices, change(family)), cache=tmp_path)
    assert len(list(tmp_path.iterdir())) == (1 if change(family).max_length == mixed.maker.max_length else 2)
