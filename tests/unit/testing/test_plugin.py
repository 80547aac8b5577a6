"""The plugin as a person meets it: a test file is written, pytest run on it, its words and exit status read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

MEASURES = """
from odb_example.testing.baselines import Measured, absolute, exact, relative

def test_numbers(baseline):
    baseline(Measured({"steps": exact(12), "loss": relative(7.5, 1e-3, likely="the objective")}, {"seed": 0}))
"""
STORED = "baselines/cpu/tiny/test_numbers.json"
# Nested in this process: plugins that keep state of the process stay out.
QUIET = ("-p", "no:randomly", "-p", "no:hypothesispytest", "-p", "no:cacheprovider", "-p", "no:xdist", "-ra")


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project with our plugin and one baseline test in its unit tier."""
    for name in ("ODB_PIPELINE", "CI"):
        monkeypatch.delenv(name, raising=False)
    pytester.makeconftest('pytest_plugins = ["odb_example.testing.plugin", "odb_example.testing.snapshots"]')
    write(pytester, "tests/unit/test_measures.py", MEASURES)
    return pytester


def write(suite: pytest.Pytester, path: str, text: str) -> None:
    file = suite.path / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def run(suite: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return suite.runpytest_inprocess(*QUIET, *arguments)


def record(suite: pytest.Pytester) -> Path:
    run(suite, "-m", "unit", "--snapshot-update").assert_outcomes(passed=1)
    return suite.path / STORED


# --- tiers --------------------------------------------------------------------------------------------------------


def test_a_test_carries_the_marker_of_its_directory(suite: pytest.Pytester) -> None:
    write(suite, "tests/integration/test_i.py", "def test_i(): pass")
    run(suite, "-m", "integration or gpu").assert_outcomes(passed=1, deselected=1)


def test_choosing_one_tier_does_not_import_the_others(suite: pytest.Pytester) -> None:
    write(suite, "tests/integration/test_i.py", "raise SystemExit('imported')")
    record(suite)
    run(suite, "-m", "unit").assert_outcomes(passed=1)


def test_the_gpu_tier_is_not_collected_unless_asked_for(suite: pytest.Pytester) -> None:
    write(suite, "tests/gpu/test_g.py", "raise SystemExit('collected')")
    record(suite)
    run(suite).assert_outcomes(passed=1)
    run(suite, "-m", "not gpu").assert_outcomes(passed=1)


def test_without_enough_gpus_the_gpu_tier_is_skipped_with_the_commands_that_run_it(suite: pytest.Pytester) -> None:
    write(suite, "tests/gpu/test_g.py", "def test_g(): assert False")
    result = run(suite, "-m", "gpu", "--num-processes", "64")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(
        ["*needs 64 GPUs*pytest -m gpu --num-processes 64*pytest -m gpu --device cpu --num-processes 64*"]
    )


def test_the_gpu_tier_is_rehearsed_on_cpu_when_told(suite: pytest.Pytester) -> None:
    write(suite, "tests/gpu/test_g.py", "def test_g(target): assert (target.device, target.ranks) == ('cpu', 3)")
    run(suite, "-m", "gpu", "--device", "cpu", "--num-processes", "3").assert_outcomes(passed=1)
    run(suite, "tests/gpu", "--device", "cpu", "--num-processes", "3").assert_outcomes(passed=1)


def test_the_help_tells_ranks_from_xdist_workers(suite: pytest.Pytester) -> None:
    text = " ".join(suite.runpytest_inprocess("--help", "-p", "no:randomly").stdout.str().split())
    assert "Not xdist's --numprocesses (-n)" in text


# --- failures -----------------------------------------------------------------------------------------------------


def test_every_kind_of_failure_ends_with_a_command_that_repeats_it(suite: pytest.Pytester) -> None:
    write(
        suite, "tests/unit/test_f.py",
        "import pytest\n"
        "@pytest.mark.parametrize('word', ['a b'])\ndef test_plain(word): assert word == 'c'\n"
        "def test_said(): pytest.fail('in words', pytrace=False)\n"
        "def test_fixture(nowhere): pass\n",
    )  # fmt: skip
    result = run(suite, "tests/unit/test_f.py", "--pipeline", "mine:build")
    result.assert_outcomes(failed=2, errors=1)
    for name in ("'tests/unit/test_f.py::test_plain[[]a b[]]'", "tests/unit/test_f.py::test_said", "*::test_fixture"):
        result.stdout.fnmatch_lines([f"repeat: pytest {name} --pipeline mine:build"])


def test_the_repeat_line_of_the_gpu_tier_names_device_and_ranks(suite: pytest.Pytester) -> None:
    write(suite, "tests/gpu/test_g.py", "def test_g(): assert False")
    result = run(suite, "-m", "gpu", "--device", "cpu")
    result.stdout.fnmatch_lines(["repeat: pytest tests/gpu/test_g.py::test_g --device cpu --num-processes 2"])


# --- deviations ---------------------------------------------------------------------------------------------------


def test_a_known_deviation_is_expected_to_fail_and_noticed_once_it_is_mended(suite: pytest.Pytester) -> None:
    write(suite, "tests/unit/test_d.py", "def test_broken(): assert False\ndef test_mended(): pass\n")
    write(suite, "known.txt", "test_broken  masked in the collator\ntest_mended  long ago\n")
    result = run(suite, "tests/unit/test_d.py", "--deviations", "known.txt")
    result.assert_outcomes(xfailed=1, failed=1)
    result.stdout.fnmatch_lines(["*XPASS(strict)*known deviation: long ago*"])


def test_a_deviation_that_names_no_test_is_said(suite: pytest.Pytester) -> None:
    write(suite, "known.txt", "test_numbrs  a typo\n")
    run(suite, "--deviations", "known.txt").stdout.fnmatch_lines(["*line 1: test_numbrs: did you mean test_numbers?"])


def test_a_deviations_file_that_is_wrong_stops_the_run(suite: pytest.Pytester) -> None:
    result = run(suite, "--deviations", "nowhere.txt")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*cannot read deviations file nowhere.txt*"])


# --- baselines ----------------------------------------------------------------------------------------------------


def test_without_a_baseline_a_test_is_skipped_with_the_command_that_records_one(suite: pytest.Pytester) -> None:
    result = run(suite)
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(
        [f"*no baseline {STORED}; record one: pytest tests/unit/test_measures.py::test_numbers --snapshot-update"]
    )


def test_a_recorded_baseline_holds_numbers_tolerances_and_provenance(suite: pytest.Pytester) -> None:
    content = json.loads(record(suite).read_text())
    assert content["numbers"]["loss"] == {"value": 7.5, "tolerance": "relative", "bound": 0.001}
    assert content["provenance"]["settings"] == {"seed": 0}
    assert content["provenance"]["test"] == "tests/unit/test_measures.py::test_numbers"
    assert content["provenance"]["versions"]["torch"]
    run(suite).assert_outcomes(passed=1)


def test_a_crossed_tolerance_fails_with_the_table(suite: pytest.Pytester) -> None:
    path = record(suite)
    path.write_text(path.read_text().replace("7.5", "7.4"))
    result = run(suite)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            f"{STORED}: 1 of 2 numbers differ from the stored baseline",
            "field *stored *now *tolerance *likely cause",
            "loss *7.4 *7.5 *relative 0.001 (off by +0.1, +1.35%) *the objective",
            "if the change is meant: pytest tests/unit/test_measures.py::test_numbers --snapshot-update",
        ]
    )


