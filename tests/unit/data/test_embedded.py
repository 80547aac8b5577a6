"""The embedded mix is made of true statements about repeatable pictures."""

from __future__ import annotations

import itertools
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from odb_example.data.embedded import benchmark
from odb_example.data.embedded.captions import caption, caption_words
from odb_example.data.embedded.dice import Dice
from odb_example.data.embedded.glyphs import HEIGHT, glyph_mask, word_mask
from odb_example.data.embedded.material import CHINESE_WORDS, LATIN_WORDS, PHOTOGRAPHS, Pool, material
from odb_example.data.embedded.mix import SOURCES, counts
from odb_example.data.embedded.questions import QUESTIONS, ask, prompt
from odb_example.data.embedded.scenes import INKS, draw_digit, draw_number, draw_shape, draw_word
from odb_example.data.pixels import MAX_RATIO, blend, canvas, grain, paste, pixel_digest, resize
from odb_example.data.records import IMAGE_PLACEHOLDER
from odb_example.evaluate.mmmu import build_prompt
from odb_example.evaluate.subjects import MMMU_VALIDATION, SUBJECTS

pytestmark = pytest.mark.unit

POOLS: tuple[Pool, ...] = get_args(Pool)
PICTURES = hnp.arrays(np.uint8, st.tuples(st.integers(1, 40), st.integers(1, 40), st.just(3)))
SIZES = st.integers(1, 60)


@given(PICTURES, SIZES, SIZES)
def test_resizing_stays_within_the_range_of_the_picture(picture: np.ndarray, height: int, width: int) -> None:
    resized = resize(picture, height, width)
    assert resized.shape == (height, width, 3)
    assert resized.dtype == np.uint8
    assert resized.min() >= picture.min()
    assert resized.max() <= picture.max()


@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 5))
def test_shrinking_by_a_whole_factor_is_the_mean(height: int, width: int, factor: int) -> None:
    picture = np.frombuffer(Dice("mean").noise(height * width * factor**2 * 3), np.uint8)
    picture = picture.reshape(height * factor, width * factor, 3)
    rows = picture.reshape(height, factor, width * factor, 3).astype(int).sum(1) // factor
    expected = rows.reshape(height, width, factor, 3).sum(2) // factor
    assert (resize(picture, height, width) == expected).all()


def test_full_cover_is_ink_and_no_cover_is_paper() -> None:
    paper = canvas(2, 2, (10, 20, 30))
    mask = np.array([[255, 0], [0, 255]], np.uint8)
    assert blend(paper, mask, (200, 100, 0)).tolist() == [
        [[200, 100, 0], [10, 20, 30]],
        [[10, 20, 30], [200, 100, 0]],
    ]
    assert (paste(canvas(5, 5, (0, 0, 0)), mask, (9, 9, 9), 3, 1)[3:, 1:3].sum(2) == [[27, 0], [0, 27]]).all()


@given(PICTURES, st.integers(0, 40))
def test_grain_moves_no_value_further_than_asked(picture: np.ndarray, amount: int) -> None:
    noisy = grain(picture, Dice("grain").noise(picture.shape[0] * picture.shape[1]), amount)
    assert np.abs(noisy.astype(int) - picture).max() <= amount


@given(PICTURES, PICTURES)
def test_a_digest_tells_pictures_apart(one: np.ndarray, other: np.ndarray) -> None:
    same = one.shape == other.shape and bool((one == other).all())
    assert (pixel_digest(one) == pixel_digest(other)) is same


@pytest.mark.parametrize("character", "iWgQ中国")
def test_a_glyph_has_ink_inside_its_box(character: str) -> None:
    mask = glyph_mask(character)
    assert mask.shape[0] == HEIGHT
    assert 0.03 < (mask > 127).mean() < 0.6
    assert mask[0].max() == 0


def test_different_words_look_different() -> None:
    masks = [word_mask(word).tobytes() for word in (*LATIN_WORDS, *CHINESE_WORDS)]
    assert len(set(masks)) == len(masks) == len({*LATIN_WORDS, *CHINESE_WORDS})


def test_pools_share_no_digit_word_or_pixel_column() -> None:
    digits = [{digit.ink.tobytes() for value in material(pool).digits for digit in value} for pool in POOLS]
    words = [{*material(pool).latin, *material(pool).chinese} for pool in POOLS]
    columns = [
        {
            (name, photo[:, column].tobytes())
            for name, photo in material(pool).photographs.items()
            for column in range(photo.shape[1])
        }
        for pool in POOLS
    ]
    for kind in (digits, words, columns):
        for one, other in itertools.combinations(kind, 2):
            assert one
            assert other
            assert not one & other


def test_every_pool_has_every_digit_and_every_photograph() -> None:
    for pool in POOLS:
        assert all(len(digits) >= 10 for digits in material(pool).digits)
        assert set(material(pool).photographs) == set(PHOTOGRAPHS)


