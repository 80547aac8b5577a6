"""A source's row to turns and a stored image, or to the reason why not. Pure: no file, no network.

Known defects of the sets: roles other than human and gpt, rows without an image, placeholders missing or in surplus,
images that do not decode, strips that no Qwen-VL processor takes. Each has a reason of its own, so that a build can say
what it left out.
"""

from __future__ import annotations

import hashlib
import io
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from PIL import Image

from odb_example.data.images import ImageError, open_image
from odb_example.data.pixels import MAX_RATIO
from odb_example.data.records import IMAGE_PLACEHOLDER, Record, RecordError, Turn
from odb_example.data.sources import Source
from odb_example.data.store_writer import StoredImage

# Files kept as they came. Others (MPO, ICO, ...) are stored as the PNG of what they show.
_KEPT = {"JPEG": "jpg", "PNG": "png", "WEBP": "webp", "GIF": "gif", "BMP": "bmp", "TIFF": "tiff"}


@dataclass(frozen=True, slots=True)
class Skipped:
    """Why a row became no record; ``reason`` is a word to count by."""

    reason: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Normalised:
    """A record and its image."""

    record: Record
    image: StoredImage


class _SkipRowError(Exception):
    def __init__(self, reason: str, detail: str = "") -> None:
        self.skipped = Skipped(reason, detail)


def normalise(source: Source, row: Mapping[str, Any], number: int) -> Normalised | Skipped:
    """Make a record of row ``number`` of ``source``; images come undecoded, as ``{"bytes": ..., "path": ...}``."""
    try:
        image = stored_image(_image_bytes(row))
        turns = with_placeholder(_turns(source, row))
        record = Record(
            id=f"{source.name}-{number:07d}",
            source=source.name,
            conversations=turns,
            images=(image.path,),
            upstream={"id": str(row["id"])} if row.get("id") not in (None, "") else {"row": number},
        )
        return Normalised(Record.from_json(record.to_json(), source.name), image)
    except _SkipRowError as skip:
        return skip.skipped
    except RecordError as error:
        return Skipped("bad_text", f"{error.field}: {error.fault}")


def stored_image(data: bytes) -> StoredImage:
    """The image as it came where its format is a common one, else as PNG; named by its bytes."""
    try:
        picture = open_image(data)
    except ImageError as error:
        raise _SkipRowError("undecodable_image", str(error)) from error
    width, height = picture.size
    if max(width, height) > MAX_RATIO * min(width, height):
        raise _SkipRowError("strip_beyond_ratio", f"{height}x{width}: longer side over {MAX_RATIO} times the shorter")
    with Image.open(io.BytesIO(data)) as opened:
        suffix = _KEPT.get(opened.format or "")
    if suffix is None:
        stream = io.BytesIO()
        picture.save(stream, "PNG")
        data, suffix = stream.getvalue(), "png"
    return StoredImage(data, hashlib.sha256(data).hexdigest(), suffix)


def with_placeholder(turns: tuple[Turn, ...]) -> tuple[Turn, ...]:
    """One placeholder for the one image, before the first human turn where none is."""
    count = sum(turn.value.count(IMAGE_PLACEHOLDER) for turn in turns if turn.role == "human")
    if count > 1:
        raise _SkipRowError("too_many_placeholders", f"{count} for one image")
    if count == 1:
        return turns
    first = next(place for place, turn in enumerate(turns) if turn.role == "human")
    opened = Turn("human", f"{IMAGE_PLACEHOLDER}\n{turns[first].value}")
    return (*turns[:first], opened, *turns[first + 1 :])


def _image_bytes(row: Mapping[str, Any]) -> bytes:
    image = row.get("image")
    data = image.get("bytes") if isinstance(image, Mapping) else None
    if not data:
        raise _SkipRowError("no_image")
    return bytes(data)


def _turns(source: Source, row: Mapping[str, Any]) -> tuple[Turn, ...]:
    if row.get("conversations") is not None:
        return _conversation(row["conversations"])
    if "text" in source.columns:
        return _exchange(source.prompt, row.get("text"))
    return _exchange(row.get("question") or source.prompt, _answer(row))


def _conversation(value: Any) -> tuple[Turn, ...]:
    turns: list[Turn] = []
    for turn in value:
        role, text = turn.get("from"), turn.get("value")
        if role not in ("human", "gpt"):
            raise _SkipRowError("role_refused", repr(role))
        if not isinstance(text, str):
            raise _SkipRowError("empty_turn", f"turn {len(turns)} is {type(text).__name__}")
        turns.append(Turn(role, text))
    if not turns or turns[0].role != "human":
        raise _SkipRowError("no_question")
    if turns[-1].role != "gpt" or not turns[-1].value.strip():
        raise _SkipRowError("no_answer")
    return tuple(turns)


def _exchange(question: Any, answer: Any) -> tuple[Turn, ...]:
    if not isinstance(question, str) or not question.strip():
        raise _SkipRowError("no_question")
    if not isinstance(answer, str) or not answer.strip():
        raise _SkipRowError("no_answer")
    return Turn("human", question), Turn("gpt", answer)


def _answer(row: Mapping[str, Any]) -> Any:
    """``answer``, else the commonest of ``answers`` (the earlier one of a tie)."""
    answers = row.get("answers")
    if row.get("answer") is None and isinstance(answers, list) and answers:
        texts = [one.get("answer") if isinstance(one, Mapping) else one for one in answers]
        return Counter(texts).most_common(1)[0][0]
    return row.get("answer")
