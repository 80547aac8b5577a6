"""A check: a plain function over a `Pipeline`; its docstring is the claim, and it raises where that does not hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeVar

from odb_example.conformance.pipeline import PARTS, Pipeline

CheckFunction = Callable[[Pipeline], None]
Function = TypeVar("Function", bound=CheckFunction)


class NotApplicable(Exception):  # noqa: N818 - nothing went wrong
    """The pipeline lacks something that this check needs beyond its parts; the message says what to provide."""


@dataclass(frozen=True, slots=True)
class Check:
    """A check as the catalogue holds it.

    Attributes:
        group: the module it stands in: store, samples, collate, ...
        needs: parts without which it does not apply.
        processes: it starts processes.
    """

    name: str
    group: str
    claim: str
    needs: tuple[str, ...]
    processes: bool
    function: CheckFunction

    @property
    def tier(self) -> str:
        """``integration`` where processes are started, a model is trained or a benchmark run, else ``unit``."""
        return "integration" if self.processes or {"run", "benchmark"} & set(self.needs) else "unit"

    def missing(self, pipeline: Pipeline) -> tuple[str, ...]:
        """Parts to provide so that the check applies."""
        return tuple(part for part in self.needs if not pipeline.has(part))

    def __call__(self, pipeline: Pipeline) -> None:
        """Run it; `ConformanceError` where the claim does not hold, `NotApplicable` where a part is missing."""
        missing = self.missing(pipeline)
        if missing:
            raise NotApplicable("; ".join(PARTS[part] for part in missing))
        self.function(pipeline)


def needs(*parts: str, processes: bool = False) -> Callable[[Function], Function]:
    """Mark a function as a check and name the parts it needs."""
    unknown = [part for part in parts if part not in PARTS]
    assert not unknown, f"no such parts: {unknown}"

    def mark(function: Function) -> Function:
        function.needs, function.processes = parts, processes  # type: ignore[attr-defined]
        return function

    return mark


def checks_of(module: ModuleType) -> list[Check]:
    """The checks of a module, in the order they are written."""
    found: list[Any] = [value for value in vars(module).values() if hasattr(value, "needs")]
    return [
        Check(
            name=function.__name__,
            group=module.__name__.rpartition(".")[2],
            claim=function.__doc__.splitlines()[0],
            needs=function.needs,
            processes=function.processes,
            function=function,
        )
        for function in found
        if function.__module__ == module.__name__
    ]
