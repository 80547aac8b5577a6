"""The public MM-Mix as data: which sets it is made of. An eighth source is one more entry.

Names and the first five sets are those of the public example. How many rows of the Chinese set it used, and what its
``vqa_like`` is, was never published; together they are the 29,146 records that the other five leave of its 206,526.
Without a ``vqa_like`` the Chinese set fills that place alone; with one they take half each, unless caps say otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from odb_example.errors import UserError

TOTAL = 206_526
UNPUBLISHED = 29_146
LLAVA = "lmms-lab/LLaVA-OneVision-Data"


def _columns(*names: str) -> Mapping[str, str]:
    return MappingProxyType({name: name for name in names})


CONVERSATIONS = _columns("id", "image", "conversations")
TEXT = _columns("image", "text")
ANY = _columns("id", "image", "conversations", "question", "answer", "answers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One source of the recipe.

    Attributes:
        hub_id: data set on the Hub; a local copy is looked for under the same name.
        revision: branch, tag or commit; a branch is resolved to its commit when the build starts, and recorded.
        columns: our names of the columns that are read, and the set's own. What is among them decides how a row is
            understood: ``conversations``, a ``text`` to be read off the image, or ``question`` and ``answer``.
        prompt: the human turn where the row has none of its own.
        cap: records taken, None for all; a capped source is shuffled by the seed first.
        target: records the public example has, 0 where unknown.
    """

    name: str
    hub_id: str
    config: str | None = None
    split: str = "train"
    revision: str = "main"
    columns: Mapping[str, str] = field(default_factory=lambda: CONVERSATIONS)
    prompt: str = ""
    cap: int | None = None
    target: int = 0
    licence: str
    notes: str = ""


_LLAVA_LICENCE = "apache-2.0 as a collection; each subset keeps its own terms"
SOURCES: tuple[Source, ...] = (
    Source(name="aokvqa", hub_id=LLAVA, config="aokvqa(cauldron,llava_format)", target=16_534, licence=_LLAVA_LICENCE),
    Source(name="iiit5k", hub_id=LLAVA, config="iiit5k", target=1_990, licence=_LLAVA_LICENCE),
    Source(name="orand_car_a", hub_id=LLAVA, config="orand_car_a", target=1_999, licence=_LLAVA_LICENCE),
    Source(
        name="image_textualization", hub_id=LLAVA, config="image_textualization(filtered)", target=99_573,
        licence=_LLAVA_LICENCE,
    ),
    Source(name="sharegpt4o", hub_id=LLAVA, config="sharegpt4o", target=57_284, licence=_LLAVA_LICENCE),
    Source(
        name="chinese_text_recognition", hub_id="priyank-m/chinese_text_recognition", columns=TEXT,
        prompt="图中的文字是什么？", licence="not stated", notes="how many rows the public example used is unknown",
    ),
)  # fmt: skip


def chosen_sources(
    names: str, *, vqa_like: str | None, caps: Mapping[str, int], revisions: Mapping[str, str]
) -> tuple[Source, ...]:
    """The sources of one build, in the recipe's order.

    Args:
        names: comma-separated, or ``all``.
        vqa_like: ``HUB_ID``, ``FOLDER`` or either with ``#CONFIG``.

    Raises:
        UserError: a name that is no source, in ``names``, ``caps`` or ``revisions``, or a cap below 1.
    """
    known = _all_sources(vqa_like)
    asked = [name.strip() for name in names.split(",") if name.strip()]
    wanted = list(known) if asked in ([], ["all"]) else asked
    for name in (*wanted, *caps, *revisions):
        if name == "vqa_like" and name not in known:
            raise UserError("source vqa_like has no public origin", "name one with --vqa-like HUB_ID or FOLDER")
        if name not in known:
            raise UserError(f"unknown source {name!r}", f"sources are {', '.join(known)}")
    for name, cap in caps.items():
        if cap < 1:
            raise UserError(f"cap {cap} of source {name} leaves nothing", "leave the source out with --sources")
    return tuple(
        replace(source, cap=caps.get(name, source.cap), revision=revisions.get(name, source.revision))
        for name, source in known.items()
        if name in wanted
    )


def _all_sources(vqa_like: str | None) -> dict[str, Source]:
    known = {source.name: source for source in SOURCES}
    chinese = known["chinese_text_recognition"]
    share = UNPUBLISHED // 2 if vqa_like else UNPUBLISHED
    known[chinese.name] = replace(chinese, cap=share, target=share)
    if vqa_like:
        hub_id, _, config = vqa_like.partition("#")
        rest = UNPUBLISHED - share
        known["vqa_like"] = Source(
            name="vqa_like", hub_id=hub_id, config=config or None, columns=ANY, cap=rest, target=rest,
            licence="that of the set named", notes="named by the user",
        )  # fmt: skip
    return known
