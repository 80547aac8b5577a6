"""A benchmark in MMMU's own schema: thirty subjects, parquet with the Image feature, options as a Python literal.

``load_dataset(folder, subject, split="validation")`` reads it as it reads MMMU/MMMU. Rows that the protocol leaves out
are there in MMMU's numbers: open answers by subject, one nine-option row answered "I", four open rows whose answer is a
letter; so 850 of 900 rows are scored here as well. The thirty subjects share the few question types of `questions`, two
a subject.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from odb_example.data.embedded.dice import Dice
from odb_example.data.embedded.material import material
from odb_example.data.embedded.questions import QUESTIONS, ask
from odb_example.data.embedded.scenes import draw_number
from odb_example.data.pixels import png

SUBJECTS = (
    "Accounting", "Agriculture", "Architecture_and_Engineering", "Art", "Art_Theory", "Basic_Medical_Science",
    "Biology", "Chemistry", "Clinical_Medicine", "Computer_Science", "Design",
    "Diagnostics_and_Laboratory_Medicine", "Economics", "Electronics", "Energy_and_Power", "Finance", "Geography",
    "History", "Literature", "Manage", "Marketing", "Materials", "Math", "Mechanical_Engineering", "Music", "Pharmacy",
    "Physics", "Psychology", "Public_Health", "Sociology",
)  # fmt: skip
ROWS = {"dev": 5, "validation": 30}
MAX_IMAGES = 7
# Validation rows whose open answer is no letter, as many as MMMU has in each subject.
_OPEN = {
    "Architecture_and_Engineering": 1, "Basic_Medical_Science": 1, "Biology": 1, "Chemistry": 7,
    "Computer_Science": 3, "Economics": 1, "Electronics": 14, "Finance": 8, "Geography": 3, "Manage": 6,
    "Marketing": 1, "Math": 1, "Pharmacy": 1, "Psychology": 1,
}  # fmt: skip
_OPEN_LETTERS = {("Basic_Medical_Science", 10), ("Pharmacy", 19), ("Pharmacy", 26), ("Physics", 21)}
_NINE_OPTIONS = ("Biology", 7)
_LIST_ANSWERS = {"Chemistry", "Geography", "Math"}

Row = dict[str, Any]


def rows(subject: str, split: str, seed: int) -> list[Row]:
    """The rows of one subject and split, images as PNG bytes; ids are ``SPLIT_SUBJECT_NUMBER`` as in MMMU."""
    open_rows = _OPEN.get(subject, 0) if split == "validation" else 0
    return [_row(subject, split, number, seed, open_rows) for number in range(1, ROWS[split] + 1)]


def _row(subject: str, split: str, number: int, seed: int, open_rows: int) -> Row:
    dice = Dice(seed, "benchmark", subject, split, number)
    if number > ROWS[split] - open_rows:
        return _open_row(subject, split, number, dice)
    return _choice_row(subject, split, number, dice)


def _choice_row(subject: str, split: str, number: int, dice: Dice) -> Row:
    first = SUBJECTS.index(subject)
    kind = QUESTIONS[(first + number % 2) % len(QUESTIONS)]
    asked = ask(kind, material("benchmark"), dice)
    options, answer, form = list(kind.options), asked.letter, "multiple-choice"
    if split == "validation" and (subject, number) == _NINE_OPTIONS:
        options, answer = [str(value) for value in range(9)], "I"
    if split == "validation" and (subject, number) in _OPEN_LETTERS:
        options, form = [], "open"
    return _fields(
        subject, split, number, question=kind.text, options=options, answer=answer, form=form, topic=kind.name,
        images=[png(scene.pixels) for scene in asked.scenes],
    )  # fmt: skip


def _open_row(subject: str, split: str, number: int, dice: Dice) -> Row:
    scene = draw_number(material("benchmark"), dice)
    listed = subject in _LIST_ANSWERS and number == ROWS[split]
    answer = str(list(scene.facts["text"])) if listed else scene.facts["text"]
    return _fields(
        subject, split, number, question="Read the handwritten number in <image 1>.", options=[], answer=answer,
        form="open", topic="number", images=[png(scene.pixels)],
    )  # fmt: skip


def _fields(
    subject: str, split: str, number: int, *, question: str, options: list[str], answer: str, form: str, topic: str,
    images: list[bytes],
) -> Row:  # fmt: skip
    pictures = {
        f"image_{place + 1}": {"bytes": images[place], "path": None} if place < len(images) else None
        for place in range(MAX_IMAGES)
    }
    return {
        "id": f"{split}_{subject}_{number}",
        "question": question,
        "options": repr(options),
        "explanation": "",
        **pictures,
        "img_type": "['Other']",
        "answer": answer,
        "topic_difficulty": "Easy",
        "question_type": form,
        "subfield": topic,
    }


def write_benchmark(folder: Path, seed: int) -> None:
    """Write ``SUBJECT/SPLIT-00000-of-00001.parquet`` and a README that names the configs into ``folder``.

    The schema's own metadata marks the image columns as such; without it they would read as plain structs.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq
    from datasets import Features, Image, Value

    text = Value("string")
    features = Features(
        {
            **dict.fromkeys(("id", "question", "options", "explanation"), text),
            **{f"image_{place + 1}": Image() for place in range(MAX_IMAGES)},
            **dict.fromkeys(("img_type", "answer", "topic_difficulty", "question_type", "subfield"), text),
        }
    )
    for subject in SUBJECTS:
        for split in ROWS:
            file = folder / subject / f"{split}-00000-of-00001.parquet"
            file.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.Table.from_pylist(rows(subject, split, seed), features.arrow_schema), file)
    (folder / "README.md").write_text(_readme(), encoding="utf-8")


def _readme() -> str:
    configs = [
        {
            "config_name": subject,
            "data_files": [{"split": split, "path": f"{subject}/{split}-*"} for split in ROWS],
        }
        for subject in SUBJECTS
    ]
    # JSON is YAML; one line a config keeps it readable.
    lines = "\n".join(f"- {json.dumps(config)}" for config in configs)
    return f"---\nconfigs:\n{lines}\n---\n\nThe miniature benchmark, in the schema of MMMU/MMMU; made by odb-example.\n"
