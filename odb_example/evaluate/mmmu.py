"""The scoring protocol's reading of one MMMU row: answer, options, status, valid letters, prompt. Pure, text only.

`MMMU-MC-choice-likelihood-v1` is fixed to the letter: what looks odd here (empty options dropped so that letters shift,
a null ``option_A`` read as the word None, nine options of which eight are scored) is the protocol, and `oddities` names
it so that the audit can count the rows concerned. Nothing of a row is ever evaluated as code.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from odb_example.errors import UserError
from odb_example.evaluate.subjects import DISCIPLINE_OF

PROTOCOL = "MMMU-MC-choice-likelihood-v1"
LETTERS = "ABCDEFGH"
IMAGE_FIELDS = tuple(f"image_{number}" for number in range(1, 8))
PROMPT_SUFFIX = "Answer with the option letter only."
DIRECT_SUFFIX = "Answer with the option's letter from the given choices directly."

NON_LETTER_ANSWER = "non_letter_answer"
UNDECODABLE_IMAGE = "undecodable_image"
REFUSED_IMAGE_SHAPE = "refused_image_shape"
REFUSED_PROMPT = "refused_prompt"
# Rows the reference would stop at; leaving one out makes a result incomplete.
INCOMPLETE_REASONS = frozenset({UNDECODABLE_IMAGE, REFUSED_IMAGE_SHAPE, REFUSED_PROMPT})

Variant = Literal["v1", "mmmu", "lmms-eval"]
Status = Literal[
    "options_valid",
    "missing_options_scored_all_letters",
    "too_many_options_scored_AH",
    "answer_outside_options_scored_all_letters",
]

_FILE_IMAGE_MARK = re.compile(r"<image \d+>")
_SPECIAL_TOKEN = re.compile(r"<\|[^<>|\s]+\|>")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A row that is scored.

    ``order`` is the row's place among all rows of the run; ``oddities`` names what is unusual about it.
    """

    order: int
    subject: str
    category: str
    sample_id: str
    question: str
    options: tuple[str, ...]
    status: Status
    valid_letters: str
    answer: str
    num_images: int
    oddities: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusion:
    """A row that is not scored, and why."""

    order: int
    subject: str
    sample_id: str
    reason: str
    answer_raw: Any
    normalized_answer: str
    options: tuple[str, ...]
    detail: str = ""


def read_row(row: Mapping[str, Any], *, subject: str, index: int, order: int) -> Question | Exclusion:
    """Apply the protocol's filter to one row: the answer first, then the options.

    Args:
        row: the columns of the set; images are only counted.
        index: the row's place in its subject, for rows without an id.
        order: the row's place among all rows of the run.
    """
    options = read_options(row)
    sample_id = row_id(row, subject=subject, index=index)
    answer = normalize_answer(row.get("answer"))
    if not is_letter(answer):
        return Exclusion(
            order=order, subject=subject, sample_id=sample_id, reason=NON_LETTER_ANSWER,
            answer_raw=row.get("answer"), normalized_answer=answer, options=options,
        )  # fmt: skip
    status, valid = option_status(len(options), answer)
    question = "" if row.get("question") is None else str(row["question"])
    return Question(
        order=order, subject=subject, category=DISCIPLINE_OF.get(subject, subject), sample_id=sample_id,
        question=question, options=options, status=status, valid_letters=valid, answer=answer,
        num_images=sum(row.get(name) is not None for name in IMAGE_FIELDS),
        oddities=oddities(row, question, options),
    )  # fmt: skip


def row_id(row: Mapping[str, Any], *, subject: str, index: int) -> str:
    """``id``, else ``sample_id``, else ``question_id``, else ``SUBJECT:index``; empty ones are passed over."""
    for name in ("id", "sample_id", "question_id"):
        if row.get(name) not in (None, ""):
            return str(row[name])
    return f"{subject}:{index}"


def normalize_answer(value: Any) -> str:
    """Stripped and upper case; a list answer stays its own text and so is no letter."""
    return "" if value is None else str(value).strip().upper()


def is_letter(answer: str) -> bool:
    """Whether a normalised answer is one of the scored letters A-H."""
    return len(answer) == 1 and answer in LETTERS


def read_options(row: Mapping[str, Any]) -> tuple[str, ...]:
    """The row's options: the list in ``options``, stripped, empty ones dropped; else ``option_A`` to ``option_H``.

    A field that is there but null reads as the word None, as the protocol has it.
    """
    listed = parse_options(row.get("options"))
    if not listed:
        listed = [row[name] for letter in LETTERS if (name := f"option_{letter}") in row]
    stripped = (str(option).strip() for option in listed)
    return tuple(option for option in stripped if option)


