"""A finished sample is what the model will see: true tokens, true length, labels on the answers, whole images."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator

import numpy as np
import torch
from PIL import Image

from odb_example.conformance import reference
from odb_example.conformance.check import NotApplicable, needs
from odb_example.conformance.expect import ConformanceError, expect, expect_close, expect_equal
from odb_example.conformance.pipeline import SEQUENCE_FIELDS, Pipeline, Sample
from odb_example.conformance.probes import PICTURES, picture, png, reader, record, turned_by_tag, with_images
from odb_example.data.records import Record


@needs("sample")
def sample_has_its_fields(pipeline: Pipeline) -> None:
    """A sample holds 1-D int64 ids, labels and mask of one length, all attended, and its own index."""
    for index, sample in pipeline.numbered:
        name = pipeline.named(index)
        for field in ("input_ids", "attention_mask", "labels"):
            expect(
                field in sample,
                claim=f"sample {name} has no `{field}`",
                came=sorted(sample),
                likely="the field is made in the collator; make it in the dataset item",
            )
        ids = sample["input_ids"]
        expect(
            ids.dim() == 1,
            claim=f"`input_ids` of sample {name} is not 1-D",
            expected="shape (length,)",
            came=list(ids.shape),
            likely="the processor's batch axis was kept; a loader that reads len(input_ids) takes every sample as "
            "length 1",
        )
        for field in [field for field in SEQUENCE_FIELDS if field in sample]:
            expect_equal(
                list(sample[field].shape),
                [len(ids)],
                claim=f"`{field}` of sample {name} does not fit its {len(ids)} tokens",
                likely=f"`{field}` is not cut or made together with `input_ids`",
            )
            expect(
                sample[field].dtype == torch.int64,
                claim=f"`{field}` of sample {name} is not int64",
                expected=torch.int64,
                came=sample[field].dtype,
                likely="it is made with another dtype; embeddings and losses take int64",
            )
        expect(
            bool(sample["attention_mask"].all()),
            claim=f"sample {name} has tokens that are not attended",
            came=f"{int((sample['attention_mask'] == 0).sum())} of {len(ids)} masked",
            likely="padding was added before grouping; a sample holds its own tokens only",
        )
        if "sample_index" in sample:
            expect_equal(
                sample["sample_index"].tolist(),
                [index],
                claim=f"sample {name} carries another index than its own",
                likely="the position in a split is taken for the record's index, or the index is one off",
            )


@needs("sample")
def sample_is_the_same_every_time(pipeline: Pipeline) -> None:
    """Making a sample twice gives the same bits."""
    assert pipeline.sample is not None
    for index, first in pipeline.numbered:
        again = pipeline.sample(index)
        for field in first:
            expect_equal(
                again[field],
                first[field],
                claim=f"`{field}` of sample {pipeline.named(index)} differs when it is made again",
                likely="a random augmentation or a shared state; scores and lengths known up front are then wrong",
            )


@needs("sample", "records", "processor")
def sample_equals_the_processors_own(pipeline: Pipeline) -> None:
    """Token by token, a sample is the whole conversation through the checkpoint's own processor."""
    assert pipeline.records is not None
    for index, sample in pipeline.numbered:
        expected = reference.rendered(pipeline, pipeline.records[index], pipeline.image_bytes)
        if pipeline.max_length is not None and len(expected["input_ids"]) > pipeline.max_length:
            continue
        _expect_tokens(pipeline, sample, expected["input_ids"], index)
        for field in ("image_grid_thw", "pixel_values"):
            if field in expected:
                expect(
                    field in sample and torch.equal(sample[field], expected[field]),
                    claim=f"`{field}` of sample {pipeline.named(index)} is not what the processor makes of its images",
                    expected=expected[field],
                    came=sample.get(field, "nothing"),
                    likely="images are resized, turned or normalised twice, in another order, or read without their "
                    "EXIF turn or transparency",
                )


