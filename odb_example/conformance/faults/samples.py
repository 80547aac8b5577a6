"""Samples that are nearly right: a token, a label, a picture off."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from PIL import Image, ImageOps

from odb_example.conformance import ours, reference
from odb_example.conformance.checks.samples import label_runs
from odb_example.conformance.faults.fault import fault
from odb_example.conformance.pipeline import SEQUENCE_FIELDS, ImageBytes, Pipeline, Sample
from odb_example.conformance.probes import png
from odb_example.data.records import Record, Turn
from odb_example.data.samples import SampleError, SampleMaker
from odb_example.models.loading import load_processor

IGNORED = -100
TYPES = ("mm_token_type_ids",)
Change = Callable[[Sample], Sample]


def then(make: Callable[..., Sample], change: Change, *arguments: Any) -> Sample:
    """``change`` applied to what ``make`` makes."""
    return change(make(*arguments))


def changed(pipeline: Pipeline, change: Change) -> Pipeline:
    """A pipeline whose samples are ``change``d, from the store and from probes alike."""
    return replace(
        pipeline,
        sample=partial(then, pipeline.part("sample"), change),
        finish=partial(then, pipeline.part("finish"), change),
    )


def kept(sample: Sample, keep: torch.Tensor) -> Sample:
    """A sample with some of its tokens."""
    return {name: value[keep] if name in SEQUENCE_FIELDS else value for name, value in sample.items()}


def relabelled(sample: Sample, labels: torch.Tensor) -> Sample:
    return {**sample, "labels": labels}


@fault(caught_by="visual_tokens_match_the_images", mentions="visual tokens for")
def one_visual_token_missing(pipeline: Pipeline) -> Pipeline:
    """The last visual token of the first image is missing."""
    return changed(pipeline, partial(_without_one, pipeline.visual_token_ids[0]))


def _without_one(visual: int, sample: Sample) -> Sample:
    places = (sample["input_ids"] == visual).nonzero().flatten()
    keep = torch.ones(len(sample["input_ids"]), dtype=torch.bool)
    if len(places) > 1:
        keep[places[-1]] = False
    return kept(sample, keep)


@fault(caught_by="sample_equals_the_processors_own", mentions="expansion is off by 1")
def one_visual_token_too_many(pipeline: Pipeline) -> Pipeline:
    """Images are expanded to one visual token more than the model has features, and lengths agree with that."""
    more = changed(pipeline, partial(_with_one_more, pipeline.visual_token_ids[0]))
    return replace(more, length=partial(_length_of, more.part("sample")))


def _with_one_more(visual: int, sample: Sample) -> Sample:
    places = (sample["input_ids"] == visual).nonzero().flatten()
    if not len(places):
        return sample
    at = int(places[0])
    return {
        name: torch.cat([value[: at + 1], value[at:]]) if name in SEQUENCE_FIELDS else value
        for name, value in sample.items()
    }


def _length_of(make: Callable[[int], Sample], index: int) -> int:
    return len(make(index)["input_ids"])


@fault(caught_by="labels_are_the_answers", mentions="begin before the answer")
def one_label_on_the_prompt(pipeline: Pipeline) -> Pipeline:
    """The last token of the prompt has a label."""
    return changed(pipeline, _label_before)


def _label_before(sample: Sample) -> Sample:
    labels = sample["labels"].clone()
    for start, _ in label_runs(sample, IGNORED):
        labels[start - 1] = sample["input_ids"][start - 1]
    return relabelled(sample, labels)


@fault(caught_by="labels_are_the_answers", mentions=("end token", "never learns to stop"))
def end_token_without_label(pipeline: Pipeline) -> Pipeline:
    """The token that ends an answer has no label."""
    return changed(pipeline, _unlabel_ends)


def _unlabel_ends(sample: Sample) -> Sample:
    labels = sample["labels"].clone()
    for start, end in label_runs(sample, IGNORED):
        if end - start > 1:
            labels[end - 1] = IGNORED
    return relabelled(sample, labels)


@fault(caught_by="labels_are_the_answers", mentions=("gap", "masked by their token's id"))
def a_label_inside_an_answer_is_lost(pipeline: Pipeline) -> Pipeline:
    """A token in the middle of an answer has no label."""
    return changed(pipeline, _unlabel_middle)


def _unlabel_middle(sample: Sample) -> Sample:
    labels = sample["labels"].clone()
    for start, end in label_runs(sample, IGNORED):
        if end - start > 3:
            labels[start + 1] = IGNORED
    return relabelled(sample, labels)


@fault(caught_by="sample_has_its_fields", mentions="not int64")
def ids_are_int32(pipeline: Pipeline) -> Pipeline:
    """Ids are made as int32."""
    return changed(pipeline, _as_int32)


def _as_int32(sample: Sample) -> Sample:
    return {**sample, "input_ids": sample["input_ids"].int()}


@fault(caught_by="sample_equals_the_processors_own", mentions="off by -1")
def sample_is_made_of_the_record_before(pipeline: Pipeline) -> Pipeline:
    """Asked for a sample, the dataset takes the record before it."""
    return replace(pipeline, sample=partial(_before, pipeline.part("sample"), pipeline.size))


def _before(sample: Any, size: int, index: int) -> Sample:
    made: Sample = sample((index - 1) % size)
    return {**made, "sample_index": torch.tensor([index])}


@fault(caught_by="labels_are_the_answers", mentions="go on after the answer's end")
def template_text_is_labelled(pipeline: Pipeline) -> Pipeline:
    """The line end that the template writes behind an answer has a label."""
    return changed(pipeline, _label_after)


def _label_after(sample: Sample) -> Sample:
    labels = sample["labels"].clone()
    for _, end in label_runs(sample, IGNORED):
        if end < len(labels):
            labels[end] = sample["input_ids"][end]
    return relabelled(sample, labels)


@fault(caught_by="labels_are_the_answers", mentions="begin after the answer's start")
def first_answer_token_without_label(pipeline: Pipeline) -> Pipeline:
    """The first token of an answer has no label, as where prompt and answer are tokenised apart."""
    return changed(pipeline, _unlabel_starts)


def _unlabel_starts(sample: Sample) -> Sample:
    labels = sample["labels"].clone()
    for start, end in label_runs(sample, IGNORED):
        if end - start > 2:
            labels[start] = IGNORED
    return relabelled(sample, labels)


@fault(caught_by="every_turn_is_labelled", mentions="a question is labelled too")
def later_questions_are_labelled(pipeline: Pipeline) -> Pipeline:
    """Only the first assistant marker is looked for: all that follows is labelled, later questions too."""
    return changed(pipeline, _label_all_after_first)


def _label_all_after_first(sample: Sample) -> Sample:
    runs = label_runs(sample, IGNORED)
    if len(runs) < 2:
        return sample
    labels = sample["labels"].clone()
    labels[runs[0][0] : runs[-2][0]] = sample["input_ids"][runs[0][0] : runs[-2][0]]
    # Runs stay apart in number only if something between them stays unlabelled.
    labels[runs[-2][1] + 1] = sample["input_ids"][runs[-2][1] + 1]
    labels[runs[-2][1] + 3] = sample["input_ids"][runs[-2][1] + 3]
    return relabelled(sample, labels)


@fault(caught_by="every_turn_is_labelled", mentions="only the last answer")
def only_the_last_answer_is_labelled(pipeline: Pipeline) -> Pipeline:
    """Earlier answers of a chat are treated as prompt."""
    return changed(pipeline, _only_last)


def _only_last(sample: Sample) -> Sample:
    labels = sample["labels"].clone()
    labels[: label_runs(sample, IGNORED)[-1][0]] = IGNORED
    return relabelled(sample, labels)


@fault(caught_by="labels_copy_the_ids", mentions="shifted by one already")
def labels_are_shifted_in_the_sample(pipeline: Pipeline) -> Pipeline:
    """Labels already stand at the position that predicts them; the loss shifts them again."""
    return changed(pipeline, _shift)


def _shift(sample: Sample) -> Sample:
    return relabelled(sample, torch.cat([sample["labels"][1:], sample["labels"].new_full((1,), IGNORED)]))


@fault(caught_by="labels_copy_the_ids", mentions="visual tokens")
def visual_tokens_are_labelled(pipeline: Pipeline) -> Pipeline:
    """Labels are a copy of the ids after expansion, visual tokens included."""
    return changed(pipeline, partial(label_visual_tokens, pipeline.visual_token_ids[0]))


def label_visual_tokens(visual: int, sample: Sample) -> Sample:
    """Labels that were copied from the ids and not masked on images."""
    return relabelled(sample, torch.where(sample["input_ids"] == visual, sample["input_ids"], sample["labels"]))


@fault(caught_by="sample_has_its_fields", mentions="not 1-D")
def batch_axis_is_kept(pipeline: Pipeline) -> Pipeline:
    """`input_ids` has the processor's batch axis: shape (1, length)."""
    return changed(pipeline, _with_axis)


