"""MMMU's thirty subjects and their six disciplines, and the figures its validation split is known to have.

The known figures are expectations, not a source: the audit compares a full run over ``MMMU/MMMU`` validation with them
and says where it differs. They were counted on the public validation split.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from odb_example.errors import UserError

DISCIPLINES: Mapping[str, tuple[str, ...]] = {
    "Art & Design": ("Art", "Art_Theory", "Design", "Music"),
    "Business": ("Accounting", "Economics", "Finance", "Manage", "Marketing"),
    "Science": ("Biology", "Chemistry", "Geography", "Math", "Physics"),
    "Health & Medicine": (
        "Basic_Medical_Science", "Clinical_Medicine", "Diagnostics_and_Laboratory_Medicine", "Pharmacy",
        "Public_Health",
    ),
    "Humanities & Social Science": ("History", "Literature", "Psychology", "Sociology"),
    "Tech & Engineering": (
        "Agriculture", "Architecture_and_Engineering", "Computer_Science", "Electronics", "Energy_and_Power",
        "Materials", "Mechanical_Engineering",
    ),
}  # fmt: skip

DISCIPLINE_OF: Mapping[str, str] = {
    subject: discipline for discipline, subjects in DISCIPLINES.items() for subject in subjects
}
SUBJECTS: tuple[str, ...] = tuple(sorted(DISCIPLINE_OF))


def choose_subjects(asked: str) -> tuple[str, ...]:
    """Subjects in the order asked for; ``all`` (or nothing) is every subject in alphabetical order.

    Raises:
        UserError: a name that is no subject, or one named twice.
    """
    names = [name.strip() for name in asked.split(",") if name.strip()]
    if not names or names == ["all"]:
        return SUBJECTS
    unknown = [name for name in names if name not in DISCIPLINE_OF]
    if unknown:
        raise UserError(f"unknown subject {unknown[0]!r}", f"subjects are {', '.join(SUBJECTS)}")
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise UserError(f"subject {doubled[0]!r} is named twice", "name each subject once")
    return tuple(names)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownSplit:
    """What a full pass over one split of one data set must count."""

    total_rows: int
    scored: int
    excluded: int
    excluded_by_subject: Mapping[str, int]
    option_status: Mapping[str, int]
    answers: Mapping[str, int]
    option_counts: Mapping[str, int]
    open_rows_with_letter: frozenset[str]
    list_answers: frozenset[str]
    duplicate_options: int
    padded_options: int
    images_in_options: tuple[int, ...]


MMMU_VALIDATION = KnownSplit(
    total_rows=900,
    scored=850,
    excluded=50,
    excluded_by_subject={
        "Architecture_and_Engineering": 1, "Basic_Medical_Science": 1, "Biology": 2, "Chemistry": 7,
        "Computer_Science": 3, "Economics": 1, "Electronics": 14, "Finance": 8, "Geography": 3, "Manage": 6,
        "Marketing": 1, "Math": 1, "Pharmacy": 1, "Psychology": 1,
    },
    option_status={
        "options_valid": 843, "too_many_options_scored_AH": 3, "missing_options_scored_all_letters": 4,
    },
    answers={"A": 244, "B": 231, "C": 199, "D": 149, "E": 25, "F": 2},
    option_counts={"2": 28, "3": 111, "4": 606, "5": 91, "6": 5, "7": 2, "9": 4},
    open_rows_with_letter=frozenset(
        f"validation_{name}" for name in ("Basic_Medical_Science_10", "Pharmacy_19", "Pharmacy_26", "Physics_21")
    ),
    list_answers=frozenset(f"validation_{name}" for name in ("Chemistry_30", "Geography_4", "Math_15")),
    duplicate_options=6,
    padded_options=14,
    images_in_options=(16, 17),
)  # fmt: skip


def known_split(dataset: str, split: str, subjects: Sequence[str], max_samples: int) -> KnownSplit | None:
    """The figures this run must meet, or None where none are known (another set, some subjects, a cap)."""
    full = dataset == "MMMU/MMMU" and split == "validation" and set(subjects) == set(SUBJECTS) and max_samples == 0
    return MMMU_VALIDATION if full else None
