"""Settings from every source, with the source of each: flag > environment > settings file > command > preset > default.

`resolve` takes what the command line gave (raw words), the environment and an optional settings file, and returns
`Resolved`: the validated `Settings` and, per field, where its value came from. All mistakes are one-line `UserError`s.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from odb_example.errors import UserError
from odb_example.settings import PRESETS, Settings, choices_of, option_of

# Variables of this project's sibling examples: known, without effect here.
SIBLING_NAMES = frozenset(
    """
    ATTN_IMPLEMENTATION DATA_DIR DATA_REPO DEEPSPEED_CONFIG DEVICES EVAL_TAG EVAL_TARGET FREEZE_LANGUAGE_MODEL
    FREEZE_MULTIMODAL_PROJECTOR FREEZE_VISION_TOWER LOG_BATCH_SHAPES MULTIPROCESSING_CONTEXT NUM_NODES PROJECT_PREFIX
    RUN_DIR STRATEGY TRAIN_OUTPUT TRAIN_ROOT
    """.split()
)
OUR_PREFIXES = ("ODB_MM_MIX_", "ODB_HF_")


@dataclass(frozen=True, slots=True)
class Resolved:
    """Validated settings, where each value came from, and what a person should be told once."""

    settings: Settings
    origin: Mapping[str, str]
    notes: tuple[str, ...]


def resolve(
    flags: Mapping[str, Any],
    environ: Mapping[str, str] = os.environ,
    file: Path | None = None,
    command: Mapping[str, Any] | None = None,
) -> Resolved:
    """Merge all sources into `Settings`.

    Args:
        flags: field name -> raw value as given on the command line.
        file: YAML mapping of field names, for example a run's own ``run_settings.yaml``.
        command: defaults that the command itself brings (``odb-manual`` sets the integration).

    Raises:
        UserError: unknown variable or key (with the nearest known name), or a value out of range, with its source.
    """
    notes: list[str] = []
    given: dict[str, tuple[Any, str]] = {}
    for name, value in (command or {}).items():
        given[name] = (value, "command")
    if file is not None:
        given |= {name: (value, f"settings file {file}") for name, value in _read_file(file).items()}
    given |= _read_environment(environ, notes)
    for name, value in flags.items():
        if value == "":  # `--output-dir "$UNSET"`: taken for the current folder it would write where nobody looks
            raise UserError(f"{_flag(name)} is empty", "give a value, or leave the option out")
        given[name] = (value, _flag(name))

    preset = _choose_preset(given, environ, notes)
    merged = {name: (value, f"preset {preset}") for name, value in PRESETS[preset].items()} | given
    merged["preset"] = (preset, given["preset"][1] if "preset" in given else "chosen")
    try:
        settings = Settings(**{name: value for name, (value, _) in merged.items()})
    except ValidationError as error:
        raise _as_user_error(error, merged) from None
    origin = {name: merged[name][1] if name in merged else "default" for name in Settings.model_fields}
    return Resolved(settings, origin, tuple(notes))


def _flag(name: str) -> str:
    return "--" + (option_of(name).flag or name.replace("_", "-"))


def _read_file(path: Path) -> dict[str, Any]:
    import yaml

    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read settings file {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"settings file {path} is not YAML: {error}") from error
    if not isinstance(values, dict):
        raise UserError(f"settings file {path} holds no mapping of names to values")
    for name in values:
        if name not in Settings.model_fields:
            raise UserError(
                f"settings file {path}: unknown setting {name!r}", _nearest(str(name), Settings.model_fields)
            )
    return {name: value for name, value in values.items() if value is not None}


def _read_environment(environ: Mapping[str, str], notes: list[str]) -> dict[str, tuple[Any, str]]:
    known = {variable: name for name in Settings.model_fields if (variable := option_of(name).env)}
    found: dict[str, tuple[Any, str]] = {}
    for variable, value in sorted(environ.items()):
        if variable in known:
            if value != "":  # an empty variable is unset, as `${X:-default}` reads it
                found[known[variable]] = (value, f"variable {variable}")
        elif prefix := next((p for p in OUR_PREFIXES if variable.startswith(p)), None):
            if variable.removeprefix(prefix) not in SIBLING_NAMES:
                raise UserError(f"unknown variable {variable}", _nearest(variable, known))
            notes.append(f"variable {variable} belongs to a sibling example and has no effect here")
    if "master_port" not in found and environ.get("MASTER_PORT") and "RANK" not in environ:
        found["master_port"] = (environ["MASTER_PORT"], "variable MASTER_PORT")
    return found


def _choose_preset(given: Mapping[str, tuple[Any, str]], environ: Mapping[str, str], notes: list[str]) -> str:
    if "preset" in given:
        preset, source = given["preset"]
        if preset not in PRESETS:
            raise UserError(f"{source}: preset {preset!r} is unknown", f"choose one of {', '.join(PRESETS)}")
        return str(preset)
    if "model" in given or (accelerator_present(environ) and given.get("device", ("auto", ""))[0] != "cpu"):
        return "public"
    notes.append(
        "no model named and no accelerator found: preset miniature (tiny Qwen3-VL, embedded data); "
        "--preset public or --model NAME chooses the real one"
    )
    return "miniature"


def accelerator_present(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this machine shows a GPU, told from device files so that torch need not be imported."""
    if environ.get("CUDA_VISIBLE_DEVICES", "unset") in ("", "-1"):
        return False
    return any(Path(node).exists() for node in ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd"))


def _nearest(word: str, known: Any) -> str:
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else "--help lists what there is"


def _as_user_error(error: ValidationError, merged: Mapping[str, tuple[Any, str]]) -> UserError:
    first = error.errors(include_url=False)[0]
    reason = first["msg"].removeprefix("Value error, ")
    if not first["loc"]:
        return UserError(reason, "change one of them")
    name = str(first["loc"][0])
    value, source = merged[name]
    mend = f"choose one of {', '.join(words)}" if (words := choices_of(name)) else ""
    label = source if source.startswith(("--", "variable")) else f"{source}: {name}"
    return UserError(f"{label}={value!r} is not valid: {reason[0].lower()}{reason[1:]}", mend)
