"""One record of the mix: turns of a conversation and the images its human turns speak of.

`Record.from_json` is the only way from a parsed JSON value to a `Record`, so a `Record` is always sound: right types,
known roles, text that can be encoded, image paths that stay inside the store, one ``<image>`` per image.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast, get_args

from odb_example.errors import UserError

IMAGE_PLACEHOLDER = "<image>"
Role = Literal["human", "gpt"]
_ROLES: tuple[str, ...] = get_args(Role)


class RecordError(UserError):
    """A record that breaks the format; ``record_id`` (empty where there is none) and ``field`` say where."""

    def __init__(self, where: str, record_id: str, field: str, problem: str, mend: str = "") -> None:
        self.record_id, self.field, self.fault = record_id, field, problem
        named = f"record {record_id!r}" if record_id else "record without id"
        super().__init__(f"{where}: {named}, field `{field}`: {problem}", mend)


@dataclass(frozen=True, slots=True)
class Turn:
    """What one side said. `<image>` in a human turn stands for an image, if the record has any."""

    role: Role
    value: str


@dataclass(frozen=True, slots=True)
class Record:
    """One training example as the store keeps it.

    Attributes:
        id: unique in its store.
        source: the data set it came from.
        images: POSIX paths relative to the store's folder, in the order of their placeholders.
        upstream: what the source said about it, kept for people; never read by training.
    """

    id: str
    source: str
    conversations: tuple[Turn, ...]
    images: tuple[str, ...] = ()
    upstream: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_json(cls, value: object, where: str = "record") -> Record:
        """Check a parsed JSON value and make a record of it.

        Args:
            where: file and line, for the error's first words.

        Raises:
            RecordError: naming record and field.
        """
        if not isinstance(value, dict):
            raise RecordError(where, "", "(whole)", f"a JSON object is needed, got {_kind(value)}")
        known = value.get("id")
        record_id = known if isinstance(known, str) else ""
        reader = _Reader(value, where, record_id)
        record = cls(
            id=reader.text("id"),
            source=reader.text("source"),
            conversations=reader.turns(),
            images=reader.images(),
            upstream=reader.mapping("upstream"),
        )
        problem = placeholder_problem(record.conversations, len(record.images))
        if problem:
            raise RecordError(where, record_id, "images", problem)
        return record

    def to_json(self) -> dict[str, Any]:
        """The JSON object `from_json` reads back as an equal record."""
        return {
            "id": self.id,
            "source": self.source,
            "conversations": [{"from": turn.role, "value": turn.value} for turn in self.conversations],
            "images": list(self.images),
            "upstream": dict(self.upstream),
        }


def placeholder_problem(turns: Sequence[Turn], images: int) -> str:
    """What is wrong between placeholders and images, or nothing.

    A record without images may write `<image>` as ordinary text, and answers always may.
    """
    if images == 0:
        return ""
    found = sum(turn.value.count(IMAGE_PLACEHOLDER) for turn in turns if turn.role == "human")
    return "" if found == images else f"{images} images but {found} {IMAGE_PLACEHOLDER} in the human turns"


def path_problem(path: str) -> str:
    """What is wrong with an image path, or nothing: relative, POSIX, and never leaving the folder."""
    if not path or "\0" in path:
        return f"{path!r} names no file"
    if "\\" in path or path.startswith("/") or path[1:2] == ":":
        return f"{path!r} is not a relative path with forward slashes"
    if ".." in path.split("/"):
        return f"{path!r} leaves the store's folder"
    return ""


@dataclass(frozen=True, slots=True)
class _Reader:
    value: dict[str, Any]
    where: str
    record_id: str

    def error(self, field: str, problem: str) -> RecordError:
        return RecordError(self.where, self.record_id, field, problem)

    def get(self, name: str, kind: type, words: str) -> Any:
        if name not in self.value:
            raise self.error(name, "is missing")
        found = self.value[name]
        if not isinstance(found, kind):
            raise self.error(name, f"{words} is needed, got {_kind(found)}")
        return found

    def text(self, name: str) -> str:
        found = self.get(name, str, "a string")
        if not found:
            raise self.error(name, "is empty")
        return self.encodable(name, found)

    def encodable(self, field: str, text: str) -> str:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise self.error(field, f"half a surrogate pair at character {error.start}") from error
        return text

    def turns(self) -> tuple[Turn, ...]:
        found = self.get("conversations", list, "a list of turns")
        if not found:
            raise self.error("conversations", "is empty")
        return tuple(self.turn(f"conversations[{number}]", turn) for number, turn in enumerate(found))

    def turn(self, field: str, turn: object) -> Turn:
        if not isinstance(turn, dict):
            raise self.error(field, f"an object with `from` and `value` is needed, got {_kind(turn)}")
        role, value = turn.get("from"), turn.get("value")
        if role not in _ROLES:
            raise self.error(f"{field}.from", f"human or gpt is needed, got {role!r}")
        if not isinstance(value, str):
            raise self.error(f"{field}.value", f"a string is needed, got {_kind(value)}")
        return Turn(cast(Role, role), self.encodable(f"{field}.value", value))

    def images(self) -> tuple[str, ...]:
        found = self.get("images", list, "a list of paths")
        for number, path in enumerate(found):
            field = f"images[{number}]"
            if not isinstance(path, str):
                raise self.error(field, f"a path is needed, got {_kind(path)}")
            problem = path_problem(self.encodable(field, path))
            if problem:
                raise self.error(field, problem)
        return tuple(found)

    def mapping(self, name: str) -> Mapping[str, Any]:
        if name not in self.value:
            return {}
        found: dict[str, Any] = self.get(name, dict, "an object")
        return found


def _kind(value: object) -> str:
    return {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}.get(
        type(value), "a number"
    )