def _with_axis(sample: Sample) -> Sample:
    return {**sample, "input_ids": sample["input_ids"].unsqueeze(0)}


@fault(caught_by="sample_has_its_fields", mentions="`labels`")
def labels_are_int32(pipeline: Pipeline) -> Pipeline:
    """Labels are int32, which cross entropy does not take."""
    return changed(pipeline, _int32)


def _int32(sample: Sample) -> Sample:
    return relabelled(sample, sample["labels"].int())


@fault(caught_by="sample_has_its_fields", mentions="another index")
def index_is_one_off(pipeline: Pipeline) -> Pipeline:
    """Samples carry the index of their neighbour."""
    return replace(pipeline, sample=partial(then, pipeline.part("sample"), _next_index))


def _next_index(sample: Sample) -> Sample:
    return {**sample, "sample_index": sample["sample_index"] + 1}


@fault(caught_by="sample_equals_the_processors_own", mentions="system prompt")
def system_prompt_is_added(pipeline: Pipeline) -> Pipeline:
    """Every conversation opens with a system prompt that the checkpoint's template has not."""
    text = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
    prefix = torch.tensor(pipeline.tokenizer.encode(text, add_special_tokens=False))
    more = changed(pipeline, partial(_prefixed, prefix))
    return replace(more, length=partial(_length_of, more.part("sample")))


