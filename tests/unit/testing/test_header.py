"""The report header shows every variable that looks like ours, and says which of them do nothing."""

from __future__ import annotations

import pytest

from odb_example.testing.header import describe_variable, lines, looks_like_ours
from odb_example.testing.target import Target, slug

pytestmark = pytest.mark.unit

TARGET = Target(device="cpu", ranks=2, model=None, data=None, benchmark=None, pipeline=None)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ODB_PIPELINE", "ODB_PIPELINE=v"),
        ("ODB_PIPLINE", "UNKNOWN, no effect; did you mean ODB_PIPELINE?"),
        ("odb_mm_mix_seed", "UNKNOWN, no effect; did you mean ODB_MM_MIX_SEED?"),
        ("ODB_MM_MIX_TOKEN_BUDGT", "did you mean ODB_MM_MIX_TOKEN_BUDGET?"),
        ("ODB_GROUP_INIT_TIMEOUT_SEC", "read by ODB itself"),
        ("ODB_MM_MIX_STRATEGY", "of a sibling example"),
        ("ODBXQZW", "(UNKNOWN, no effect)"),
    ],
)
def test_a_variable_is_shown_with_what_is_the_matter_with_it(name: str, words: str) -> None:
    assert looks_like_ours(name)
    assert words in describe_variable(name, "v")


def test_variables_of_others_are_not_shown() -> None:
    shown = lines(TARGET, {"PATH": "/bin", "ODB_PIPELINE": "mine:build", "HOME": "/"}, "7", "dev")
    assert [line for line in shown if line.startswith("variable")] == ["variable: ODB_PIPELINE=mine:build"]


def test_the_header_names_what_is_tested_the_versions_and_the_seed() -> None:
    shown = "\n".join(lines(TARGET, {}, "1207", "thorough"))
    for words in ("pipeline of this project", "seeded tiny model", "cpu, 2 ranks", "torch 2.", "seed 1207", "thorough"):
        assert words in shown


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("Qwen/Qwen3-VL-2B-Instruct", "Qwen--Qwen3-VL-2B-Instruct"),
        ("NVIDIA H20", "NVIDIA-H20"),
        ("../..", "unnamed"),
    ],
)
def test_a_model_or_gpu_name_becomes_one_folder_name(
    name: str, folder: str, monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.chdir(tmp_path)
    if name != "../..":
        assert slug(name) == folder
    assert "/" not in slug(name)