@needs("sample", "length")
def length_is_true(pipeline: Pipeline) -> None:
    """The length known up front is the length of the finished sample."""
    assert pipeline.length is not None
    for index, sample in pipeline.numbered:
        came, true = pipeline.length(index), len(sample["input_ids"])
        visual = _count(sample["input_ids"], pipeline.visual_token_ids)
        if came == true:
            continue
        if visual and came in (true - visual, true - visual + len(sample.get("image_grid_thw", ()))):
            likely = "visual tokens are left out: the length was taken before the placeholders were expanded"
        elif came > true and pipeline.max_length is not None and true <= pipeline.max_length < came:
            likely = "the length was taken before truncation"
        else:
            likely = "another template, another image size rule or another cap than the sample's own"
        expect_equal(
            came, true, claim=f"length({index}) is not the length of sample {pipeline.named(index)}", likely=likely
        )


@needs("sample", "visual_token_ids")
def visual_tokens_match_the_images(pipeline: Pipeline) -> None:
    """A sample has as many visual tokens as its images have merged patches, and as many patches as its grids say."""
    for index, sample in pipeline.numbered:
        expect_images_whole(pipeline, sample, f"sample {pipeline.named(index)}")


def expect_images_whole(pipeline: Pipeline, sample: Sample, name: str) -> None:
    """Visual tokens, grids, patches and `odb_n_patches` of one sample agree."""
    grids = sample.get("image_grid_thw", torch.zeros(0, 3, dtype=torch.int64))
    patches = int(grids.prod(dim=1).sum())
    visual = _count(sample["input_ids"], pipeline.visual_token_ids)
    expect_equal(
        visual,
        patches // pipeline.patches_per_visual_token,
        claim=f"{name} has {visual} visual tokens for {len(grids)} images of "
        f"{patches // pipeline.patches_per_visual_token} merged patches",
        likely="a visual span was cut or a placeholder expanded wrongly, or text of the record became a visual token",
    )
    pixels = len(sample["pixel_values"]) if "pixel_values" in sample else 0
    expect_equal(
        pixels,
        patches,
        claim=f"`pixel_values` of {name} does not hold the patches its grids name",
        likely="per-image tensors were cut with the tokens; pixels and grids are never sliced",
    )
    if "odb_n_patches" in sample:
        merged = patches // pipeline.patches_per_visual_token
        came = int(sample["odb_n_patches"])
        expect_equal(
            came,
            patches,
            claim=f"`odb_n_patches` of {name} is wrong",
            likely="patches are counted after merging" if came == merged and merged else
            "image_grid_thw.prod(dim=1).sum() is the number; the cap on patches does nothing without it",
        )  # fmt: skip


@needs("sample", "records", "processor")
def labels_are_the_answers(pipeline: Pipeline) -> None:
    """The labelled text is every assistant turn with its end token, and nothing else."""
    assert pipeline.records is not None
    for index, sample in pipeline.numbered:
        expected = [turn.value for turn in pipeline.records[index].conversations if turn.role == "gpt"]
        if pipeline.max_length is None or len(sample["input_ids"]) < pipeline.max_length:
            _expect_answers(pipeline, sample, expected, pipeline.named(index))


@needs("finish", "processor")
def every_turn_is_labelled(pipeline: Pipeline) -> None:
    """In a chat of several turns each answer is labelled, later questions and look-alike text are not."""
    assert pipeline.finish is not None
    answers = ["B", "No, C.", "7"]
    chat = record("Is it B? Answer B or C.", answers[0], "Sure it is B?", answers[1], "Then what is 3 + 4?", answers[2])
    sample = pipeline.finish(chat, reader({}))
    _expect_answers(pipeline, sample, answers, "a chat of three answers")


