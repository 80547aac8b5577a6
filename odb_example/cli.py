"""Commands and flags, made from the declared settings; click parses, `resolve` decides, `run` acts.

Importing this module costs no torch, so that ``--help`` answers at once.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import click

from odb_example import __version__
from odb_example.errors import CheckFailed, UserError, line_of
from odb_example.resolve import Resolved, resolve
from odb_example.settings import SHARED, Settings, choices_of, option_of

PROGRAM = "odb-example"
_DOTTED = re.compile(r"--(caps|trainer)\.([A-Za-z0-9_]+)(?:=(.*))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """One command: what it does, which groups of settings it offers, what it sets by itself.

    Attributes:
        forwards: options it does not know belong to the program behind it.
    """

    run: Callable[..., int | None]
    help: str
    groups: tuple[str, ...] = ()
    defaults: Mapping[str, Any] | None = None
    parameters: tuple[click.Parameter, ...] = ()
    aliases: tuple[str, ...] = ()
    forwards: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Commands under one name, as in ``bench loaders``, each with options of its own."""

    help: str
    commands: Mapping[str, Spec]


class _SettingsCommand(click.Command):
    """Its options are made when they are asked for: making those of every command would double the time of --help."""

    def __init__(self, name: str, options: Callable[[], list[click.Parameter]], **kwargs: Any) -> None:
        super().__init__(name, **kwargs)
        self._options = cache(options)
        self._own = self.params

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        self.params = [*self._own, *self._options()]
        return super().get_params(ctx)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """``--trainer.NAME VALUE`` is ``--trainer NAME VALUE`` to click, which knows no dotted options."""
        words: list[str] = []
        for word in args:
            match = _DOTTED.fullmatch(word)
            words += [word] if match is None else [f"--{match[1]}", match[2], *([match[3]] if match[3] else [])]
        return super().parse_args(ctx, words)


