"""One self-contained HTML page from a `Comparison`: no script, no request, under 3 MB, light, dark and printed.

Records are untrusted text: Jinja2 escapes everything, `words.readable` makes control characters visible, and the
page's own policy forbids scripts and requests. Only `Chart.svg`, which we draw, is put in as markup.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from odb_example.report.charts import series_colour
from odb_example.report.comparable import Check
from odb_example.report.compare import Comparison, Pair
from odb_example.report.figures import PROTOCOL_WARNING, Figure, Flip
from odb_example.report.runs import Run
from odb_example.report.sections import sections
from odb_example.report.thumbnails import thumbnails
from odb_example.report.words import flat, number, readable, several, signed

MOST_FLIPS, MOST_PICTURED_BYTES, LONG_TEXT = 60, 1_000_000, 500
LABELS = {
    "samples_per_second": "Throughput",
    "tokens_per_second": "Token throughput",
    "train_runtime_seconds": "Training time",
    "emitted_samples": "Samples trained on",
    "steps": "Optimizer steps",
    "samples_per_step": "Samples in a step",
    "padding_ratio": "Padding",
    "fill": "Fill of the token budget",
    "peak_padded_tokens": "Largest padded batch",
    "train_loss": "Training loss",
    "validation_loss": "Validation loss",
    "token_weighted_validation_loss": "Validation loss, token-weighted",
    "mmmu_accuracy": "MMMU-MC accuracy",
    "mmmu_correct": "MMMU-MC correct",
    "mmmu_total": "MMMU-MC rows",
    "mmmu_chance": "Chance on these rows",
    "mmmu_always_a": "Always A on these rows",
    "throughput_ratio": "Throughput ratio",
    "token_throughput_ratio": "Token throughput ratio",
    "runtime_ratio": "Training-time ratio",
    "validation_loss_difference": "Validation-loss difference",
    "token_weighted_validation_loss_difference": "Token-weighted validation-loss difference",
    "mmmu_difference": "MMMU-MC difference",
}
DIFFERENCES = {"validation_loss_difference", "token_weighted_validation_loss_difference", "mmmu_difference"}
LOADERS_OWN = (
    "loader", "odb_integration", "output_dir", "token_budget", "buffer_size", "fixed_batch_size", "prefetch_factor",
    "odb_prefetch_factor", "standard_prefetch_factor", "join", "no_warmup", "group_order_flip", "max_patches",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Difference:
    """One setting that is not the same in all runs; ``expected`` where the loaders must differ in it."""

    name: str
    values: tuple[str, ...]
    expected: bool


def render(comparison: Comparison) -> str:
    """The page as text."""
    environment = Environment(
        loader=PackageLoader("odb_example.report"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {
        "number": number, "signed": signed, "readable": readable, "flat": flat, "several": several,
        "figure": show_figure, "interval": show_interval, "label": lambda name: LABELS.get(name, name),
    }  # fmt: skip
    return environment.get_template("page.html").render(
        comparison=comparison,
        runs=comparison.runs,
        verdict=comparison.verdict,
        headlines=[headline(pair) for pair in comparison.pairs] or [lone_headline(comparison)],
        names=[name for name in LABELS if any(name in comparison.figures[run.name] for run in comparison.columns)],
        sections=sections(comparison),
        flips=[shown_flips(pair) for pair in comparison.pairs if pair.other.predictions and pair.baseline.predictions],
        audits=[(run, audit_summary(run), audit_rows(run)) for run in comparison.runs if "audit" in run.documents],
        differences=settings_that_differ(comparison.runs),
        provenance=[(run, provenance(run)) for run in comparison.runs],
        commands=commands(comparison),
        check_value=check_value,
        series_of=lambda run: series_colour(next(n for n, shown in enumerate(comparison.runs) if shown is run)),
        probabilities=probabilities,
        differences_named=DIFFERENCES,
        warning=PROTOCOL_WARNING,
        svg=Markup,
        long=LONG_TEXT,
    )


def headline(pair: Pair) -> str:
    """The sentence people quote: three differences, each with its interval, and what may not be quoted."""
    parts, fallen = [], []
    for name, words in (
        ("throughput_ratio", _speed), ("validation_loss_difference", _loss), ("mmmu_difference", _score),
    ):  # fmt: skip
        figure = pair.figures.get(name)
        if figure is None:
            continue
        status = pair.verdict.figures[figure.about].status
        if status == "not comparable":
            fallen.append(figure.about)
        else:
            parts.append(words(figure) + (" [comparability unknown]" if status == "unknown" else ""))
    sentence = f"{pair.other.name} against {pair.baseline.name}: " + (
        "; ".join(parts) or "no figure that may be compared"
    )
    if fallen:
        sentence += f". Not comparable: {several(fallen)}"
    return sentence + "."


def lone_headline(comparison: Comparison) -> str:
    """The same of one run: its own figures."""
    run = comparison.runs[0]
    figures = comparison.figures[run.name]
    parts = [
        f"{LABELS[name].lower() if name != 'mmmu_accuracy' else LABELS[name]} {show_figure(figures[name])}"
        for name in ("samples_per_second", "validation_loss", "mmmu_accuracy")
        if name in figures
    ]
    return f"{run.name}: " + ("; ".join(parts) or "no figures yet") + "."


def _speed(figure: Figure) -> str:
    return f"{number(figure.value, 3)}× the emitted samples per second{_within(figure, '×')}"


def _loss(figure: Figure) -> str:
    return f"validation loss {signed(figure.value)} nats{_within(figure, '', signs=True)}"


def _score(figure: Figure) -> str:
    p_value = f", McNemar p = {number(figure.p_value, 2)}" if figure.p_value is not None else ""
    return f"MMMU-MC {signed(figure.value, 3)} points{_within(figure, '', signs=True)}{p_value}"


def _within(figure: Figure, unit: str, *, signs: bool = False) -> str:
    if figure.low is None or figure.high is None:
        return " (no interval)"
    show = signed if signs else number
    return f" (95% {show(figure.low, 3)}{unit} to {show(figure.high, 3)}{unit})"


def show_figure(figure: Figure, name: str = "") -> str:
    """Value with its unit."""
    if figure.unit.startswith("share of"):
        return f"{number(100 * figure.value, 3)}% of {figure.unit.removeprefix('share of ')}"
    value = signed(figure.value) if name in DIFFERENCES else number(figure.value)
    return f"{value}{'' if figure.unit in '×%' else ' '}{figure.unit}"


def show_interval(figure: Figure, name: str = "") -> str:
    """The interval alone, or nothing."""
    if figure.low is None or figure.high is None:
        return ""
    show = signed if name in DIFFERENCES else number
    return f"{show(figure.low)} to {show(figure.high)}"


def check_value(check: Check, run: Run) -> tuple[str, str]:
    """What a run says to a check, shortened, and where it says it."""
    fact = check.values.get(run.name)
    if fact is None:
        return ("not stated", "") if run.name in check.values else ("not applicable", "")
    value = fact.value
    if check.name == "data fingerprint":
        value = f"{str(value)[:16]}…"
    if isinstance(value, Mapping):
        value = ", ".join(f"{name} {_compact(entry)}" for name, entry in value.items() if entry not in (None, {}, []))
    return readable(_compact(value)), fact.source


def _compact(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        shown = ", ".join(map(str, value[:4]))
        return f"[{shown}{', …' if len(value) > 4 else ''}]"
    return str(value)


@dataclass(frozen=True, slots=True)
class ShownFlips:
    """The flips of a pair with the pictures that could be had; ``left_out`` are those beyond what a page can hold."""

    pair: Pair
    rows: tuple[tuple[Flip, tuple[str, ...]], ...]
    left_out: int
    without_pictures: bool


def shown_flips(pair: Pair) -> ShownFlips:
    """Gained and lost rows first, then those that were wrong both times."""
    order = {"lost": 0, "gained": 1, "changed": 2}
    ordered = sorted(pair.flips, key=lambda flip: order[flip.change])[:MOST_FLIPS]
    keys = {(flip.baseline.subject, flip.baseline.sample_id) for flip in ordered if flip.baseline.num_images}
    pictures = thumbnails(pair.other, keys) or thumbnails(pair.baseline, keys)
    rows, spent = [], 0
    for flip in ordered:
        uris = pictures.get((flip.baseline.subject, flip.baseline.sample_id), ())
        spent += sum(map(len, uris))
        rows.append((flip, uris if spent <= MOST_PICTURED_BYTES else ()))
    return ShownFlips(pair, tuple(rows), len(pair.flips) - len(ordered), bool(keys) and not pictures)


@dataclass(frozen=True, slots=True)
class OptionShares:
    """One option of a flipped question and what each run gives it, in per cent of the valid letters."""

    letter: str
    text: str
    truth: bool
    baseline: float
    other: float


def probabilities(flip: Flip) -> list[OptionShares]:
    """Softmax over the valid letters of either run, in option order."""
    sides = [_shares(row.scores) for row in (flip.baseline, flip.other)]
    options = flip.baseline.options
    return [
        OptionShares(
            letter, options[i] if i < len(options) else "", letter == flip.baseline.truth,
            sides[0].get(letter, 0.0), sides[1].get(letter, 0.0),
        )
        for i, letter in enumerate(flip.baseline.letters)
    ]  # fmt: skip


def _shares(scores: Mapping[str, float]) -> dict[str, float]:
    highest = max(scores.values())
    weights = {letter: math.exp(score - highest) for letter, score in scores.items()}
    whole = sum(weights.values())
    return {letter: round(100 * weight / whole, 2) for letter, weight in weights.items()}


def settings_that_differ(runs: Sequence[Run]) -> list[Difference]:
    """Every setting that is not the same in all runs that kept theirs."""
    kept = [(run, run.documents["settings"].value) for run in runs if "settings" in run.documents]
    if len(kept) < 2:
        return []
    names = sorted({name for _, settings in kept for name in settings})
    return [
        Difference(name, tuple(str(settings.get(name, "—")) for _, settings in kept), name in LOADERS_OWN)
        for name in names
        if len({str(settings.get(name)) for _, settings in kept}) > 1
    ]


def audit_summary(run: Run) -> list[tuple[str, str]]:
    """What a reader must know before trusting the score, in words; what the audit does not hold is left out."""
    audit = run.documents["audit"].value
    margins, again = audit.get("margins") or {}, audit.get("batch_invariance") or {}
    doubles, letters = audit.get("duplicates") or {}, audit.get("candidate_token_info") or {}
    known = audit.get("known_figures")
    rows = []
    if letters:
        single = sum(len(info.get("token_ids") or ()) == 1 for info in letters.values())
        rows.append(("letters that are one token", f"{single} of {len(letters)}"))
    if again:
        words = f"{again['rows']} rows again, alone: largest difference {number(again['largest_difference'], 2)}"
        rows.append(("batch invariance", f"{words}, {len(again['flips'])} flips"))
    if margins:
        noise = number(margins["numeric_noise"], 2)
        rows.append(("near-ties", f"{margins['near_ties']} rows lead by no more than the numeric noise ({noise})"))
        rows.append(("median lead of the best letter", f"{number(margins['p50'], 3)} nats"))
    if known:
        broken = [name for name, entry in known.items() if isinstance(entry, Mapping) and not entry.get("holds", True)]
        rows.append(("known figures of the split", f"not as known: {several(broken)}" if broken else "all as known"))
    if doubles:
        same = len(doubles["same_prompt_and_images"])
        rows.append(("duplicates", f"{len(doubles['sample_ids'])} ids twice, {same} groups of equal prompt and images"))
    counts = (("oddities", audit.get("oddities")), ("option status", audit.get("option_status_counts")),
              ("predictions", audit.get("prediction_counts")), ("answers", audit.get("answer_counts")),
              ("excluded", run.value("benchmark.excluded_by_reason")))  # fmt: skip
    for name, entry in counts:
        if isinstance(entry, Mapping) and entry:
            parts = [f"{key} {v.get('rows') if isinstance(v, Mapping) else v}" for key, v in entry.items()]
            rows.append((name, ", ".join(parts)))
    return rows


def audit_rows(run: Run) -> list[tuple[str, str]]:
    """All of the score's audit, flattened to ``field.field: value``; long lists are counted."""
    return list(_leaves(run.documents["audit"].value, ""))