@needs("sample")
def labels_copy_the_ids(pipeline: Pipeline) -> None:
    """A label is the id at its own place (the model shifts), never on a visual token, and every sample has one."""
    for index, sample in pipeline.numbered:
        labels, ids, name = sample["labels"], sample["input_ids"], pipeline.named(index)
        places = (labels != pipeline.ignore_index).nonzero().flatten()
        expect(
            len(places) > 0,
            claim=f"sample {name} has no label",
            likely="the answer was cut off or its start was not found; refuse and count such a record",
        )
        on_image = [int(place) for place in places if int(ids[place]) in pipeline.visual_token_ids]
        expect(
            not on_image,
            claim=f"sample {name} has labels on {len(on_image)} visual tokens, the first at token {on_image[:1]}",
            likely="labels are copied from `input_ids` after expansion; mask them in the dataset item",
        )
        shifted = len(places) > 0 and torch.equal(labels[:-1][labels[:-1] != pipeline.ignore_index],
                                                  ids[1:][labels[:-1] != pipeline.ignore_index])  # fmt: skip
        expect_equal(
            labels[places],
            ids[places],
            unit="label",
            claim=f"labels of sample {name} are not its ids",
            likely="labels are shifted by one already; the loss shifts them a second time"
            if shifted
            else "labels come from another tokenisation than the ids",
        )


@needs("finish", "max_length")
def truncation_is_whole(pipeline: Pipeline) -> None:
    """A record beyond the length cap is refused, or shortened in text alone with a label left."""
    for case, probe in _long_records(pipeline):
        sample = _finished_or_refused(pipeline, probe, f"a record with {case}")
        if sample is None:
            continue
        ids = sample["input_ids"]
        expect(
            len(ids) <= (pipeline.max_length or 0),
            claim=f"{case}: the sample is longer than max_length",
            expected=f"at most {pipeline.max_length} tokens",
            came=len(ids),
            likely="the cap is applied before visual tokens are expanded, or to the text alone",
        )
        for field in [field for field in SEQUENCE_FIELDS if field in sample]:
            expect_equal(
                len(sample[field]),
                len(ids),
                claim=f"{case}: `{field}` kept its full length after truncation",
                likely="only ids and labels are cut; cut all per-token fields together",
            )
        if pipeline.takes_images:
            expect_images_whole(pipeline, sample, f"{case}: the shortened sample")
        expect(
            reference.predicted(sample, pipeline.ignore_index) > 0,
            claim=f"{case}: the shortened sample has no label left",
            likely="the tail with the answer is cut; shorten the prompt, or refuse the record and count it",
        )


@needs("finish", "processor")
def text_stays_text(pipeline: Pipeline) -> None:
    """Special tokens typed by a user stay text, or the record is refused: they never reach the model as tokens."""
    tokenizer = pipeline.tokenizer
    typed = [pipeline.end_of_turn, *(tokenizer.convert_ids_to_tokens(one) for one in pipeline.visual_token_ids)]
    plain = _finished_or_refused(pipeline, record("Is it X here?", "Yes."), "a plain record")
    assert plain is not None, "a plain record was refused"
    for token in typed:
        for side, probe in (
            ("question", record(f"Is it {token} here?", "Yes.")),
            ("answer", record("Is it X here?", f"Yes{token}.")),
        ):
            sample = _finished_or_refused(pipeline, probe, f"a {side} with {token}")
            if sample is None:
                continue
            one = tokenizer.convert_tokens_to_ids(token)
            expect_equal(
                _count(sample["input_ids"], [one]),
                _count(plain["input_ids"], [one]),
                claim=f"{token} typed in the {side} became the special token",
                likely="text is tokenised together with the template; a user can end a turn or open an image",
            )


