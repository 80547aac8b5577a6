"""Checks over a pipeline of somebody else's: what applies, what is said of the rest, deviations, crashes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from odb_example.conformance.catalogue import CHECKS
from odb_example.conformance.examples import faulty, text_only
from odb_example.conformance.faults import FAULTS
from odb_example.conformance.pipeline import PARTS, Pipeline, load_pipeline
from odb_example.conformance.run import check_pipeline, run_checks, with_deviations
from odb_example.errors import UserError

pytestmark = pytest.mark.unit

TEXT_ONLY = "odb_example.conformance.examples.text_only:build"
FAULTY = "odb_example.conformance.examples.faulty:build"


def test_a_text_only_stack_of_40_lines_passes_all_that_applies() -> None:
    results = list(run_checks(text_only.build()))
    assert {result.outcome for result in results} == {"passed", "not applicable"}
    assert sum(result.outcome == "passed" for result in results) >= 15
    source = Path(text_only.__file__).read_text()
    code = [line for line in source.partition('"""\n')[2].splitlines() if line.strip()]
    assert len(code) <= 40


def test_each_fault_of_the_faulty_example_is_found_and_named() -> None:
    failed = {result.check.name: result.words for result in run_checks(faulty.build()) if result.bad}
    assert "begin after the answer's start" in failed["labels_are_the_answers"]
    assert "repeats samples to fill" in failed["every_sample_comes_once"]
    assert "batch means are averaged" in failed["loss_is_the_stated_mean"]
    assert set(failed) == {
        "labels_are_the_answers", "every_sample_comes_once", "loss_is_the_stated_mean", "gradient_is_that_of_the_mean",
    }  # fmt: skip


def test_the_table_says_what_holds_what_does_not_and_what_to_provide(capsys: pytest.CaptureFixture[str]) -> None:
    assert check_pipeline(TEXT_ONLY) == 0
    assert check_pipeline(FAULTY) == 1
    shown = capsys.readouterr().out
    assert "Conformance of a text-only stack" in shown
    assert "`finish(record, image_bytes)`: the finished sample of any Record" in shown
    assert "likely: the sampler repeats samples" in shown


def test_known_deviations_pass_and_a_mended_one_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "deviations.txt"
    known = [
        "labels_are_the_answers  until the next tokenizer",
        "every_sample_comes_once  a repeat is harmless here",
        "loss_is_the_stated_mean  as the paper has it",
        "gradient_is_that_of_the_mean  the same",
    ]
    file.write_text("\n".join(known) + "\n")
    assert check_pipeline(FAULTY, file) == 0
    assert check_pipeline(TEXT_ONLY, file) == 1
    shown = capsys.readouterr().out
    assert "every_sample_comes_once is listed as a known deviation (a repeat is harmless here)" in shown
    assert "4 mended deviation" in shown


def test_a_deviation_that_names_no_check_is_refused() -> None:
    with pytest.raises(UserError, match="no check is called colator_only_pads"):
        with_deviations(list(run_checks(text_only.build(), CHECKS[:3])), {"colator_only_pads": "x"})


def test_a_stack_that_crashes_has_failed_and_the_place_is_named() -> None:
    broken = replace(text_only.build(), collate=lambda samples: samples[0]["pixels"])
    failed = {result.check.name: result.words for result in run_checks(broken) if result.bad}
    assert "the stack under test crashes: KeyError: 'pixels'" in failed["collator_only_pads"]
    assert "test_run.py" in failed["collator_only_pads"]
    assert failed["collator_only_pads"].endswith(f"not what it should be:\n  {PARTS['sample']}\n  {PARTS['collate']}")


def nothing() -> Pipeline:
    return Pipeline(name="nothing")


def leaving() -> Pipeline:
    raise SystemExit(3)


def broken() -> Pipeline:
    raise ValueError("no checkpoint")


def test_a_pipeline_without_parts_is_no_success() -> None:
    with pytest.raises(UserError, match="no check applies to nothing; give it one of the parts split, sample, loader"):
        check_pipeline(f"{__name__}:nothing")


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("no_such_module:build", "there is no module no_such_module"),
        (f"{__name__}:broken", r"its function fails: ValueError: no checkpoint \(test_run.py, line \d+\)"),
        (f"{__name__}:leaving", "its function fails: SystemExit: 3"),
        ("odb_example.conformance.examples.text_only", "names no function"),
        ("", "names no function"),
        (":build", "names no function"),
        ("./mine.py:build", "names no function"),
        ("mine.py:build", "write mine:build"),
        ("odb_example.conformance.examples.text_only:bild", "has no function bild"),
        ("odb_example.conformance.examples.text_only:model", "made a GPT2LMHeadModel"),
    ],
)
def test_a_pipeline_that_cannot_be_built_is_one_line(spec: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        load_pipeline(spec)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"padding_side": "Left"}, r"Pipeline\(padding_side='Left'\)[:;] give 'right' or 'left'"),
        ({"objective": "tokens"}, r"Pipeline\(objective='tokens'\)[:;] give 'token' or 'sample'"),
        ({"examples": 0}, "give 1 or more"),
        ({"records": []}, "holds no record"),
    ],
)
def test_values_that_no_check_could_make_sense_of_are_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        replace(text_only.build(), **values)


def test_every_check_states_a_claim_and_every_part_has_words() -> None:
    assert len({check.name for check in CHECKS}) == len(CHECKS)
    assert all(check.claim.endswith(".") and len(check.claim) < 120 for check in CHECKS)
    assert all(f"`{name}" in words for name, words in PARTS.items())


def test_there_are_faults_of_every_part_and_every_one_names_a_check() -> None:
    assert len(FAULTS) >= 40
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    assert {fault.caught_by for fault in FAULTS} <= {check.name for check in CHECKS}
    assert {fault.part for fault in FAULTS} == {check.group for check in CHECKS}


def test_every_check_catches_a_planted_fault() -> None:
    idle = {check.name for check in CHECKS} - {fault.caught_by for fault in FAULTS}
    assert not idle, "a check that no fault trips may be unable to fail"
