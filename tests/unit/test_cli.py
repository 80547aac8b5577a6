"""The command line: what people type arrives, and what they mistype is one line with exit status 2."""

from __future__ import annotations

import subprocess
import sys

import pytest

from odb_example import cli, run
from odb_example.settings import SHARED, Settings, option_of

pytestmark = pytest.mark.unit

REFERENCE_COMMANDS = [
    "install", "data", "inspect", "odb-enable", "odb-manual", "standard", "eval-odb", "eval-standard", "eval-valloss",
    "benchmark", "all-odb", "odb", "enable", "manual", "valloss", "eval-benchmark",
]  # fmt: skip
OUR_COMMANDS = ["bench", "test", "doctor", "all", "compare", "report", "audit", "help"]
TRAIN_FLAGS = """
    --data --source-data --local-data --force-local-copy --no-force-local-copy --model --loader --output-dir
    --token-budget --buffer-size --max-patches --fixed-batch-size --max-length --train-size --split-mode --val-size
    --split-seed --image-max-pixels --processor-backend --max-steps --num-train-epochs --num-workers
    --prefetch-factor --odb-prefetch-factor --standard-prefetch-factor --lr --lr-scheduler-type --warmup-ratio
    --max-grad-norm --seed --deepspeed --gradient-checkpointing --no-gradient-checkpointing --join --no-join
    --loss-scaling --odb-integration --bf16 --no-bf16 --fp16 --no-fp16 --save-strategy --save-final-model
    --no-save-final-model --logging-steps --trainable-keywords --trust-remote-code --no-trust-remote-code
""".split()
VALLOSS_FLAGS = """
    --checkpoint --data --output-dir --split-mode --val-start --val-size --split-seed --max-samples --max-length
    --image-max-pixels --processor-backend --num-workers --prefetch-factor --bf16 --no-bf16 --limit-log-steps
""".split()
BENCHMARK_FLAGS = """
    --checkpoint --output-dir --dataset --split --subjects --max-samples --torch-dtype --cache-dir
""".split()


def _help(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert run.main([command, "--help"]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("command", REFERENCE_COMMANDS + OUR_COMMANDS)
def test_every_command_and_alias_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "Usage" in _help(command, capsys)


@pytest.mark.parametrize(
    ("command", "flags"),
    [
        ("standard", TRAIN_FLAGS),
        ("eval-valloss", VALLOSS_FLAGS),
        ("benchmark", BENCHMARK_FLAGS),
        ("inspect", ["--num-samples", "--output"]),
    ],
)
def test_every_flag_of_the_reference_is_offered(
    command: str, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = set(_help(command, capsys).replace(",", " ").split())
    assert not [flag for flag in flags if flag not in words]


def test_help_shows_words_as_they_are_typed(capsys: pytest.CaptureFixture[str]) -> None:
    shown = _help("odb-enable", capsys)
    assert "--trainer.NAME VALUE" in shown
    assert "--no-warmup / --warmup" in shown
    assert run.main(["odb-enable", "--no-warmup", "--trainer.adam_beta2", "0.9", "--print-settings"]) == 0


def test_two_fields_never_share_a_flag_within_one_group() -> None:
    for group in {group for name in Settings.model_fields for group in option_of(name).commands}:
        flags = [
            option_of(name).flag or name
            for name in Settings.model_fields
            if {group, SHARED} & set(option_of(name).commands)
        ]
        assert len(flags) == len(set(flags)), group


def _print(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, list[str]]:
    assert run.main([*arguments, "--print-settings"]) == 0
    return {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines()}


def test_flags_arrive(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ODB_MM_MIX_SEED", "7")
    shown = _print(
        ["standard", "--lr", "3e-4", "--no-join", "--loss-scaling=exact", "--trainer.adam_beta2", "0.9"], capsys
    )
    assert shown["lr"] == ["0.0003", "--lr"]
    assert shown["join"] == ["False", "--join"]
    assert shown["loss_scaling"] == ["token", "--loss-scaling"]
    assert shown["trainer"] == ["{'adam_beta2':", "'0.9'}", "--trainer"]
    assert shown["loader"] == ["standard", "command"]
    assert shown["seed"] == ["7", "variable", "ODB_MM_MIX_SEED"]


def test_each_command_brings_its_own_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    assert _print(["odb-manual"], capsys)["odb_integration"][0] == "manual"
    assert _print(["enable"], capsys)["odb_integration"][0] == "enable"
    assert _print(["inspect"], capsys)["processor_backend"][0] == "auto"
    assert _print(["all-odb", "--preset", "public"], capsys)["save_final_model"][0] == "True"


def test_one_evaluations_flags_reach_the_one_that_knows_them(capsys: pytest.CaptureFixture[str]) -> None:
    shown = _print(["eval-odb", "--split-mode", "tail", "--subjects", "Art", "--output-dir", "x"], capsys)
    assert (shown["eval_split_mode"][0], shown["subjects"][0], shown["eval_save_dir"][0]) == ("tail", "Art", "x")


def test_pytests_own_options_reach_pytest(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[list[str]] = []
    monkeypatch.setattr(
        subprocess, "run", lambda command, **_: called.append(command) or subprocess.CompletedProcess(command, 5)
    )
    asked = ["-x", "--durations=20", "-k", "cli", "tests/unit/test_cli.py"]
    assert run.main(["test", *asked]) == 5
    assert called[0][-len(asked) :] == asked


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["bencmark"], "unknown command 'bencmark'; did you mean benchmark?"),
        (["standard", "--learning-rate", "1"], "see standard --help"),
        (["standard", "--lr"], "requires an argument"),
        (["standard", "--lr", "fast"], "--lr='fast' is not valid"),
        (["standard", "extra"], "unexpected extra argument"),
        (["standard", "--settings", "absent.yaml"], "cannot read settings file absent.yaml"),
        (["report"], "Missing argument"),
        (["nonsense"], "unknown command 'nonsense'; see --help"),
        (["standard", "--output-dir", ""], "--output-dir is empty"),
        (["standard", "--seed", "4294967296"], "less than or equal to 4294967295"),
        (["standard", "--val-size", "1.5"], "neither a share below 1 nor a whole number"),
        (["odb-enable", "--group-order-flip", "E"], "choose one of none, A, B"),
        (["data", "--preset", "miniature", "--sources", "iiit5k"], "sources is set, and the miniature has no sources"),
        (["bench", "loader"], "unknown command 'loader'; did you mean loaders?"),
        (["bench", "coverage", "--token-budget", "64"], "see bench coverage --help"),
        (["bench", "evaluation", "--count", "0"], "0 is not in the range"),
    ],
)
def test_a_mistake_is_one_line_and_exit_status_2(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("odb-example: error: ")
    assert words in err
    assert err.count("\n") == 1


def test_an_interrupt_is_one_line_and_exit_status_130(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    assert cli.main({"wait": cli.Spec(run=interrupted, help="")}, "", ["wait"]) == 130
    assert capsys.readouterr().err == "odb-example: interrupted\n"


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["all", "--help"], ["standard", "--print-settings"]])
def test_answers_that_need_no_torch_import_none(arguments: list[str]) -> None:
    code = (
        "import sys; from odb_example import run; status = run.main(sys.argv[1:]); "
        "heavy = {'torch', 'transformers', 'datasets', 'numpy'} & set(sys.modules); "
        "sys.exit(f'imported {heavy}' if heavy else status)"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