@needs("finish", "visual_token_ids")
def images_are_seen_as_people_see_them(pipeline: Pipeline) -> None:
    """EXIF turns and transparency are applied: the pixels are those of the upright picture on white."""
    upright = picture(64, 96)
    _expect_same_picture(
        pipeline,
        turned_by_tag(upright),
        png(upright),
        what="a picture that is turned by its EXIF tag",
        likely="the EXIF orientation is ignored: PIL.Image.open does not apply it, ImageOps.exif_transpose does",
    )
    alpha = np.dstack([upright, np.full(upright.shape[:2], 255, np.uint8)])
    alpha[20:50, 30:80, 3] = 0
    on_white = upright.copy()
    on_white[20:50, 30:80] = 255
    palette = Image.fromarray(upright).quantize(64)
    shown = np.asarray(palette.convert("RGB")).copy()
    shown[np.asarray(palette) == 0] = 255
    for what, transparent, seen in (
        ("a picture with transparent parts (RGBA)", png(alpha), png(on_white)),
        ("a palette picture with a transparent entry (tRNS)", png(palette, transparency=0), png(shown)),
    ):
        _expect_same_picture(
            pipeline, transparent, seen, what=what,
            likely="alpha is dropped by convert('RGB'), which shows what lay hidden; composite on white",
        )  # fmt: skip
    grey = upright[..., 0]
    _expect_same_picture(
        pipeline,
        png(grey),
        png(np.dstack([grey] * 3)),
        what="a grey picture",
        likely="a picture with one channel is read with its axes in another order; convert to RGB first",
    )


@needs("finish", "visual_token_ids", "image_max_pixels")
def pixel_cap_is_obeyed(pipeline: Pipeline) -> None:
    """A picture above the cap is made smaller, one below keeps its size, and long strips keep their shape."""
    cap = pipeline.image_max_pixels or 0
    side = int(cap**0.5)
    for height, width in ((side * 2, side * 3), (side * 3, side + 7)):
        grid = _grid(pipeline, height, width)
        pixels = int(grid.prod()) * pipeline.patch_size**2
        expect(
            pixels <= cap,
            claim=f"a picture of {height} x {width} is above the pixel cap",
            expected=f"at most {cap} pixels",
            came=pixels,
            likely="the cap has no effect: set the image processor's `size`, not its `max_pixels`",
        )
        expect(
            pixels >= cap // 3,
            claim=f"a picture of {height} x {width} is shrunk far below the pixel cap",
            expected=f"near {cap} pixels",
            came=pixels,
            likely="another cap is in force than the one stated",
        )
    grid = _grid(pipeline, 3, 300)
    expect(
        int(grid[1]) < int(grid[2]),
        claim="a strip 3 pixels high and 300 wide is no wide strip",
        expected="fewer rows of patches than columns",
        came=grid.tolist(),
        likely="an array of height 1 or 3 is taken for channels first; hand PIL images to the processor",
    )


@needs("sample", "records")
def dataset_has_an_end(pipeline: Pipeline) -> None:
    """Past the end is IndexError: loaders that read until the end rely on it."""
    assert pipeline.sample is not None
    try:
        pipeline.sample(pipeline.size)
    except IndexError:
        return
    raise ConformanceError(
        "sample(len) gives a sample", expected="IndexError", came=f"sample({pipeline.size})",
        likely="indices are taken modulo the size; a loop over the dataset then never ends",
    )  # fmt: skip


@needs("sample", "collate")
def parts_survive_pickling(pipeline: Pipeline) -> None:
    """Dataset and collator can be pickled: workers under spawn get them that way."""
    for part in ("sample", "collate"):
        try:
            copy = pickle.loads(pickle.dumps(getattr(pipeline, part)))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ConformanceError(
                f"`{part}` cannot be pickled", came=str(error),
                likely="a lambda, a local function or an open file; it works under fork and dies under spawn",
            ) from error  # fmt: skip
        if part == "sample":
            for field, value in copy(pipeline.indices[0]).items():
                expect_equal(
                    value,
                    pipeline.samples[0][field],
                    claim=f"a pickled dataset makes another `{field}`",
                    likely="state that is not pickled, a seed or a cap among it, decides what a sample is",
                )