def test_the_same_name_throws_the_same_dice() -> None:
    def throws(*name: object) -> list[object]:
        dice = Dice(*name)
        return [dice.share(), dice.below(9), dice.between(3, 5), dice.shuffled(range(8)), dice.noise(5)]

    assert throws("a", 1) == throws("a", 1)
    assert throws("a", 1) != throws("a", 2)


def test_the_stream_of_the_dice_is_the_same_on_any_machine() -> None:
    dice = Dice("stream")
    assert [dice.below(1000) for _ in range(4)] == [503, 668, 823, 196]


@given(st.integers(0, 10**6))
def test_dice_stay_in_their_bounds(name: int) -> None:
    dice = Dice(name)
    assert 0 <= dice.below(7) < 7
    assert 3 <= dice.between(3, 5) <= 5
    assert sorted(dice.shuffled(range(9))) == list(range(9))
    assert dice.weighted([("never", 0), ("always", 1)]) == "always"


@given(st.integers(0, 10**6))
def test_captions_open_with_what_is_shown_and_keep_to_their_length(name: int) -> None:
    dice = Dice("caption", name)
    draw = dice.choose((draw_digit, draw_number, draw_shape, draw_word))
    scene = draw(material("validation"), dice)
    words = caption_words(dice)
    told = caption([scene], dice, words)
    opening = told.split(". ")[0]
    shown = {"digit": "value", "number": "text", "shape": "shape", "word": "text"}[scene.kind]
    assert scene.facts[shown] in opening
    assert len(told.split()) <= max(words, len(opening.split()))


def test_a_shape_is_in_its_ink_and_its_corner() -> None:
    for name in range(60):
        scene = draw_shape(material("training"), Dice("shape", name))
        ink = np.array(INKS[scene.facts["ink"]], np.uint8)
        rows, columns = np.nonzero((scene.pixels == ink).all(axis=2))
        height, width, _ = scene.pixels.shape
        across = "left" if columns.mean() < width / 2 else "right"
        assert scene.facts["place"] == f"{'upper' if rows.mean() < height / 2 else 'lower'} {across}"


@pytest.mark.parametrize("kind", QUESTIONS, ids=lambda kind: kind.name)
def test_options_keep_their_order_and_every_answer_occurs(kind: object) -> None:
    assert kind in QUESTIONS
    asked = [ask(kind, material("benchmark"), Dice("ask", number)) for number in range(80)]  # type: ignore[arg-type]
    assert {one.answer for one in asked} == set(range(len(asked[0].type.options)))
    assert {one.type.options for one in asked} == {asked[0].type.options}


@pytest.mark.parametrize("kind", QUESTIONS, ids=lambda kind: kind.name)
def test_training_asks_in_the_words_of_the_scoring_protocol(kind: object) -> None:
    assert kind in QUESTIONS
    assert prompt(kind.text, kind.options) == build_prompt(kind.text, kind.options)  # type: ignore[attr-defined]
    assert IMAGE_PLACEHOLDER not in prompt(kind.text, kind.options)  # type: ignore[attr-defined]


@given(st.integers(100, 100_000))
def test_shares_add_up_and_short_answers_make_a_quarter(records: int) -> None:
    whole = counts(records)
    assert sum(whole.values()) == records
    assert min(whole.values()) >= 1
    short = sum(whole[name] for name in whole if name not in ("image_textualization", "sharegpt4o"))
    assert 0.17 <= short / records <= 0.25
    assert list(whole) == [source.name for source in SOURCES]


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_no_picture_is_beyond_the_processors_ratio(source: object) -> None:
    assert source in SOURCES
    for number in range(60):
        drawn = source.draw(material("training"), Dice("ratio", number))  # type: ignore[attr-defined]
        for scene in drawn.scenes:
            height, width, _ = scene.pixels.shape
            assert max(height, width) <= MAX_RATIO * min(height, width)


def test_the_benchmark_has_the_subjects_and_the_excluded_rows_of_mmmu() -> None:
    assert sorted(SUBJECTS) == sorted(benchmark.SUBJECTS)
    rows = {subject: benchmark.rows(subject, "validation", 0) for subject in ("Biology", "Electronics", "Pharmacy")}
    for subject, found in rows.items():
        left_out = [row for row in found if not (len(row["answer"]) == 1 and row["answer"] in "ABCDEFGH")]
        assert len(left_out) == MMMU_VALIDATION.excluded_by_subject[subject]
    assert [row["answer"] for row in rows["Biology"]].count("I") == 1
    letters = {row["id"] for row in rows["Pharmacy"] if row["question_type"] == "open" and row["answer"] in set("ABCD")}
    assert letters == {"validation_Pharmacy_19", "validation_Pharmacy_26"}
