"""The page and the terminal table: what they say, what they never let through, and what they say is missing."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console
from support.run_folders import Plan, write_run, write_training

from odb_example.errors import UserError
from odb_example.report.compare import build, compare_runs, report_run
from odb_example.report.page import render
from odb_example.report.reading import find_runs, read_runs, read_untrained
from odb_example.report.terminal import print_comparison
from odb_example.report.words import flat, number, readable, signed

pytestmark = pytest.mark.integration

HOSTILE = (
    '</style><script>alert("x")</script><img src=http://example.invalid/x.png onerror=alert(1)> [bold red]{{ 7*7 }} '
    "$\\frac{$ \u202etxet desrever\u202c \u2066\x00\x1b[31m\x9b ]]> --> &amp; " + "W" * 10_000
)


class Markup(HTMLParser):
    """Tags with their attributes, and the text outside of them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.unclosed: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in {"meta", "link", "img", "br", "path", "use", "rect", "line"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self.open and self.open[-1] == tag:
            self.open.pop()
        elif tag not in {"path", "use", "rect", "line"}:
            self.unclosed.append(tag)


def _page(*paths: Path) -> str:
    return render(build(read_runs(paths), read_untrained(paths)))


@pytest.fixture(scope="module")
def page(finished: Path) -> str:
    """The page of ODB's run beside the standard one."""
    return _page(finished / "odb-enable", finished / "standard-none")


def test_the_page_is_one_file_without_scripts_or_requests_under_3_mb(finished: Path, tmp_path: Path) -> None:
    compare_runs([finished / "odb-enable", finished / "standard-none"], tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert len(page.encode()) < 3_000_000
    markup = Markup(page)
    assert "script" not in {tag for tag, _ in markup.tags}
    addresses = [
        value for _, attrs in markup.tags for name, value in attrs.items() if name in {"src", "href", "action"}
    ]
    assert all(value and value.startswith(("#", "data:")) for value in addresses)
    assert not re.search(r"url\((?!#)|@import", page)
    assert not markup.unclosed
    assert not markup.open


def test_ids_on_the_page_are_unique(page: str) -> None:
    ids = [attrs["id"] for _, attrs in Markup(page).tags if "id" in attrs]
    assert len(ids) == len(set(ids))


def test_the_verdict_comes_before_any_difference(page: str) -> None:
    assert page.index('class="verdict') < page.index('class="headline"') < page.index('id="differences"')


def test_every_chart_has_a_name_axes_with_units_and_a_table(page: str) -> None:
    figures = re.findall(r"<figure.*?</figure>", page, re.DOTALL)
    titles = [re.search(r"<figcaption>(.*?)<", figure)[1] for figure in figures]  # type: ignore[index]
    assert {"Training and validation loss over seconds", "Learning rate", "Padding", "MMMU-MC by discipline"} <= set(
        titles
    )
    for title, figure in zip(titles, figures, strict=True):
        assert f'aria-label="{title}"' in figure
        assert figure.count("<tr>") > 2
        assert len(re.findall(r"<text", figure)) > 4
    assert "seconds of training" in page
    assert "loss (nats per label)" in page


def test_hostile_text_of_records_is_text_on_the_page(tmp_path: Path) -> None:
    plan = Plan(question=HOSTILE, source=HOSTILE)
    odb = write_run(tmp_path / "odb-enable", plan)
    standard = write_run(
        tmp_path / "standard-none", Plan(loader="standard", question=HOSTILE, source=HOSTILE, skill=0.1)
    )
    page = _page(odb, standard)
    markup = Markup(page)
    assert "script" not in {tag for tag, _ in markup.tags}
    assert not [attrs for _, attrs in markup.tags if any(name.startswith("on") for name in attrs)]
    assert "example.invalid" not in str([attrs for tag, attrs in markup.tags if tag == "img"])
    assert "{{ 7*7 }}" in page
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", page)
    assert "␀" in page
    isolated = re.findall(r'<bdi class="untrusted" dir="auto">[^<]*\u202e', page)
    assert isolated
    assert "W" * 10_000 in page
    assert not markup.unclosed


def test_hostile_text_does_not_drive_the_terminal(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "odb[bold]-\x1b[31m-enable", Plan())
    stream = io.StringIO()
    print_comparison(build(read_runs([folder])), tmp_path / "page.html", Console(file=stream, width=100))
    said = stream.getvalue()
    assert "\x1b" not in said
    assert "odb[bold]-" in said


def test_the_terminal_names_verdict_figures_and_page(finished: Path, tmp_path: Path) -> None:
    stream = io.StringIO()
    comparison = build(read_runs([finished / "odb-enable", finished / "standard-none"]))
    print_comparison(comparison, tmp_path / "report.html", Console(file=stream, width=160))
    said = stream.getvalue()
    for words in (
        "All figures may be compared",
        "Throughput ratio",
        "Validation-loss difference",
        "McNemar",
        "report.html",
    ):
        assert words in said


def test_one_run_gives_its_own_page_at_the_file_named(finished: Path, tmp_path: Path) -> None:
    report_run(finished / "odb-enable", tmp_path / "one.html")
    page = (tmp_path / "one.html").read_text()
    assert "nothing to compare it with" in page
    assert 'id="differences"' not in page
    assert "Training and validation loss over samples" in page
    assert list(tmp_path.iterdir()) == [tmp_path / "one.html"]


def test_three_runs_are_each_set_against_the_standard_one_of_their_seed(tmp_path: Path) -> None:
    folders = []
    for seed in (1, 2, 3):
        folders.append(write_run(tmp_path / f"odb-{seed}", Plan(seed=seed, held_out=60, questions=40)))
        plan = Plan(loader="standard", speed=1.0, seed=seed, held_out=60, questions=40)
        folders.append(write_run(tmp_path / f"standard-{seed}", plan))
    comparison = build(read_runs(folders))
    assert [(pair.other.seed, pair.baseline.seed) for pair in comparison.pairs] == [(1, 1), (2, 2), (3, 3)]
    speeds = next(entry for entry in comparison.over_seeds if entry.figure == "samples_per_second")
    assert speeds.estimate.method == "paired t over seeds"
    assert speeds.estimate.n == 3
    page = render(comparison)
    assert "Over seeds" in page
    assert len(re.findall(r'class="headline"', page)) == 3


def test_runs_of_one_name_from_two_roots_are_told_apart(tmp_path: Path) -> None:
    folders = [
        write_run(tmp_path / root / "odb-enable", Plan(held_out=20, questions=12)) for root in ("first", "second")
    ]
    assert [run.name for run in read_runs(folders)] == ["first/odb-enable", "second/odb-enable"]


def test_a_run_without_a_benchmark_says_so(tmp_path: Path) -> None:
    page = _page(write_run(tmp_path / "odb-enable", Plan(), parts=("training", "validation")))
    assert "MMMU-MC was not scored" in page
    assert "odb-enable has no predictions" in page
    assert "Validation loss by source" in page


def test_a_run_still_going_gives_a_page_of_what_is_there(tmp_path: Path) -> None:
    folder = tmp_path / "odb-enable"
    write_training(folder, Plan(), finished=False)
    with (folder / "steps.jsonl").open("a") as stream:
        stream.write('{"step": 101, "sam')
    page = _page(folder)
    assert "still going or was stopped (last step 100)" in page
    assert "line 101 is no JSON object; the 100 before it are used" in page
    assert "validation loss was not evaluated" in page
    assert "Learning rate" in page


def test_a_run_killed_before_its_first_step_gives_a_page(tmp_path: Path) -> None:
    folder = tmp_path / "odb-enable"
    write_training(folder, Plan(), finished=False)
    (folder / "steps.jsonl").unlink()
    assert "no step records were written" in _page(folder)


def test_damaged_files_are_gaps_with_their_reason(finished: Path, pair: Callable[[], tuple[Path, Path]]) -> None:
    odb, standard = pair()
    (odb / "train_metrics_odb.json").write_text("[{")
    (odb / "run_settings.yaml").write_text("a: [")
    (odb / "eval_out_hf_valloss" / "eval_results.json").write_text("[]")
    page = _page(odb, standard)
    assert "train_metrics_odb.json: cannot be read" in page
    assert "run_settings.yaml: cannot be read" in page
    assert "holds no JSON object" in page


def test_the_model_before_training_stands_beside_the_runs(finished: Path, tmp_path: Path) -> None:
    odb = write_run(tmp_path / "odb-enable", Plan())
    write_run(tmp_path / "untrained", Plan(loss=4.0, skill=0.0), parts=("validation", "benchmark"))
    comparison = build(read_runs([odb]), read_untrained([odb]))
    assert comparison.untrained is not None
    assert "before training" in render(comparison)
    assert find_runs(tmp_path) == [odb]


@pytest.mark.parametrize("make", [lambda p: p, lambda p: p.mkdir() or p, lambda p: p.write_text("{}") and p])
def test_what_is_no_run_is_refused_in_one_line(make: Callable[[Path], Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no run|no public record") as refused:
        read_runs([make(tmp_path / "thing")])
    assert "\n" not in str(refused.value)
    with pytest.raises(UserError, match="no run folder under"):
        find_runs(tmp_path / "nothing")


def test_flipped_rows_show_their_pictures_from_the_benchmark_folder(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from support.run_folders import benchmark_rows

    stream = io.BytesIO()
    Image.new("RGB", (640, 480), "teal").save(stream, "PNG")
    plan = Plan(dataset=str(tmp_path / "benchmark"))
    rows = benchmark_rows(plan)
    for subject in {row["subject"] for row in rows}:
        table = [
            {**row, "image_1": {"bytes": stream.getvalue(), "path": None}} for row in rows if row["subject"] == subject
        ]
        folder = tmp_path / "benchmark" / subject
        folder.mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(table), folder / "validation-00000-of-00001.parquet")
    odb = write_run(tmp_path / "odb-enable", plan)
    standard = write_run(tmp_path / "standard-none", Plan(loader="standard", dataset=plan.dataset))
    page = _page(odb, standard)
    pictures = re.findall(r'<img src="data:image/jpeg;base64,[A-Za-z0-9+/=]+"', page)
    assert len(pictures) == page.count('class="card flip"') > 0


def test_a_run_has_one_colour_on_the_whole_page(page: str) -> None:
    keys = re.findall(r'class="key" style="background:([^"]+)"></span><bdi>([^<]+)</bdi>', page)
    assert sorted(keys) == [("var(--series-1)", "odb-enable"), ("var(--series-2)", "standard-none")]
    chart = page[page.index("Samples in a step") :]
    for colour, name in keys:  # the line of a legend stands right before its words
        drawn = re.findall(r"stroke: ?(var\(--series-\d\))", chart[: chart.index(f">{name}</text>")])
        assert drawn[-1] == colour


def test_pictures_that_are_out_of_reach_are_said_to_be(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the runs name their benchmark by a relative path, which a used checkout holds
    assert "out of reach: no pictures" in _page(finished / "odb-enable", finished / "standard-none")


def test_comparison_json_is_plain_json(finished: Path, tmp_path: Path) -> None:
    compare_runs([finished / "odb-enable", finished / "standard-none"], tmp_path)
    text = (tmp_path / "comparison.json").read_text()
    assert "NaN" not in text
    assert json.loads(text)["verdict"]["status"] == "comparable"


@pytest.mark.parametrize(
    ("value", "words"),
    [(None, "—"), (0, "0"), (1234567, "1,234,567"), (0.00001234, "1.234e-05"), (12.3456, "12.35"), (float("nan"), "—")],
)
def test_numbers_read_well(value: float | None, words: str) -> None:
    assert number(value) == words


def test_signs_and_control_characters_are_visible() -> None:
    assert (signed(-0.5, 2), signed(0.0)) == ("−0.50", "±0")
    assert readable("a\x00\x1bb\x9b\ud800") == "a␀␛b��"
    assert flat("a\n\u202eb" + "c" * 100, 10) == "a bccccccc…"[:9] + "…"