def test_a_baseline_edited_into_nonsense_is_named(suite: pytest.Pytester) -> None:
    path = record(suite)
    path.write_text(path.read_text().replace('"exact"', '"exactly"'))
    result = run(suite)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"baseline {STORED}: numbers.steps.tolerance: *"])


def test_an_update_prints_what_changed_and_leaves_what_holds(suite: pytest.Pytester) -> None:
    path = record(suite)
    path.write_text(path.read_text().replace("7.5", "7.501"))
    held = path.read_text()
    run(suite, "--snapshot-update").assert_outcomes(passed=1)
    assert path.read_text() == held
    path.write_text(held.replace("12", "11"))
    result = run(suite, "--snapshot-update")
    result.stdout.fnmatch_lines([f"rewrote {STORED}:", "steps *11 *12 *exact *"])
    run(suite).assert_outcomes(passed=1)


def test_a_failing_run_writes_no_baseline_unless_told(suite: pytest.Pytester) -> None:
    write(suite, "tests/unit/test_f.py", "def test_f(): assert False")
    result = run(suite, "--snapshot-update")
    result.stdout.fnmatch_lines(["NOT WRITTEN: 1 failed*", f"*would change {STORED}"])
    assert not (suite.path / STORED).exists()
    run(suite, "--snapshot-update", "--baselines-force").stdout.fnmatch_lines([f"recorded {STORED}: 2 numbers"])
    assert (suite.path / STORED).exists()