def parse_options(value: Any) -> list[Any]:
    """The list that ``options`` holds, itself or as a Python literal; empty where it holds none."""
    if isinstance(value, str):
        try:
            value = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            return []
    return list(value) if isinstance(value, (list, tuple)) else []


def option_status(count: int, answer: str) -> tuple[Status, str]:
    """Status and valid letters by the number of options; the checks come in the protocol's order."""
    if count == 0:
        return "missing_options_scored_all_letters", LETTERS
    if count > len(LETTERS):
        return "too_many_options_scored_AH", LETTERS
    if answer not in LETTERS[:count]:
        return "answer_outside_options_scored_all_letters", LETTERS
    return "options_valid", LETTERS[:count]


def build_prompt(question: str, options: Sequence[str], variant: Variant = "v1") -> str:
    """The text of the user turn (images come before it). Only ``v1`` is the protocol.

    ``mmmu`` is the wording of the MMMU authors' evaluation, ``lmms-eval`` that of lmms-eval's task; both keep the
    ``<image 1>`` marks. Option letters run on past H, since nine options show (I) though A-H are scored.
    """
    letters = [chr(ord("A") + number) for number in range(len(options))]
    if variant == "lmms-eval":
        lines = [f"{letter}. {option}" for letter, option in zip(letters, options, strict=True)]
    else:
        lines = [f"({letter}) {option}" for letter, option in zip(letters, options, strict=True)]
    listed = "\n".join(lines)
    if variant == "v1":
        return f"{question}\n{listed}\n{PROMPT_SUFFIX}"
    return f"{question}\n{listed}\n\n{DIRECT_SUFFIX}"


def protocol_name(variant: Variant) -> str:
    """The name results carry; another wording is another protocol."""
    return PROTOCOL if variant == "v1" else f"{PROTOCOL}+{variant}-prompt"


def suffix_of(variant: Variant) -> str:
    """The sentence that ends the prompt."""
    return PROMPT_SUFFIX if variant == "v1" else DIRECT_SUFFIX


def not_comparable_with(variant: Variant) -> list[str]:
    """What a score under this prompt may not be compared with."""
    others = [protocol_name(other) for other in ("v1", "mmmu", "lmms-eval") if other != variant]
    return [
        "generated-answer scores on MMMU (the authors' parser, lmms-eval, VLMEvalKit): they differ by up to 8 points "
        "on one and the same model",
        f"scores under another prompt or protocol ({', '.join(others)})",
        "scores over other rows: the 900-row set, other subjects, another split or a cap",
        "scores made under another image cap or precision",
    ]


def prompt_digest(text: str) -> str:
    """SHA-256 of a prompt's text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def choose(scores: Mapping[str, float], valid: str) -> tuple[str, float | None]:
    """The best valid letter (the earlier one of a tie) and its lead over the second, None with one letter.

    Raises:
        UserError: no letter is valid.
    """
    if not valid:
        raise UserError("no valid letter to choose from")
    ranked = sorted(valid, key=lambda letter: (-scores[letter], letter))
    margin = scores[ranked[0]] - scores[ranked[1]] if len(ranked) > 1 else None
    return ranked[0], margin


def oddities(row: Mapping[str, Any], question: str, options: Sequence[str]) -> tuple[str, ...]:
    """Names of what is unusual about a scored row; each is counted in the audit."""
    raw = row.get("options")
    listed = [str(option) for option in parse_options(raw)]
    fields = [row[name] for letter in LETTERS if (name := f"option_{letter}") in row]
    text = "\n".join([question, *options])
    found = {
        "open_row_with_letter_answer": row.get("question_type") not in (None, "multiple-choice"),
        "malformed_options": not listed and raw not in (None, "", "[]", [], ()),
        "empty_options_dropped": any(not option.strip() for option in listed),
        "padded_options": any(option.strip() and option != option.strip() for option in listed),
        "duplicate_options": len(set(options)) < len(options),
        "null_option_read_as_text": not listed and any(value is None for value in fields),
        "options_beyond_H": len(options) > len(LETTERS),
        "images_in_options": any(_FILE_IMAGE_MARK.search(option) for option in options),
        "special_token_in_text": bool(_SPECIAL_TOKEN.search(text)),
        "no_image": all(row.get(name) is None for name in IMAGE_FIELDS),
    }
    return tuple(name for name, holds in found.items() if holds)
