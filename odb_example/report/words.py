"""Numbers and untrusted text as people read them.

Everything that came out of a record passes `readable` before it reaches a page or a terminal: control characters
(which no HTML may hold, and which would drive a terminal) become visible marks, lone surrogates too. Markup is not
touched here: Jinja2 and rich escape it.
"""

from __future__ import annotations

import math
import unicodedata
from typing import Any

_BIDI = {*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C}


def readable(text: Any) -> str:
    """Text with control characters as their pictures (NUL becomes U+2400).

    Direction marks stay, the page isolates them.
    """
    return "".join(_visible(character) for character in str(text))


def flat(text: Any, limit: int = 60) -> str:
    """One short line for a terminal, a label or a chart.

    No line breaks, no direction marks, cut at ``limit`` characters.
    """
    line = "".join(c for c in " ".join(readable(text).split()) if ord(c) not in _BIDI)
    return line if len(line) <= limit else line[: limit - 1] + "…"


def number(value: float | int | None, digits: int = 4) -> str:
    """``digits`` significant digits, thousands grouped; an em dash where there is no value."""
    if value is None:
        return "—"
    if math.isnan(value):
        return "—"
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    if value != 0 and (abs(value) < 1e-4 or abs(value) >= 1e15):
        return f"{value:.{digits - 1}e}"
    places = max(0, digits - len(str(int(abs(value)))) if abs(value) >= 1 else digits)
    return f"{value:,.{places}f}"


def signed(value: float, digits: int = 4) -> str:
    """The same with its sign (U+2212 for minus)."""
    return ("+" if value > 0 else "−" if value < 0 else "±") + number(abs(value), digits)


def several(words: list[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return " and ".join(part for part in (", ".join(words[:-1]), words[-1] if words else "") if part)


def _visible(character: str) -> str:
    code = ord(character)
    if character in "\n\t":
        return character
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "␡"
    if unicodedata.category(character) in {"Cc", "Cs"} or code & 0xFFFE == 0xFFFE:
        return "\ufffd"
    return character