def test_a_run_that_ends_early_writes_no_baseline(suite: pytest.Pytester) -> None:
    write(suite, "tests/unit/test_z.py", "def test_z(request): request.session.shouldstop = 'enough'")
    result = run(suite, "--snapshot-update")
    result.stdout.fnmatch_lines(["NOT WRITTEN: the run ended early*", f"*would change {STORED}"])
    assert not (suite.path / STORED).exists()


def test_a_baseline_forced_from_uncommitted_code_says_so(suite: pytest.Pytester) -> None:
    suite.run("git", "init", "-q")
    suite.run("git", "-c", "user.name=n", "-c", "user.email=e", "commit", "-q", "--allow-empty", "-m", "first")
    run(suite, "--snapshot-update", "--baselines-force")
    assert json.loads((suite.path / STORED).read_text())["provenance"]["commit"].endswith("-dirty")


def test_a_stale_baseline_fails_only_the_run_of_its_whole_tier(suite: pytest.Pytester) -> None:
    path = record(suite)
    path.rename(path.with_name("test_gone.json"))
    write(suite, "tests/unit/test_measures.py", MEASURES + "\ndef test_other(): pass\n")
    whole = run(suite)
    assert whole.ret == pytest.ExitCode.TESTS_FAILED
    whole.stdout.fnmatch_lines(
        ["STALE baselines/cpu/tiny/test_gone.json: no test reads it any more; delete it: git rm *"]
    )
    assert run(suite, "-m", "unit").ret == pytest.ExitCode.TESTS_FAILED
    for part in (["-k", "other"], ["tests/unit/test_measures.py"], ["tests/unit/test_measures.py::test_other"]):
        assert run(suite, *part).ret == pytest.ExitCode.OK, part


def test_one_tier_alone_does_not_judge_the_baselines_of_another(suite: pytest.Pytester) -> None:
    path = record(suite)
    write(suite, "tests/integration/test_i.py", "def test_i(): pass")
    write(suite, "tests/gpu/test_g.py", "def test_g(): pass")
    for tier in (["-m", "integration"], ["-m", "gpu", "--device", "cpu"]):
        result = run(suite, *tier, "--snapshot-update")
        assert result.ret == pytest.ExitCode.OK, tier
        assert path.exists(), tier


def test_an_update_of_the_whole_tier_deletes_stale_baselines_and_says_so(suite: pytest.Pytester) -> None:
    path = record(suite)
    stale = path.rename(path.with_name("test_gone.json"))
    result = run(suite, "--snapshot-update")
    result.stdout.fnmatch_lines(["deleted baselines/cpu/tiny/test_gone.json: no test reads it"])
    assert not stale.exists()
    assert path.exists()


def test_a_skipped_test_keeps_its_baseline(suite: pytest.Pytester) -> None:
    record(suite)
    write(suite, "tests/unit/test_measures.py", "import pytest\n" + MEASURES.replace("def ", "@pytest.mark.skip\ndef "))
    assert run(suite).ret == pytest.ExitCode.OK


def test_two_tests_of_one_name_cannot_share_a_baseline(suite: pytest.Pytester) -> None:
    write(suite, "tests/unit/more/test_again.py", MEASURES)
    result = run(suite)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*two tests share the baseline test_numbers*"])


def test_baselines_of_the_gpu_tier_are_kept_by_hardware_model_and_ranks(suite: pytest.Pytester) -> None:
    write(suite, "tests/gpu/test_g.py", MEASURES.replace("test_numbers", "test_g"))
    rehearsal = ["-m", "gpu", "--device", "cpu", "--model", "Qwen/Qwen3-VL-2B-Instruct"]
    run(suite, *rehearsal, "--num-processes", "3", "--snapshot-update").assert_outcomes(passed=1)
    assert (suite.path / "baselines/cpu/Qwen--Qwen3-VL-2B-Instruct/test_g-3-ranks.json").exists()
    other = run(suite, *rehearsal, "--num-processes", "2")
    other.assert_outcomes(skipped=1)
    assert other.ret == pytest.ExitCode.OK  # the file for 3 ranks is not stale in a run of 2
