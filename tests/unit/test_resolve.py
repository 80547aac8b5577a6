"""Settings arrive from every source, in order, and every mistake is one line that names its source."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from odb_example.errors import UserError
from odb_example.resolve import SIBLING_NAMES, resolve
from odb_example.settings import PRESETS, Settings, choices_of, option_of

pytestmark = pytest.mark.unit

REFERENCE_VARIABLES = {
    f"ODB_MM_MIX_{name}"
    for name in """
    DATA MODEL OUTPUT_ROOT RECIPE_ROOT MAX_STEPS TRAIN_SIZE MAX_LENGTH IMAGE_MAX_PIXELS TOKEN_BUDGET BUFFER_SIZE
    NUM_PROCESSES MASTER_PORT ODB_PREFETCH_FACTOR STANDARD_PREFETCH_FACTOR PREFETCH_FACTOR TRAINABLE_KEYWORDS
    DEEPSPEED SAVE_FINAL_MODEL GRADIENT_CHECKPOINTING LOADER OUTPUT_DIR SOURCE_DATA LOCAL_DATA MAX_PATCHES
    FIXED_BATCH_SIZE SPLIT_MODE VAL_SIZE SPLIT_SEED VAL_START PROCESSOR_BACKEND EPOCHS NUM_WORKERS LR
    LR_SCHEDULER_TYPE WARMUP_RATIO MAX_GRAD_NORM SEED LOSS_SCALING ODB_INTEGRATION SAVE_STRATEGY DDP_TIMEOUT
    INSPECT_OUTPUT
    """.split()
} | {
    f"ODB_HF_{name}"
    for name in """
    EVAL_CHECKPOINT EVAL_OUTPUT_ROOT EVAL_SAVE_DIR EVAL_MAX_SAMPLES EVAL_BF16 EVAL_LOG_STEPS EVAL_SPLIT_MODE
    EVAL_VAL_SIZE EVAL_SPLIT_SEED EVAL_TORCH_DTYPE EVAL_SUBJECTS BENCHMARK_DATASET BENCHMARK_SPLIT
    BENCHMARK_OUTPUT_DIR
    """.split()
}

REFERENCE_DEFAULTS = {
    "data": "data/mm-mix-tmdb", "model": "Qwen/Qwen3-VL-2B-Instruct", "output_root": "outputs/hf-trainer-real",
    "token_budget": 12288, "buffer_size": 1024, "max_patches": 0, "fixed_batch_size": 1, "max_length": 16384,
    "train_size": 128, "split_mode": "lf_val_size", "val_size": 0.05, "split_seed": 42, "image_max_pixels": 589824,
    "processor_backend": "qwen_vl", "max_steps": 0, "num_train_epochs": 1.0, "num_workers": 4,
    "odb_prefetch_factor": 512, "standard_prefetch_factor": 2, "lr": 1e-5, "lr_scheduler_type": "cosine",
    "warmup_ratio": 0.03, "max_grad_norm": 4.0, "seed": 42, "gradient_checkpointing": True, "join": True,
    "loss_scaling": "token", "odb_integration": "enable", "save_strategy": "no", "save_final_model": False,
    "logging_steps": 10, "trainable_keywords": "full", "trust_remote_code": False, "val_start": 196200,
    "limit_log_steps": 50, "dataset": "MMMU/MMMU", "split": "validation", "max_samples": 0, "num_samples": 16,
    "ddp_timeout": 1800,
}  # fmt: skip


def test_every_variable_of_the_reference_is_declared_once() -> None:
    declared = [variable for name in Settings.model_fields if (variable := option_of(name).env)]
    assert len(declared) == len(set(declared))
    assert set(declared) >= REFERENCE_VARIABLES


def test_defaults_are_the_references() -> None:
    settings = Settings()
    assert {name: getattr(settings, name) for name in REFERENCE_DEFAULTS} == REFERENCE_DEFAULTS


def _sample_words(name: str) -> str:
    if words := choices_of(name):
        return words[-1]
    return {"model": "some/model", "deepspeed": "none"}.get(name) or {
        bool: "true", bool | None: "yes", float: "0.25", float | None: "0.25", int: "7", int | None: "7",
    }.get(Settings.model_fields[name].annotation, "some-words")  # type: ignore[call-overload]  # fmt: skip


@pytest.mark.parametrize("variable", sorted(REFERENCE_VARIABLES))
def test_each_variable_arrives_where_it_should(variable: str) -> None:
    name = next(name for name in Settings.model_fields if option_of(name).env == variable)
    resolved = resolve({}, {variable: _sample_words(name)})
    expected = Settings(**{name: _sample_words(name)})
    assert getattr(resolved.settings, name) == getattr(expected, name)
    assert resolved.origin[name] == f"variable {variable}"


def test_flag_beats_variable_beats_file_beats_command_beats_preset(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("preset: miniature\nlr: 0.5\nbuffer_size: 5\nmax_steps: 5\nseed: 5\n")
    environ = {"ODB_MM_MIX_LR": "0.25", "ODB_MM_MIX_MAX_STEPS": "4", "ODB_MM_MIX_SEED": ""}
    resolved = resolve({"lr": "0.125"}, environ, file, command={"buffer_size": 9, "lr": 9.0, "logging_steps": 3})
    got = {
        name: getattr(resolved.settings, name) for name in ("lr", "max_steps", "buffer_size", "logging_steps", "seed")
    }
    assert got == {"lr": 0.125, "max_steps": 4, "buffer_size": 5, "logging_steps": 3, "seed": 5}
    assert resolved.origin["lr"] == "--lr"
    assert resolved.origin["max_steps"] == "variable ODB_MM_MIX_MAX_STEPS"
    assert resolved.origin["buffer_size"] == f"settings file {file}"
    assert resolved.origin["logging_steps"] == "command"
    assert resolved.origin["token_budget"] == "preset miniature"
    assert resolved.origin["warmup_ratio"] == "default"


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_the_settings_a_run_writes_repeat_it(tmp_path: Path, preset: str) -> None:
    first = resolve({"preset": preset, "lr": "0.01", "loss_scaling": "exact", "trainer": {"adam_beta2": "0.9"}}, {})
    file = tmp_path / "run_settings.yaml"
    file.write_text(yaml.safe_dump(first.settings.model_dump()))
    assert resolve({}, {}, file).settings == first.settings


@pytest.mark.parametrize(
    ("words", "resolved"),
    [
        ({"loss_scaling": "exact"}, "token"),
        ({"loss_scaling": "approx"}, "odb-approx"),
        ({"processor_backend": "qwen3_vl"}, "qwen_vl"),
        ({"processor_backend": "llamafactory_qwen_vl"}, "qwen_vl"),
        ({"processor_backend": "hf"}, "generic"),
        ({"processor_backend": "processor"}, "generic"),
    ],
)
def test_the_references_other_names_are_understood(words: dict[str, str], resolved: str) -> None:
    (name,) = words
    assert getattr(resolve(words, {}).settings, name) == resolved


@pytest.mark.parametrize("word", ["1", "true", "YES", "y", "On"])
def test_booleans_are_read_in_any_case(word: str) -> None:
    assert resolve({}, {"ODB_MM_MIX_SAVE_FINAL_MODEL": word}).settings.save_final_model is True


def test_a_misspelt_variable_is_refused_with_the_nearest() -> None:
    with pytest.raises(UserError, match=r"ODB_MM_MIX_TRIAN_SIZE; did you mean ODB_MM_MIX_TRAIN_SIZE\?"):
        resolve({}, {"ODB_MM_MIX_TRIAN_SIZE": "3"})


@pytest.mark.parametrize("name", sorted(SIBLING_NAMES))
def test_a_sibling_examples_variable_is_a_note(name: str) -> None:
    resolved = resolve({}, {f"ODB_MM_MIX_{name}": "x"})
    assert any(name in note for note in resolved.notes)


def test_variables_of_odb_itself_and_of_others_are_left_alone() -> None:
    assert resolve({}, {"ODB_GROUP_INIT_TIMEOUT_SEC": "5", "ODB_LOG_GROUP_INIT": "1", "HOME": "/x"}).settings


@pytest.mark.parametrize(
    ("flags", "environ", "words"),
    [
        ({"lr": "-1"}, {}, "--lr='-1'"),
        ({}, {"ODB_MM_MIX_MAX_STEPS": "many"}, "variable ODB_MM_MIX_MAX_STEPS='many'"),
        ({"loader": "fast"}, {}, "choose one of odb, standard"),
        ({"bf16": True, "fp16": True}, {}, "bf16 and fp16 exclude each other"),
        ({"master_port": "70000"}, {}, "--master-port='70000'"),
        ({"val_size": "nan"}, {}, "--val-size='nan'"),
        ({"lr": "inf"}, {}, "--lr='inf'"),
        ({"preset": "tiny"}, {}, "choose one of public, miniature"),
        ({"node_rank": "1"}, {}, "nnodes"),
    ],
)
def test_a_bad_value_is_one_line_that_names_its_source(flags: dict, environ: dict, words: str) -> None:
    with pytest.raises(UserError) as caught:
        resolve(flags, environ)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["- a\n", "lr: [", "learning_rate: 1\n", "\xff\xfe"])
def test_a_bad_settings_file_is_one_line_that_names_it(tmp_path: Path, text: str) -> None:
    file = tmp_path / "run.yaml"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(UserError, match=r"run\.yaml") as caught:
        resolve({}, {}, file)
    assert "\n" not in str(caught.value)


def test_a_missing_settings_file_is_one_line() -> None:
    with pytest.raises(UserError, match=r"cannot read settings file absent\.yaml"):
        resolve({}, {}, Path("absent.yaml"))


def test_no_model_and_no_accelerator_choose_the_miniature_and_say_so() -> None:
    resolved = resolve({}, {"CUDA_VISIBLE_DEVICES": ""})
    assert resolved.settings.preset == "miniature"
    assert "--preset public" in resolved.notes[0]
    assert resolve({"model": "some/model"}, {"CUDA_VISIBLE_DEVICES": ""}).settings.preset == "public"


def test_the_miniature_never_shares_a_folder_with_the_public_preset() -> None:
    public, miniature = Settings(), Settings(**PRESETS["miniature"])
    for name in ("data", "output_root", "model", "dataset"):
        assert getattr(public, name) != getattr(miniature, name)


def test_the_launchers_port_is_the_fallback_of_ours() -> None:
    assert resolve({}, {"MASTER_PORT": "29511"}).settings.master_port == 29511
    assert resolve({}, {"MASTER_PORT": "29511", "ODB_MM_MIX_MASTER_PORT": "29512"}).settings.master_port == 29512
    assert resolve({}, {"MASTER_PORT": "29511", "RANK": "0"}).settings.master_port is None


@given(st.dictionaries(st.sampled_from(sorted(Settings.model_fields)), st.text(max_size=20)))
def test_any_words_resolve_or_are_refused_in_one_line(words: dict[str, str]) -> None:
    try:
        resolve(words, {})
    except UserError as error:
        assert "\n" not in str(error)
