"""The public recipe against local folders in the Hub sets' own schema, and against `datasets`' own refusals."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.hub_folders import LLAVA_CONFIGS, llava_row, picture, text_row, write_recipe_root, write_set

from odb_example.data import hub
from odb_example.data.build import build_data
from odb_example.data.recipe import build_public
from odb_example.data.sources import LLAVA, SOURCES, TOTAL, chosen_sources
from odb_example.data.store import Store
from odb_example.data.verify import verify
from odb_example.errors import UserError
from odb_example.settings import Settings

pytestmark = pytest.mark.unit

PUBLISHED = [source.name for source in SOURCES]


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """`datasets` pauses 5 s after each interleaved stream, for threads that would outlive a process ending then."""
    monkeypatch.setattr("datasets.config.SLEEP_TIME_ON_THREADS_SHUTDOWN", 0)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_recipe_root(tmp_path / "hub")


@pytest.fixture
def settings(tmp_path: Path, root: Path) -> Callable[..., Settings]:
    def made(**changes: Any) -> Settings:
        fields = {"data": str(tmp_path / "store"), "recipe_root": str(root), "cache_dir": str(tmp_path / "cache")}
        return Settings(**{**fields, **changes})

    return made


def test_all_published_sources_become_one_sound_store(settings: Callable[..., Settings], tmp_path: Path) -> None:
    report = build_data(settings())
    store = Store.open(tmp_path / "store")
    assert report.per_source == dict.fromkeys(PUBLISHED, 6)
    assert [record.source for record in store] == [name for name in PUBLISHED for _ in range(6)]
    assert report.fingerprint == store.fingerprint
    assert list(verify(tmp_path / "store")) == []
    assert "99,573" in report.summary()


def test_the_targets_add_up_to_the_public_total() -> None:
    for vqa_like in (None, "some/vqa"):
        sources = chosen_sources("all", vqa_like=vqa_like, caps={}, revisions={})
        assert sum(source.target for source in sources) == TOTAL


def test_known_defects_are_counted_listed_and_do_not_stop_the_build(tmp_path: Path) -> None:
    rows = [
        llava_row(0),
        llava_row(1, image=None),
        llava_row(2, image=picture(2)[:-40]),
        llava_row(3, turns=[("system", "x"), ("human", "y"), ("gpt", "z")]),
        llava_row(4, turns=[("human", "No mark here."), ("gpt", "Fine.")]),
        llava_row(5, image=picture(5, form="PNG")),
    ]
    write_set(tmp_path / "hub" / LLAVA, {"iiit5k": rows})
    report = build_public(Settings(data=str(tmp_path / "store"), recipe_root=str(tmp_path / "hub"), sources="iiit5k"))
    assert report.skipped == {"iiit5k": {"no_image": 1, "role_refused": 1, "undecodable_image": 1}}
    assert [record.upstream["id"] for record in Store.open(tmp_path / "store")] == ["row-0", "row-4", "row-5"]
    listed = [json.loads(line) for line in (tmp_path / "store" / "skipped.jsonl").read_text().splitlines()]
    assert [(row["source"], row["row"], row["reason"]) for row in listed] == [
        ("iiit5k", "1", "no_image"),
        ("iiit5k", "2", "undecodable_image"),
        ("iiit5k", "3", "role_refused"),
    ]


def test_neither_threads_nor_shards_read_change_the_store(settings: Callable[..., Settings], tmp_path: Path) -> None:
    prints = {
        build_public(settings(data=str(tmp_path / f"store-{workers}"), build_workers=workers)).fingerprint
        for workers in (1, 2, 5)
    }
    assert len(prints) == 1


def test_a_cap_takes_a_seeded_sample(tmp_path: Path) -> None:
    write_set(tmp_path / "hub" / LLAVA, {"iiit5k": [llava_row(number) for number in range(60)]}, shards=3)

    def ids(name: str, seed: int) -> list[str]:
        build_public(
            Settings(
                data=str(tmp_path / name), recipe_root=str(tmp_path / "hub"), sources="iiit5k", caps={"iiit5k": 20},
                seed=seed,
            )
        )  # fmt: skip
        return [record.upstream["id"] for record in Store.open(tmp_path / name)]

    first, again, other = ids("a", 1), ids("b", 1), ids("c", 2)
    assert len(set(first)) == 20
    assert first == again
    assert first != other


def test_a_short_answer_source_named_by_the_user_is_taken_in(settings: Callable[..., Settings], tmp_path: Path) -> None:
    rows = [{"image": llava_row(n)["image"], "question": f"Which {n}?", "answer": f"{n}"} for n in range(4)]
    folder = write_set(tmp_path / "mine", {"vqa": rows, "other": rows[:1]})
    report = build_public(settings(vqa_like=f"{folder}#vqa", sources="iiit5k,vqa_like"))
    assert report.per_source == {"iiit5k": 6, "vqa_like": 4}
    assert report.targets["vqa_like"] == 14_573


def test_the_same_plan_is_nothing_to_do_and_another_needs_overwrite(settings: Callable[..., Settings]) -> None:
    first = build_public(settings())
    again = build_public(settings())
    assert not first.nothing_to_do
    assert again.nothing_to_do
    assert again.fingerprint == first.fingerprint
    with pytest.raises(UserError, match="another data store"):
        build_public(settings(sources="iiit5k"))
    assert build_public(settings(sources="iiit5k", overwrite=True)).records == 6


def test_a_changed_local_copy_is_another_plan(settings: Callable[..., Settings], root: Path) -> None:
    build_public(settings())
    write_set(root / "priyank-m" / "more", {"default": [text_row(9)]}).rename(root / LLAVA / "more")
    with pytest.raises(UserError, match="another data store"):
        build_public(settings())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sources": "aokvqa,coco"}, "unknown source 'coco'"),
        ({"sources": "vqa_like"}, "no public origin"),
        ({"caps": {"coco": 3}}, "unknown source 'coco'"),
        ({"caps": {"iiit5k": 0}}, "leaves nothing"),
        ({"revisions": {"coco": "main"}}, "unknown source 'coco'"),
        ({"recipe_root": "nowhere"}, "is missing: source aokvqa is looked for there"),
    ],
)
def test_bad_options_are_refused_before_anything_is_read(
    settings: Callable[..., Settings], changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        build_public(settings(**changes))


def test_a_missing_config_is_named_with_those_there_are(tmp_path: Path) -> None:
    write_set(tmp_path / "hub" / LLAVA, {"other": [llava_row(0)], "another": [llava_row(1)]})
    with pytest.raises(UserError, match=r"source iiit5k: .*iiit5k.* not found.*other"):
        build_public(Settings(data=str(tmp_path / "store"), recipe_root=str(tmp_path / "hub"), sources="iiit5k"))
    assert not (tmp_path / "store").exists()


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    write_set(tmp_path / "hub" / LLAVA, {"iiit5k": [text_row(0)]})
    with pytest.raises(UserError, match=r"source iiit5k: .* has no column conversations; its columns are image, text"):
        build_public(Settings(data=str(tmp_path / "store"), recipe_root=str(tmp_path / "hub"), sources="iiit5k"))


def test_offline_without_copies_is_one_line_that_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match=r"source iiit5k: .* cannot be read.*; .*--recipe-root") as raised:
        build_public(Settings(data=str(tmp_path / "store"), sources="iiit5k"))
    assert "\n" not in str(raised.value)


def test_a_commit_as_revision_needs_no_question_to_the_hub() -> None:
    (source,) = chosen_sources("iiit5k", vqa_like=None, caps={}, revisions={"iiit5k": "0123456789" * 4})
    assert hub.resolved_revision(source, None) == "0123456789" * 4


def test_a_source_is_found_by_its_hub_name_under_the_root(root: Path) -> None:
    for source in SOURCES:
        assert hub.local_folder(source, str(root)) == root / source.hub_id
    assert {source.config for source in SOURCES} == {*LLAVA_CONFIGS, None}


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenacity.nap.time.sleep", lambda seconds: None)


@pytest.mark.usefixtures("no_pauses")
def test_a_broken_connection_is_taken_up_at_the_row_where_it_broke() -> None:
    opened_at: list[int] = []

    def flaky(skip: int) -> Iterator[dict[str, int]]:
        opened_at.append(skip)
        if len(opened_at) % 2 == 0:
            raise ConnectionError("refused")
        for number in range(skip, 10):
            if number == skip + 4:
                raise TimeoutError("gone")
            yield {"row": number}

    assert [row["row"] for row in hub.resuming(flaky, SOURCES[0])] == list(range(10))
    assert opened_at == [0, 4, 4, 8, 8]


@pytest.mark.usefixtures("no_pauses")
def test_a_connection_that_stays_away_is_one_error_after_all_attempts() -> None:
    tried: list[int] = []

    def dead(skip: int) -> Iterator[dict[str, int]]:
        tried.append(skip)
        raise ConnectionError("refused")

    with pytest.raises(UserError, match=r"source aokvqa: .*refused"):
        list(hub.resuming(dead, SOURCES[0]))
    assert len(tried) == hub.ATTEMPTS