def _prefixed(prefix: torch.Tensor, sample: Sample) -> Sample:
    fill = {"input_ids": prefix, "labels": torch.full_like(prefix, IGNORED), "attention_mask": torch.ones_like(prefix)}
    return {
        name: torch.cat([fill.get(name, torch.zeros_like(prefix)), value]) if name in SEQUENCE_FIELDS else value
        for name, value in sample.items()
    }


@fault(caught_by="sample_equals_the_processors_own", mentions="stripped")
def line_end_after_the_image_is_dropped(pipeline: Pipeline) -> Pipeline:
    """Human turns are stripped after the placeholder is taken out: `<image>\\n` loses its line end."""
    assert pipeline.records is not None
    return replace(pipeline, sample=partial(_finish_stripped, pipeline))


def _finish_stripped(pipeline: Pipeline, index: int) -> Sample:
    assert pipeline.records is not None
    assert pipeline.finish is not None
    assert pipeline.image_bytes is not None
    found = pipeline.records[index]
    turns = tuple(Turn(turn.role, turn.value.replace("<image>\n", "<image>")) for turn in found.conversations)
    sample = pipeline.finish(replace(found, conversations=turns), pipeline.image_bytes)
    return {**sample, "sample_index": torch.tensor([index])}


@fault(caught_by="sample_equals_the_processors_own", mentions="another order")
def images_of_a_record_are_swapped(pipeline: Pipeline) -> Pipeline:
    """The pixels of a record's images come in reverse order; grids and tokens stay."""
    return changed(pipeline, _swap_pixels)


def _swap_pixels(sample: Sample) -> Sample:
    if "image_grid_thw" not in sample:
        return sample
    parts = sample["pixel_values"].split(sample["image_grid_thw"].prod(dim=1).tolist())
    if len(parts) < 2:
        return sample
    return {**sample, "pixel_values": torch.cat(parts[::-1])}


@fault(caught_by="length_is_true", mentions="visual tokens are left out")
def length_before_expansion(pipeline: Pipeline) -> Pipeline:
    """Lengths count one token an image."""
    return replace(pipeline, length=partial(_text_length, pipeline.part("sample"), pipeline.visual_token_ids[0]))


def _text_length(make: Callable[[int], Sample], visual: int, index: int) -> int:
    sample = make(index)
    images = len(sample["image_grid_thw"]) if "image_grid_thw" in sample else 0
    return int((sample["input_ids"] != visual).sum()) + images