def _expect_tokens(pipeline: Pipeline, sample: Sample, expected: torch.Tensor, index: int) -> None:
    came = sample["input_ids"].to(torch.int64)  # its type is judged by sample_has_its_fields
    if torch.equal(came, expected):
        return
    visual, wanted = (_count(ids, pipeline.visual_token_ids) for ids in (came, expected))
    if off := _off_by(pipeline, came, index):
        likely = f"this is the record at {(index + off) % pipeline.size}: the index is off by {off:+d}"
    elif visual != wanted:
        likely = f"{visual} visual tokens where the processor makes {wanted}: the expansion is off by {visual - wanted}"
    elif len(came) > len(expected) and torch.equal(came[-len(expected) :], expected):
        extra = pipeline.tokenizer.decode(came[: -len(expected)].tolist())
        likely = f"something stands before the conversation: {extra!r}, a system prompt the checkpoint does not use"
    else:
        likely = "text is stripped or rewritten, or the template is written by hand; use the checkpoint's own"
    expect_equal(
        came, expected, unit="token", likely=likely,
        claim=f"sample {pipeline.named(index)} is not what the checkpoint's processor makes of the conversation",
    )  # fmt: skip


def _off_by(pipeline: Pipeline, came: torch.Tensor, index: int) -> int:
    """How far away the record lies that ``came`` is made of, where it is a neighbour; else 0."""
    assert pipeline.records is not None
    for off in (-1, 1):
        neighbour = pipeline.records[(index + off) % pipeline.size]
        if torch.equal(came, reference.rendered(pipeline, neighbour, pipeline.image_bytes)["input_ids"]):
            return off
    return 0


def _expect_answers(pipeline: Pipeline, sample: Sample, answers: list[str], name: str) -> None:
    def words(start: int, end: int) -> str:
        ids = sample["input_ids"][max(start, 0) : end].tolist()
        return str(pipeline.tokenizer.decode(ids, clean_up_tokenization_spaces=False))

    runs = label_runs(sample, pipeline.ignore_index)
    came = [words(*run) for run in runs]
    expected = [f"{answer}{pipeline.end_of_turn}" for answer in answers]
    if came == expected:
        return
    claim = f"labels of {name} are not its answers"
    likely = "answers are found by searching for their text, or a turn is left out"
    whole = words(0, len(sample["input_ids"]))
    early, late = ([words(start + by, end + by) for start, end in runs] for by in (1, -1))
    if absent := [want for want in expected if want not in whole]:
        likely = (
            f"the answer ends with another token than {pipeline.end_of_turn!r}"
            if absent[0].removesuffix(pipeline.end_of_turn) in whole
            else f"the sample does not hold {absent[0]!r}: it is made of another record, or of another text"
        )
    elif expected in (early, late):
        likely = (
            f"labels stand one place too {'early' if expected == early else 'late'}: the model shifts them by itself"
        )
    elif gap := _gap(runs, words, expected):
        claim = f"labels of {name} have a gap, {words(*gap)!r} inside an answer has none"
        likely = "labels are masked by their token's id, or by a span that reaches into the answer"
    elif len(came) == len(expected):
        got, want = next((got, want) for got, want in zip(came, expected, strict=True) if got != want)
        if got + pipeline.end_of_turn == want:
            claim, likely = f"the end token of an answer of {name} has no label", "the model never learns to stop"
        elif got.endswith(want):
            claim = f"labels of {name} begin before the answer, on {got.removesuffix(want)!r}"
            likely = "tokens of the prompt are labelled; the mask begins too early"
        elif want.endswith(got):
            claim = f"labels of {name} begin after the answer's start, {want.removesuffix(got)!r} has none"
            likely = "the mask ends too late, or prompt and answer were tokenised apart"
        elif got.startswith(want):
            claim = f"labels of {name} go on after the answer's end, on {got.removeprefix(want)!r}"
            likely = "what the template writes behind the end token is labelled"
    elif len(came) > len(expected) and any(all(run not in want for want in expected) for run in came):
        likely = "a question is labelled too: only the first marker is looked for, later user turns are trained on"
    elif came == expected[-len(came) :]:
        likely = "only the last answer is labelled; every assistant turn is to be learnt"
    expect_equal(came, expected, unit="answer", claim=claim, likely=likely)