class _Dotted(click.Option):
    """``--trainer.NAME VALUE``, which `_SettingsCommand` reads."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        record = super().get_help_record(ctx)
        return record and (record[0].replace(" .", "."), record[1])


class _Commands(click.Group):
    """A list of commands in their declared order, which also go by their aliases."""

    def __init__(self, specs: Mapping[str, Spec | Family], **kwargs: Any) -> None:
        super().__init__(commands={name: _command(name, spec) for name, spec in specs.items()}, **kwargs)
        plain = {name: spec for name, spec in specs.items() if isinstance(spec, Spec)}
        self.alias_of = {alias: name for name, spec in plain.items() for alias in spec.aliases}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, self.alias_of.get(cmd_name, cmd_name))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if self.get_command(ctx, args[0]) is None:
            names = [*self.commands, *self.alias_of]
            close = difflib.get_close_matches(args[0], names, n=1, cutoff=0.6)
            raise UserError(f"unknown command {args[0]!r}", f"did you mean {close[0]}?" if close else "see --help")
        return super().resolve_command(ctx, args)


def build(specs: Mapping[str, Spec | Family], epilog: str) -> click.Group:
    """The command-line program of ``specs``, in their order."""
    group = _Commands(
        specs,
        name=PROGRAM,
        help="Train and evaluate Qwen3-VL with Online Dynamic Batching.",
        epilog=epilog,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    group.params.append(
        click.Option(
            ["--version"], is_flag=True, is_eager=True, expose_value=False, help="Show the version.", callback=_version
        )
    )
    group.add_command(click.Command("help", help="Show this message.", callback=lambda: click.echo(_overview(group))))
    return group


def _overview(group: click.Group) -> str:
    return group.get_help(click.Context(group, info_name=PROGRAM))


def _version(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        click.echo(f"{PROGRAM} {__version__}")
        ctx.exit()


def _command(name: str, spec: Spec | Family) -> click.Command:
    if isinstance(spec, Family):
        return _Commands(spec.commands, name=name, help=spec.help)
    if not spec.groups:
        return click.Command(
            name,
            params=list(spec.parameters),
            callback=spec.run,
            help=spec.help,
            context_settings={"ignore_unknown_options": spec.forwards},
        )

    def options() -> list[click.Parameter]:
        return [
            *map(_flag_of, fields_of(spec.groups)),
            click.Option(
                ["--settings"],
                type=click.Path(path_type=Path),
                help="YAML file of settings, e.g. a run's run_settings.yaml",
            ),
            click.Option(["--print-settings"], is_flag=True, help="show each value and where it came from, then stop"),
        ]

    def call(settings: Path | None, print_settings: bool, **words: Any) -> int | None:
        own = {parameter.name: words.pop(parameter.name) for parameter in spec.parameters if parameter.name}
        resolved = resolve(_given(words), file=settings, command=spec.defaults)
        if print_settings:
            show_settings(resolved)
            return 0
        for note in resolved.notes:
            print(note, file=sys.stderr, flush=True)
        return spec.run(resolved.settings, **own)

    return _SettingsCommand(name, options, params=list(spec.parameters), callback=call, help=spec.help)


def fields_of(groups: Sequence[str]) -> list[str]:
    """Setting names offered by a command; of two that share a flag, the one declared first."""
    taken: dict[str, str] = {}
    for name in Settings.model_fields:
        option = option_of(name)
        if set(option.commands) & {SHARED, *groups}:
            taken.setdefault(option.flag or name.replace("_", "-"), name)
    return list(taken.values())


def _flag_of(name: str) -> click.Option:
    field, option = Settings.model_fields[name], option_of(name)
    flag = option.flag or name.replace("_", "-")
    default = (
        "" if field.default in (None, {}) or field.annotation in (bool, bool | None) else f"default {field.default}"
    )
    notes = "; ".join(part for part in (default, f"variable {option.env}" if option.env else "") if part)
    words = f"{field.description} [{notes}]" if notes else str(field.description)
    if field.annotation in (bool, bool | None):
        state = "" if field.default is None else f" [default {'on' if field.default else 'off'}]"
        off = flag.removeprefix("no-") if flag.startswith("no-") else f"no-{flag}"
        return click.Option([f"--{flag}/--{off}", name], default=None, help=words + state)
    if field.annotation in (dict[str, str], dict[str, int]):
        return _Dotted([f"--{flag}", name], type=(str, str), multiple=True, metavar=".NAME VALUE", help=words)
    metavar = "|".join(choices_of(name)) or "VALUE"
    return click.Option([f"--{flag}", name], type=click.UNPROCESSED, metavar=metavar, help=words)


def _given(words: Mapping[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in words.items() if value is not None and value != ()}
    return {name: dict(value) if isinstance(value, tuple) else value for name, value in given.items()}


def show_settings(resolved: Resolved) -> None:
    """Print name, value and source of every setting."""
    width = max(map(len, Settings.model_fields))
    for name in Settings.model_fields:
        print(f"{name:<{width}}  {getattr(resolved.settings, name)!s:<40}  {resolved.origin[name]}")


def main(specs: Mapping[str, Spec | Family], epilog: str, arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status: 0 well, 1 a check failed, 2 bad input, 130 interrupted."""
    try:
        program = build(specs, epilog)
        with program.make_context(PROGRAM, list(sys.argv[1:] if arguments is None else arguments)) as context:
            result = program.invoke(context)
    except click.exceptions.Exit as stop:  # --help and --version
        return stop.exit_code
    except CheckFailed as error:
        return _fail(str(error), status=1)
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.ctx.get_help() if error.ctx else "")
        return 0
    except click.UsageError as error:
        words = " ".join(error.format_message().split())
        if error.ctx is None:
            return _fail(words)
        return _fail(f"{words.rstrip('.')}; see {error.ctx.command_path.removeprefix(f'{PROGRAM} ')} --help")
    except click.ClickException as error:
        return _fail(" ".join(error.format_message().split()))
    except Exception as error:
        if line := line_of(error):
            return _fail(line)
        raise
    except KeyboardInterrupt:
        print(f"{PROGRAM}: interrupted", file=sys.stderr, flush=True)
        return 130
    return result if isinstance(result, int) else 0


def _fail(line: str, status: int = 2) -> int:
    print(f"{PROGRAM}: error: {line}", file=sys.stderr, flush=True)
    return status