@fault(caught_by="length_is_true", mentions="not the length of sample")
def length_off_for_two_images(pipeline: Pipeline) -> Pipeline:
    """Lengths forget the markers around every image but the first."""
    return replace(pipeline, length=partial(_short_length, pipeline.part("sample")))


def _short_length(make: Callable[[int], Sample], index: int) -> int:
    sample = make(index)
    images = len(sample["image_grid_thw"]) if "image_grid_thw" in sample else 0
    return len(sample["input_ids"]) - 2 * max(0, images - 1)


@fault(caught_by="visual_tokens_match_the_images", mentions="counted after merging")
def patches_are_counted_after_merging(pipeline: Pipeline) -> Pipeline:
    """`odb_n_patches` is the number of visual tokens, a quarter of the patches."""
    return changed(pipeline, partial(_merged_patches, pipeline.patches_per_visual_token))


def _merged_patches(merged: int, sample: Sample) -> Sample:
    return {**sample, "odb_n_patches": sample["odb_n_patches"] // merged}


def _uncapped() -> SampleMaker:
    return SampleMaker(ours.stack().processor, max_length=sys.maxsize, backend="qwen_vl")


@fault(caught_by="truncation_is_whole", mentions="kept its full length")
def token_types_are_not_truncated(pipeline: Pipeline) -> Pipeline:
    """`mm_token_type_ids` keeps its length where ids and labels are cut."""
    return replace(pipeline, finish=partial(_finish_cut, _uncapped(), pipeline.part("max_length"), TYPES))


@fault(caught_by="truncation_is_whole", mentions="visual span was cut")
def cap_cuts_through_an_image(pipeline: Pipeline) -> Pipeline:
    """The length cap cuts wherever it falls, through visual tokens too, as long as a label is left."""
    return replace(pipeline, finish=partial(_finish_cut, _uncapped(), pipeline.part("max_length"), ()))


def _finish_cut(
    maker: SampleMaker, cap: int, uncut: tuple[str, ...], record: Record, image_bytes: ImageBytes
) -> Sample:
    """Every per-token field but ``uncut`` cut at ``cap`` from the left, so that the answer stays."""
    sample = maker.finish(record, image_bytes)
    cut = {
        name: value[-cap:] if name in SEQUENCE_FIELDS and name not in uncut else value for name, value in sample.items()
    }
    if not bool((cut["labels"][1:] != IGNORED).any()):
        raise SampleError(record.id, "no_label", "no label is left")
    return cut


@fault(caught_by="truncation_is_whole", mentions="no label left")
def all_labels_are_cut_away(pipeline: Pipeline) -> Pipeline:
    """A long question is cut from its end, and its answer with it: the loss reads 0.0 where it is NaN."""
    return replace(pipeline, finish=partial(_finish_cut_right, _uncapped(), pipeline.part("max_length")))


def _finish_cut_right(maker: SampleMaker, cap: int, record: Record, image_bytes: ImageBytes) -> Sample:
    return kept_first(maker.finish(record, image_bytes), cap)


def kept_first(sample: Sample, cap: int) -> Sample:
    return {name: value[:cap] if name in SEQUENCE_FIELDS else value for name, value in sample.items()}


@fault(caught_by="truncation_is_whole", mentions="longer than max_length")
def cap_is_applied_before_expansion(pipeline: Pipeline) -> Pipeline:
    """The length cap counts one token an image, so long records with images pass it."""
    return replace(pipeline, finish=partial(_finish_text_cap, pipeline.part("finish"), _uncapped()))


def _finish_text_cap(capped: Any, maker: SampleMaker, record: Record, image_bytes: ImageBytes) -> Sample:
    made: Sample = (maker.finish if record.images else capped)(record, image_bytes)
    return made


@fault(caught_by="images_are_seen_as_people_see_them", mentions="EXIF orientation is ignored")
def exif_orientation_is_ignored(pipeline: Pipeline) -> Pipeline:
    """Pictures are read as stored, not as turned by their EXIF tag."""
    return replace(pipeline, finish=partial(_finish_with, pipeline.part("finish"), _without_exif))


@fault(caught_by="images_are_seen_as_people_see_them", mentions="alpha is dropped")
def alpha_is_dropped(pipeline: Pipeline) -> Pipeline:
    """Transparency is dropped by convert("RGB"): what lay hidden is seen."""
    return replace(pipeline, finish=partial(_finish_with, pipeline.part("finish"), _opaque))


@fault(caught_by="images_are_seen_as_people_see_them", mentions="palette picture")
def palette_transparency_is_dropped(pipeline: Pipeline) -> Pipeline:
    """RGBA is composited on white, a transparent palette entry is forgotten."""
    return replace(pipeline, finish=partial(_finish_with, pipeline.part("finish"), _opaque_palette))


def _finish_with(
    finish: Any, change: Callable[[Image.Image], Image.Image], record: Record, image_bytes: ImageBytes
) -> Sample:
    made: Sample = finish(record, partial(_changed_bytes, image_bytes, change))
    return made


def _changed_bytes(image_bytes: ImageBytes, change: Callable[[Image.Image], Image.Image], path: str) -> bytes:
    return png(change(Image.open(io.BytesIO(image_bytes(path)))))


def _without_exif(image: Image.Image) -> Image.Image:
    stored = image.convert("RGBA" if image.has_transparency_data else "RGB")
    bare = Image.new(stored.mode, stored.size)
    bare.paste(stored)
    return bare


def _opaque(image: Image.Image) -> Image.Image:
    made = ImageOps.exif_transpose(image).convert("RGB")
    made.info.pop("transparency", None)  # PIL keeps a transparent palette entry as a transparent colour
    return made


def _opaque_palette(image: Image.Image) -> Image.Image:
    return _opaque(image) if image.mode == "P" else ImageOps.exif_transpose(image)


@fault(caught_by="pixel_cap_is_obeyed", mentions="cap has no effect")
def pixel_cap_has_no_effect(pipeline: Pipeline) -> Pipeline:
    """The cap is set where the image processor does not read it: large pictures stay large."""
    uncapped = load_processor(ours.stack().checkpoint, image_max_pixels=0)
    return replace(pipeline, finish=SampleMaker(uncapped, max_length=sys.maxsize, backend="qwen_vl").finish)


@fault(caught_by="pixel_cap_is_obeyed", mentions="no wide strip")
def strip_is_read_with_axes_swapped(pipeline: Pipeline) -> Pipeline:
    """A strip three pixels high is taken for an array with its channels first."""
    return replace(pipeline, finish=partial(_finish_with, pipeline.part("finish"), _swapped_strip))


def _swapped_strip(image: Image.Image) -> Image.Image:
    return image.transpose(Image.Transpose.ROTATE_90) if image.height == 3 else image


@fault(caught_by="text_stays_text", mentions="became the special token")
def typed_tokens_become_special(pipeline: Pipeline) -> Pipeline:
    """Text is tokenised together with the template, so a user can end a turn or open an image."""
    return replace(pipeline, finish=partial(_finish_naively, pipeline))


def _finish_naively(pipeline: Pipeline, record: Record, image_bytes: ImageBytes) -> Sample:
    messages = reference.conversation(record, as_parts=True)
    text = pipeline.processor.apply_chat_template(messages, tokenize=False)
    ids = torch.tensor(pipeline.tokenizer.encode(text, add_special_tokens=False))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


@fault(caught_by="dataset_has_an_end", mentions="modulo")
def dataset_never_ends(pipeline: Pipeline) -> Pipeline:
    """Indices are taken modulo the size."""
    return replace(pipeline, sample=partial(_wrapped, pipeline.part("sample"), pipeline.size))


def _wrapped(make: Callable[[int], Sample], size: int, index: int) -> Sample:
    return make(index % size)


@fault(caught_by="sample_is_the_same_every_time", mentions="random augmentation")
def pictures_are_jittered(pipeline: Pipeline) -> Pipeline:
    """Pixels carry a little noise from the global random state."""
    return replace(pipeline, sample=partial(then, pipeline.part("sample"), _jitter))


def _jitter(sample: Sample) -> Sample:
    if "pixel_values" not in sample:
        return sample
    return {**sample, "pixel_values": sample["pixel_values"] + 1e-3 * torch.rand(())}


@fault(caught_by="parts_survive_pickling", mentions="dies under spawn")
def dataset_is_a_lambda(pipeline: Pipeline) -> Pipeline:
    """The dataset item is made by a lambda."""
    make = pipeline.sample
    assert make is not None
    return replace(pipeline, sample=lambda index: make(index))
