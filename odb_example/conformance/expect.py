"""Assertions that phrase: the claim, what was expected, what came, where they part, and the likely cause.

A failed expectation raises `ConformanceError`; its text is all that a person reads, so each part is one short line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

_SHOWN = 8


class ConformanceError(AssertionError):
    """A claim that does not hold.

    Attributes:
        claim: what is wrong, with the sample, row or batch it is wrong in.
        likely: the likely cause and its mend.
    """

    def __init__(self, claim: str, *, expected: str = "", came: str = "", difference: str = "", likely: str) -> None:
        self.claim, self.expected, self.came = claim, expected, came
        self.difference, self.likely = difference, likely
        lines = [claim]
        lines += [f"  expected  {expected}"] if expected else []
        lines += [f"  came      {came}"] if came else []
        lines += [f"  {difference}"] if difference else []
        super().__init__("\n".join([*lines, f"likely: {likely}"]))


def expect(holds: bool, *, claim: str, likely: str, expected: object = "", came: object = "") -> None:
    """Fail with ``claim`` unless ``holds``."""
    if not holds:
        raise ConformanceError(claim, expected=_short(expected), came=_short(came), likely=likely)


def expect_equal(came: Any, expected: Any, *, claim: str, likely: str, unit: str = "element") -> None:
    """Fail unless both are equal: tensors and arrays in shape, type and every bit, sequences element by element.

    Args:
        unit: what one element is, for the line that says where they part ("token", "row").
    """
    if isinstance(expected, torch.Tensor) or isinstance(came, torch.Tensor):
        _expect_tensors(came, expected, claim, likely, unit)
    elif _is_list(expected) and _is_list(came):
        _expect_sequences(list(came), list(expected), claim, likely, unit)
    elif came != expected:
        raise ConformanceError(claim, expected=_short(expected), came=_short(came), likely=likely)


def expect_close(
    came: float, expected: float, *, claim: str, likely: str, relative: float = 1e-5, absolute: float = 1e-8
) -> None:
    """Fail unless two numbers agree within ``relative`` of the expected one, or ``absolute``; NaN never agrees."""
    if not is_close(came, expected, relative=relative, absolute=absolute):
        raise ConformanceError(
            claim, expected=f"{expected:.7g}", came=f"{came:.7g}",
            difference=f"off by {_off(came, expected)}, {relative:g} allowed", likely=likely,
        )  # fmt: skip


def identical(came: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether two tensors have one shape, one type and the same bits."""
    return came.shape == expected.shape and came.dtype == expected.dtype and torch.equal(came, expected)


def is_close(came: float, expected: float, *, relative: float = 1e-5, absolute: float = 1e-8) -> bool:
    """Whether two numbers agree within ``relative`` of the expected one, or ``absolute``; NaN never agrees."""
    return abs(came - expected) <= max(absolute, relative * abs(expected))


def expect_refused(
    attempt: Callable[[], object], *, claim: str, likely: str, mentions: Sequence[str] = (), by: type[Exception]
) -> None:
    """Fail unless ``attempt`` raises ``by`` with every word of ``mentions`` in its message."""
    try:
        came = attempt()
    except by as error:
        silent = [word for word in mentions if word not in str(error)]
        expect(
            not silent,
            claim=f"{claim}: the refusal does not say where",
            expected=f"a message with {', '.join(map(repr, silent))}",
            came=str(error),
            likely="name file, record and field in the error; nobody finds one bad record in 200,000 without them",
        )
        return
    except Exception as error:
        raise ConformanceError(
            f"{claim}: it crashed instead", expected=f"{by.__name__} with one line that a person understands",
            came=f"{type(error).__name__}: {error}", likely=likely,
        ) from error  # fmt: skip
    raise ConformanceError(claim, expected="a refusal", came=_short(came), likely=likely)


def nearest_cause(came: float, causes: Mapping[str, float], otherwise: str, relative: float = 1e-4) -> str:
    """The cause whose known wrong value is the one that came; ``otherwise`` where none is.

    Diagnosis by arithmetic: a check that knows what each common mistake yields can name the mistake.
    """
    for cause, value in causes.items():
        if abs(came - value) <= relative * max(abs(value), 1e-12):
            return cause
    return otherwise


def _off(came: float, expected: float) -> str:
    if not expected:
        return f"{came - expected:+.3g}"
    off = (came - expected) / abs(expected)
    return f"{off:+.2%}" if abs(off) >= 1e-4 else f"{off:+.1e}"  # in per cent a small one would read 0.00


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _expect_tensors(came: Any, expected: Any, claim: str, likely: str, unit: str) -> None:
    if not (isinstance(came, torch.Tensor) and isinstance(expected, torch.Tensor)):
        raise ConformanceError(claim, expected=_kind(expected), came=_kind(came), likely=likely)
    if identical(came, expected):
        return
    if came.dim() == expected.dim() == 1:
        _expect_sequences(came.tolist(), expected.tolist(), claim, likely, unit)
    if came.shape != expected.shape or came.dtype != expected.dtype:
        raise ConformanceError(claim, expected=_kind(expected), came=_kind(came), likely=likely)
    place = (came != expected).nonzero()[0].tolist()
    raise ConformanceError(
        claim,
        expected=f"{expected[tuple(place)].item():.6g}",
        came=f"{came[tuple(place)].item():.6g}",
        difference=f"first difference at {place} of {list(expected.shape)}, "
        f"{int((came != expected).sum())} of {expected.numel()} differ",
        likely=likely,
    )


def _expect_sequences(came: list[Any], expected: list[Any], claim: str, likely: str, unit: str) -> None:
    if came == expected:
        return
    shared = min(len(came), len(expected))
    place = next((at for at in range(shared) if came[at] != expected[at]), shared)
    lengths = "" if len(came) == len(expected) else f"; {len(came)} came"
    raise ConformanceError(
        claim,
        expected=_window(expected, place),
        came=_window(came, place),
        difference=f"first difference at {unit} {place} of {len(expected)}{lengths}",
        likely=likely,
    )


def _window(values: list[Any], place: int) -> str:
    start = max(0, min(place - _SHOWN // 2, len(values) - _SHOWN))
    shown = ", ".join(_short(value) for value in values[start : start + _SHOWN])
    return f"[{'... ' if start else ''}{shown}{' ...' if start + _SHOWN < len(values) else ''}]"


def _kind(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"tensor of shape {list(value.shape)}, {str(value.dtype).removeprefix('torch.')}"
    return f"{type(value).__name__} {_short(value)}"


def _short(value: object, limit: int = 160) -> str:
    if isinstance(value, torch.Tensor):
        return _kind(value)
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= limit else f"{text[:limit]}..."
