"""What must hold of a benchmark's files: within a row, between rows and totals, and against the digests of the run.

In: the files as read. Out: findings, each naming file, row and field. `odb_example.evaluate.audit` runs them all.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from odb_example.evaluate.audit_files import Finding, RunFiles
from odb_example.evaluate.folders import AUDIT, EXCLUDED, PREDICTIONS, RESULTS
from odb_example.evaluate.mmmu import (
    INCOMPLETE_REASONS,
    LETTERS,
    NON_LETTER_ANSWER,
    build_prompt,
    choose,
    is_letter,
    normalize_answer,
    option_status,
    prompt_digest,
    protocol_name,
)
from odb_example.evaluate.score_audit import (
    DIGEST_FIELD,
    audit_digest,
    file_digest,
    letter_bias,
    row_digest,
)
from odb_example.evaluate.scores import Row, counted
from odb_example.evaluate.subjects import DISCIPLINE_OF, known_split

_MMMU_ID = re.compile(r"(?:dev|validation|test)_(?P<subject>\w+)_\d+")
_CLOSE = 1e-9


def check_prediction(row: Row, number: int, files: RunFiles) -> Iterator[Finding]:
    """Everything about one scored row that follows from the row itself and the protocol."""
    where = f"{PREDICTIONS} line {number} ({row['sample_id']})"
    yield from _check_common(row, where, files)
    category = DISCIPLINE_OF.get(row["subject"], row["subject"])
    if row["category"] != category:
        yield Finding("category_differs", where, f"{row['category']!r}, subject {row['subject']} is {category!r}")
    if not is_letter(row["ground_truth"]):
        yield Finding("answer_not_a_letter", where, f"ground_truth {row['ground_truth']!r} is none of A-H")
        return
    status, valid = option_status(len(row["options"]), row["ground_truth"])
    if row["option_status"] != status:
        yield Finding("status_differs", where, f"option_status {row['option_status']!r}, its options make {status!r}")
    if "".join(row["valid_candidate_letters"]) != valid:
        yield Finding("valid_letters_differ", where, f"{row['valid_candidate_letters']}, its options make {valid!r}")
    scores = row["candidate_scores"]
    if list(scores) != list(LETTERS):
        yield Finding("scores_incomplete", where, f"candidate_scores holds {list(scores)}, A-H are needed")
        return
    if not all(math.isfinite(value) and value <= 0 for value in scores.values()) or (
        sum(math.exp(value) for value in scores.values()) > 1 + 1e-3
    ):
        yield Finding("score_impossible", where, "candidate_scores are no log-probabilities of one distribution")
    if row["choice_scores"] != {letter: scores[letter] for letter in valid}:
        yield Finding("choice_scores_differ", where, "choice_scores are not candidate_scores of the valid letters")
    prediction, margin = choose(scores, valid)
    if row["prediction"] != prediction:
        yield Finding("prediction_is_not_best", where, f"{row['prediction']!r}, its scores make {prediction!r}")
    if not _same_number(row["score_margin"], margin):
        yield Finding("margin_differs", where, f"score_margin {row['score_margin']}, its scores make {margin}")
    if row["correct"] != (row["prediction"] == row["ground_truth"]):
        yield Finding("correct_flag_differs", where, f"correct is {row['correct']}, {row['prediction']!r} is predicted")
    variant = _variant(row["protocol"])
    digest = prompt_digest(build_prompt(row["question"], row["options"], variant)) if variant else None
    if "prompt_sha256" in row and digest != row["prompt_sha256"]:
        yield Finding("prompt_differs", where, "question, options or protocol are not those of the prompt scored")


def check_excluded(row: Row, number: int, files: RunFiles) -> Iterator[Finding]:
    """Whether a row was left out for a reason that holds."""
    where = f"{EXCLUDED} line {number} ({row['sample_id']})"
    yield from _check_common(row, where, files)
    if "answer_raw" in row and row["normalized_answer"] != normalize_answer(row["answer_raw"]):
        yield Finding("normalized_answer_differs", where, f"{row['normalized_answer']!r} from {row['answer_raw']!r}")
    if row["reason"] not in {NON_LETTER_ANSWER, *INCOMPLETE_REASONS}:
        yield Finding("reason_unknown", where, f"reason {row['reason']!r} is none of the protocol's")
    elif (row["reason"] == NON_LETTER_ANSWER) == is_letter(row["normalized_answer"]):
        yield Finding("reason_does_not_hold", where, f"{row['reason']} with answer {row['normalized_answer']!r}")


def check_places(files: RunFiles) -> Iterator[Finding]:
    """Each row once, in one of the two files."""
    scored = Counter((row["subject"], row["sample_id"]) for row in files.predictions)
    left_out = Counter((row["subject"], row["sample_id"]) for row in files.excluded)
    for name, rows in ((PREDICTIONS, scored), (EXCLUDED, left_out)):
        for (_, sample_id), times in rows.items():
            if times > 1:
                yield Finding("row_doubled", f"{name} ({sample_id})", f"stands there {times} times")
    for _, sample_id in scored.keys() & left_out.keys():
        yield Finding("row_scored_and_excluded", f"{PREDICTIONS} ({sample_id})", f"stands in {EXCLUDED} too")


def check_results(files: RunFiles, recomputed: Mapping[str, Any]) -> Iterator[Finding]:
    """Every counted field of the results against the rows."""
    for name, value in recomputed.items():
        if name in files.results and files.results[name] != value:
            for place, there, should in _differences(name, files.results[name], value):
                yield Finding("total_differs", f"{RESULTS}, field `{place}`", f"{there}, the rows make {should}")
    if not files.results or not files.predictions:
        return
    seen = list(dict.fromkeys(row["subject"] for row in [*files.predictions, *files.excluded]))
    foreign = [subject for subject in seen if subject not in (files.results.get("subjects") or seen)]
    for subject in foreign:
        yield Finding("subject_not_asked_for", f"{RESULTS}, field `subjects`", f"rows of {subject} were scored")


def check_audit(files: RunFiles) -> Iterator[Finding]:
    """``score_audit.json`` against the rows, the results, and the known figures of the public split."""
    audit = files.audit
    letters = audit.get("candidate_token_info", {})
    ids = [info.get("first_token_id") for info in letters.values()]
    if letters and (list(letters) != list(LETTERS) or len(set(ids)) < len(ids)):
        yield Finding("letters_share_a_token", f"{AUDIT}, field `candidate_token_info`", f"first tokens are {ids}")
    for name in ("protocol", "split", "checkpoint", "dataset", "subjects"):
        if name in audit and name in files.results and audit[name] != files.results[name]:
            words = f"{audit[name]!r} there, {files.results[name]!r} in {RESULTS}"
            yield Finding("audit_differs", f"{AUDIT}, field `{name}`", words)
    rows = files.predictions
    found = {
        "option_status_counts": counted(row["option_status"] for row in rows),
        "prediction_counts": counted(row["prediction"] for row in rows),
        "answer_counts": counted(row["ground_truth"] for row in rows),
        "letter_bias": letter_bias(rows) if _all_letters_scored(rows) else None,
    }
    for name, value in found.items():
        if name in audit and value is not None and not _close(audit[name], value):
            yield Finding("audit_differs", f"{AUDIT}, field `{name}`", "not what the rows make")
    known = known_split(
        str(files.results.get("dataset")), str(files.results.get("split")), files.results.get("subjects") or (),
        audit.get("max_samples", 0),
    )  # fmt: skip
    if known:
        for name, expected, actual in (
            ("scored rows", known.scored, len(rows)),
            ("excluded rows", known.excluded, len(files.excluded)),
        ):
            if expected != actual:
                yield Finding("known_figure_differs", str(files.folder), f"{actual} {name}, the split has {expected}")


def check_register(files: RunFiles) -> Iterator[Finding]:
    """Rows against the digests taken when they were written: dropped, added, edited, out of order."""
    for name, rows, register in (
        (PREDICTIONS, files.predictions, files.audit.get("rows")),
        (EXCLUDED, files.excluded, files.audit.get("excluded_rows")),
    ):
        if register is None:
            continue
        written = {(entry["subject"], entry["sample_id"]): entry["sha256"] for entry in register}
        there = {(row["subject"], row["sample_id"]): row_digest(row) for row in rows}
        for key in written.keys() - there.keys():
            yield Finding("row_missing", f"{name} ({key[1]})", f"subject {key[0]}: was written and is not there")
        for key in there.keys() - written.keys():
            yield Finding("row_added", f"{name} ({key[1]})", f"subject {key[0]}: was not written by the run")
        for key in written.keys() & there.keys():
            if written[key] != there[key]:
                yield Finding("row_edited", f"{name} ({key[1]})", "is not the row that was written")
        common = [key for key in written if key in there]
        if [key for key in there if key in written] != common:
            yield Finding("rows_reordered", name, "rows stand in another order than they were written in")


def check_files(files: RunFiles) -> Iterator[Finding]:
    """Files against the digests taken when they were written."""
    digest = files.audit.get(DIGEST_FIELD)
    if digest is not None and digest != audit_digest(files.audit):
        yield Finding("audit_edited", AUDIT, "is not the audit that was written")
    for name, written in (files.audit.get("files") or {}).items():
        path = files.folder / name
        if not path.is_file():
            continue  # already a finding of reading
        now = file_digest(path)
        if now["bytes"] < written["bytes"] and not path.read_bytes().endswith(b"\n"):
            yield Finding("file_truncated", name, f"ends after {now['bytes']} of {written['bytes']} bytes")
        elif now != written:
            yield Finding("file_edited", name, f"{now['lines']} lines, not the {written['lines']} that were written")


def _check_common(row: Row, where: str, files: RunFiles) -> Iterator[Finding]:
    for name in ("protocol", "split"):
        expected = files.results.get(name)
        if expected is not None and row[name] != expected:
            yield Finding(f"{name}_differs", where, f"{row[name]!r}, the results say {expected!r}")
    named = _MMMU_ID.fullmatch(row["sample_id"])
    if named and named["subject"] in DISCIPLINE_OF and named["subject"] != row["subject"]:
        yield Finding("subject_differs", where, f"{row['subject']!r}, its id says {named['subject']!r}")


def _all_letters_scored(rows: Sequence[Row]) -> bool:
    return all(list(row["candidate_scores"]) == list(LETTERS) for row in rows)


def _variant(protocol: str) -> Any:
    return next((name for name in ("v1", "mmmu", "lmms-eval") if protocol_name(name) == protocol), None)


def _same_number(there: float | None, should: float | None) -> bool:
    if there is None or should is None:
        return there is should
    return math.isclose(there, should, rel_tol=_CLOSE, abs_tol=_CLOSE)


def _close(there: Any, should: Any) -> bool:
    if isinstance(should, Mapping):
        return (
            isinstance(there, Mapping)
            and there.keys() == should.keys()
            and all(_close(there[name], value) for name, value in should.items())
        )
    if isinstance(should, float):
        return isinstance(there, (int, float)) and _same_number(there, should)
    return bool(there == should)


def _differences(place: str, there: Any, should: Any) -> Iterator[tuple[str, Any, Any]]:
    """Leaves in which two JSON values differ, with the path to each."""
    if isinstance(there, Mapping) and isinstance(should, Mapping):
        for name in sorted({*there, *should}):
            if there.get(name) != should.get(name):
                yield from _differences(f"{place}.{name}", there.get(name), should.get(name))
    else:
        yield place, there, should