def _gap(runs: list[tuple[int, int]], words: Callable[[int, int], str], answers: list[str]) -> tuple[int, int] | None:
    """Start and end of the first unlabelled stretch inside an answer."""
    for number, (start, end) in enumerate(runs):
        for _, stop in runs[number + 1 :]:
            if words(start, stop) in answers:
                return end, runs[number + 1][0]
    return None


def label_runs(sample: Sample, ignore_index: int) -> list[tuple[int, int]]:
    """Start and end of each unbroken run of labels."""
    labelled = (sample["labels"] != ignore_index).int()
    edges = torch.diff(labelled, prepend=labelled.new_zeros(1), append=labelled.new_zeros(1))
    return list(zip((edges == 1).nonzero().flatten().tolist(), (edges == -1).nonzero().flatten().tolist(), strict=True))


def _long_records(pipeline: Pipeline) -> Iterator[tuple[str, Record]]:
    assert pipeline.max_length is not None
    words = "one two three four five six seven eight nine ten " * (pipeline.max_length // 8)
    yield "a long question and a short answer", with_images(pipeline, words, "Yes.", 1)
    yield "a short question and a long answer", with_images(pipeline, "Tell me.", words, 1)
    yield "a long answer and no image", with_images(pipeline, "Tell me.", words, 0)
    if pipeline.takes_images:
        # So that the cap falls into the second picture wherever it stands: many steps of its length.
        for count in range(pipeline.max_length // 8, pipeline.max_length, max(1, pipeline.max_length // 24)):
            text = " ".join(["seven"] * count)
            yield f"two images behind {count} words", with_images(pipeline, text, "Yes.", 2, after=True)


def _finished_or_refused(pipeline: Pipeline, probe: Record, what: str) -> Sample | None:
    assert pipeline.finish is not None
    try:
        return pipeline.finish(probe, reader(PICTURES))
    except pipeline.refusal:
        return None
    except Exception as error:
        raise ConformanceError(
            f"{what} crashes", came=f"{type(error).__name__}: {error}",
            likely=f"refuse it by name ({pipeline.refusal.__name__}) before training, or hours in the run dies of it",
        ) from error  # fmt: skip


def _expect_same_picture(pipeline: Pipeline, came: bytes, seen: bytes, *, what: str, likely: str) -> None:
    pixels, expected = (_pixels(pipeline, data) for data in (came, seen))
    claim = f"{what} reaches the model as another picture"
    expect_equal(list(pixels.shape), list(expected.shape), claim=claim, likely=likely)
    expect_close(float((pixels - expected).abs().max()), 0.0, claim=claim, likely=likely, absolute=1e-3)


def _pixels(pipeline: Pipeline, data: bytes) -> torch.Tensor:
    return _with_picture(pipeline, data)["pixel_values"]


def _grid(pipeline: Pipeline, height: int, width: int) -> torch.Tensor:
    return _with_picture(pipeline, png(picture(height, width)))["image_grid_thw"][0]


def _with_picture(pipeline: Pipeline, data: bytes) -> Sample:
    assert pipeline.finish is not None
    sample = pipeline.finish(record("<image>\nWhat?", "A.", images=["p.png"]), reader({"p.png": data}))
    if "pixel_values" not in sample or "image_grid_thw" not in sample:
        raise NotApplicable("samples with `pixel_values` (patches) and `image_grid_thw`")
    return sample


def _count(ids: torch.Tensor, wanted: tuple[int, ...] | list[int]) -> int:
    return int(torch.isin(ids, torch.tensor(list(wanted), dtype=ids.dtype)).sum())