def _leaves(value: Any, name: str) -> Any:
    if isinstance(value, Mapping):
        for key, entry in list(value.items())[:200]:
            yield from _leaves(entry, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list) and any(isinstance(entry, (Mapping, list)) for entry in value):
        yield name, f"{len(value)} entries"
    else:
        yield name, _compact(value)


def provenance(run: Run) -> list[tuple[str, str, str]]:
    """Versions, hardware and origin of a run: name, value, source."""
    places = {
        "model": ("summary.model", "identity.model", "settings.model", "record.model"),
        "data": ("summary.data.path", "settings.data", "record.data.recipe"),
        "data fingerprint": ("summary.data_fingerprint", "summary.data.fingerprint", "identity.data_fingerprint"),
        "versions": ("summary.versions", "summary.environment.versions", "record.package"),
        "hardware": ("summary.hardware", "summary.environment", "record.hardware"),
        "world size": ("summary.world_size",),
        "precision": ("summary.precision", "summary.config.precision"),
        "objective": ("summary.objective", "identity.objective"),
        "evaluated checkpoint": ("validation.checkpoint",),
        "scored checkpoint": ("benchmark.checkpoint",),
        "benchmark": ("benchmark.dataset",),
        "protocol": ("benchmark.protocol",),
        "date": ("summary.date", "summary.finished_at", "record.date"),
    }  # fmt: skip
    rows = []
    for name, where in places.items():
        fact = run.find(*where)
        if fact:
            value = fact.value
            if isinstance(value, Mapping):
                value = ", ".join(f"{key} {_compact(entry)}" for key, entry in value.items() if entry is not None)
            rows.append((name, readable(_compact(value)), fact.source))
    return rows


def commands(comparison: Comparison) -> list[str]:
    """What makes these files again, from the settings each run kept."""
    lines = []
    for run in comparison.runs:
        if "settings" in run.documents:
            integration = run.value("settings.odb_integration") or "enable"
            mode = f"odb-{integration}" if run.loader == "odb" else "standard"
            loader = f" --loader {shlex.quote(run.loader)}" if run.loader not in ("odb", "standard") else ""
            lines.append(f"./run.sh {mode}{loader} --settings {shlex.quote(str(run.path / 'run_settings.yaml'))}")
        for part, command in (("validation", "eval-valloss"), ("benchmark", "benchmark")):
            checkpoint = run.value(f"{part}.checkpoint")
            if checkpoint:
                lines.append(f"./run.sh {command} --checkpoint {shlex.quote(str(checkpoint))}")
    paths = " ".join(dict.fromkeys(shlex.quote(str(run.path)) for run in comparison.runs))
    return [*(readable(line) for line in lines), f"./run.sh compare {paths}"]
