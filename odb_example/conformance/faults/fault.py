"""A planted fault: a right pipeline with one part made wrong, and the check that must name it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from odb_example.conformance.pipeline import Pipeline

Plant = Callable[[Pipeline], Pipeline]


@dataclass(frozen=True, slots=True)
class Fault:
    """One way to be wrong.

    Attributes:
        part: the part of the stack it sits in.
        wrong: what is wrong, in words.
        caught_by: the check that must fail.
        mentions: words its message must contain, so that the person knows the cause.
        restore: undoes what the fault leaves behind in the process.
    """

    name: str
    part: str
    wrong: str
    caught_by: str
    mentions: tuple[str, ...]
    plant: Plant
    restore: Callable[[], None]


def fault(*, caught_by: str, mentions: str | tuple[str, ...], restore: Callable[[], None] = lambda: None) -> Any:
    """Mark a function from the right pipeline to a wrong one as a planted fault; its docstring says what is wrong."""

    def mark(plant: Plant) -> Fault:
        assert plant.__doc__
        return Fault(
            name=plant.__name__,
            part=plant.__module__.rpartition(".")[2],
            wrong=plant.__doc__.splitlines()[0].rstrip("."),
            caught_by=caught_by,
            mentions=(mentions,) if isinstance(mentions, str) else mentions,
            plant=plant,
            restore=restore,
        )

    return mark


def faults_of(module: ModuleType) -> list[Fault]:
    """The faults of a module, in the order they are written."""
    return [value for value in vars(module).values() if isinstance(value, Fault)]
