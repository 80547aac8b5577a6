"""Stored numbers with a tolerance each, and how they are compared and shown.

A test measures (`Measured`: named `Number`s and the settings they belong to); the file holds `Stored`: the same numbers
and the `Provenance` of the run that recorded them. `compare` gives the `Difference`s, `as_table` what a person reads.
Pure values: where files lie and when they are written is `odb_example.testing.snapshots`.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, TypeGuard

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from odb_example.errors import UserError

Scalar: TypeAlias = bool | int | float | str | None
Value: TypeAlias = Scalar | list[Scalar]
Kind: TypeAlias = Literal["exact", "absolute", "relative"]


class Number(BaseModel):
    """One value (or a list of them) with the tolerance it was declared with.

    ``bound`` is in the value's own unit for ``absolute`` and a share of the stored value for ``relative``. ``likely``
    is what the test's author would look at first; it is not stored.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    value: Value
    tolerance: Kind
    bound: float = 0.0
    likely: str = ""

    @model_validator(mode="after")
    def _sensible(self) -> Number:
        if not all(math.isfinite(item) for item in _items(self.value) if isinstance(item, float)):
            raise ValueError("a baseline holds finite numbers only")
        if (self.tolerance == "exact") != (self.bound == 0.0) or self.bound < 0:
            raise ValueError("exact takes no bound, absolute and relative take one above 0")
        return self

    @property
    def allowed(self) -> str:
        """The tolerance in words, e.g. ``relative 0.001``."""
        return "exact" if self.tolerance == "exact" else f"{self.tolerance} {self.bound:g}"


def exact(value: Value, likely: str = "") -> Number:
    """A count or a word: any change is a difference."""
    return Number(value=value, tolerance="exact", likely=likely)


def absolute(value: Value, bound: float, likely: str = "") -> Number:
    """``|now - stored| <= bound``."""
    return Number(value=value, tolerance="absolute", bound=bound, likely=likely)


def relative(value: Value, bound: float, likely: str = "") -> Number:
    """``|now - stored| <= bound * |stored|``."""
    return Number(value=value, tolerance="relative", bound=bound, likely=likely)


@dataclass(frozen=True, slots=True)
class Measured:
    """What a test found, and the settings without which the numbers mean nothing."""

    numbers: Mapping[str, Number]
    settings: Mapping[str, Scalar] = field(default_factory=dict)


class Provenance(BaseModel):
    """Where stored numbers come from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    test: str
    tier: str
    recorded: str
    commit: str
    hardware: dict[str, Scalar]
    versions: dict[str, str]
    settings: dict[str, Scalar]


class Stored(BaseModel):
    """One baseline file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = 1
    numbers: dict[str, Number]
    provenance: Provenance

    def to_text(self) -> str:
        """The file's text: indented JSON, hints left out."""
        value = self.model_dump(exclude={"numbers": {"__all__": {"likely"}}}, exclude_none=False)
        for number in value["numbers"].values():
            if number["tolerance"] == "exact":
                del number["bound"]
        return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def parse(text: str, where: str) -> Stored:
    """Read a baseline file's text.

    Raises:
        UserError: naming ``where`` and the first field that is wrong.
    """
    try:
        return Stored.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "the file"
        raise UserError(
            f"baseline {where}: {place}: {first['msg']}",
            "restore it from git, or record it anew with --snapshot-update",
        ) from None


@dataclass(frozen=True, slots=True)
class Difference:
    """One field that no longer holds."""

    field: str
    stored: str
    now: str
    tolerance: str
    cause: str


def compare(stored: Stored, now: Stored) -> list[Difference]:
    """Every field in which ``now`` leaves what is stored: settings first, then numbers as they are measured.

    The tolerance in force is the declared one; where the declaration differs from the file, that is itself a
    difference, so that a loosened tolerance passes through review like a changed number.
    """
    differences = [
        Difference(
            f"settings.{name}", _show(then.get(name)), _show(current.get(name)), "exact",
            "this run is set up otherwise than the recorded one",
        )
        for then, current in [(stored.provenance.settings, now.provenance.settings)]
        for name in {**then, **current}
        if then.get(name) != current.get(name)
    ]  # fmt: skip
    changed = _changed_versions(stored.provenance, now.provenance)
    for name, number in now.numbers.items():
        before = stored.numbers.get(name)
        if before is None:
            differences.append(
                Difference(name, "not stored", _show(number.value), number.allowed, "the test measures something new")
            )
            continue
        if before.allowed != number.allowed:
            differences.append(
                Difference(f"{name} (tolerance)", before.allowed, number.allowed, "", "the test declares another one")
            )
        cause = "; ".join(part for part in (number.likely, changed) if part) or _unexplained(stored.provenance)
        differences += _compare_values(name, before.value, number, cause)
    differences += [
        Difference(name, _show(number.value), "not measured", number.allowed, "the test no longer measures it")
        for name, number in stored.numbers.items()
        if name not in now.numbers
    ]
    return differences


def _compare_values(name: str, before: Value, number: Number, cause: str) -> list[Difference]:
    then, now = _items(before), _items(number.value)
    if isinstance(before, list) != isinstance(number.value, list) or len(then) != len(now):
        return [Difference(name, _show(before), _show(number.value), number.allowed, cause)]
    return [
        Difference(
            f"{name}[{place}]" if isinstance(before, list) else name,
            _show(a),
            _show(b),
            number.allowed + _by(a, b),
            cause,
        )
        for place, (a, b) in enumerate(zip(then, now, strict=True))
        if not _holds(a, b, number)
    ]


def _holds(stored: Scalar, now: Scalar, number: Number) -> bool:
    if number.tolerance != "exact" and _is_number(stored) and _is_number(now):
        allowed = number.bound * abs(stored) if number.tolerance == "relative" else number.bound
        return abs(now - stored) <= allowed
    return stored == now and isinstance(stored, bool) == isinstance(now, bool)


def _by(stored: Scalar, now: Scalar) -> str:
    if not (_is_number(stored) and _is_number(now)):
        return ""
    share = f", {100 * (now - stored) / abs(stored):+.3g}%" if stored else ""
    return f" (off by {now - stored:+.3g}{share})"


def _is_number(value: Scalar) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _items(value: Value) -> Sequence[Scalar]:
    return value if isinstance(value, list) else [value]


def _show(value: Value) -> str:
    if isinstance(value, list):
        shown = ", ".join(_show(item) for item in value[:6])
        return f"[{shown}{', ...' if len(value) > 6 else ''}] ({len(value)})"
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def _changed_versions(then: Provenance, now: Provenance) -> str:
    changes = [
        f"{name} {then.versions.get(name, 'absent')} -> {now.versions.get(name, 'absent')}"
        for name in {**then.versions, **now.versions}
        if then.versions.get(name) != now.versions.get(name)
    ]
    return ", ".join(changes)


def _unexplained(then: Provenance) -> str:
    return f"the code: no version or setting changed since commit {then.commit}"


def as_table(differences: Sequence[Difference], width: int = 118) -> str:
    """The differences as a table of field, stored, now, tolerance and likely cause."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for title in ("field", "stored", "now", "tolerance", "likely cause"):
        table.add_column(title, overflow="fold", ratio=2 if title == "likely cause" else None)
    for row in differences:
        table.add_row(row.field, row.stored, row.now, row.tolerance, row.cause)
    stream = io.StringIO()
    Console(file=stream, width=width, color_system=None, markup=False, highlight=False, emoji=False).print(table)
    return "\n".join(line.rstrip() for line in stream.getvalue().rstrip().splitlines())
