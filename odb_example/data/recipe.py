"""The public MM-Mix, built from its seven sources into one store.

Rows stream in, images are checked in threads (decoders release the interpreter lock), records are written in the row
order of the source, so that neither the number of threads nor a stop in between changes the result.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from odb_example.data import hub
from odb_example.data.build_report import BuildReport
from odb_example.data.normalise import Normalised, Skipped, normalise
from odb_example.data.sources import TOTAL, Source, chosen_sources
from odb_example.data.store_writer import StoreWriter, standing
from odb_example.progress import Progress
from odb_example.settings import Settings

VERSION = 1
A = TypeVar("A")
B = TypeVar("B")


def build_public(settings: Settings) -> BuildReport:
    """Build the public mix at ``settings.data``.

    Raises:
        UserError: unknown sources, a set that cannot be read, or something else at the place.
    """
    sources = chosen_sources(
        settings.sources, vqa_like=settings.vqa_like, caps=settings.caps, revisions=settings.revisions
    )
    folders = {source.name: hub.local_folder(source, settings.recipe_root) for source in sources}
    revisions = {source.name: hub.resolved_revision(source, folders[source.name]) for source in sources}
    plan = {
        "recipe": "mm-mix-public",
        "version": VERSION,
        "seed": settings.seed,
        "target": TOTAL,
        "recipe_sources": [_entry(source, revisions[source.name]) for source in sources],
    }
    path = Path(settings.data)
    targets = {source.name: source.target for source in sources if source.target}
    writer = StoreWriter(path, sources=[source.name for source in sources], plan=plan)
    found = standing(path, writer.plan, overwrite=settings.overwrite)
    if found:
        return BuildReport.of(path, found, targets=targets, nothing_to_do=True)
    with writer:
        for source in sources:
            if source.name not in writer.finished:
                stream = hub.rows(
                    source, folder=folders[source.name], revision=revisions[source.name], seed=settings.seed,
                    cache_dir=settings.cache_dir,
                )  # fmt: skip
                _write_source(writer, source, stream, settings.build_workers)
        return BuildReport.of(path, writer.finish(image_identity="bytes"), targets=targets)


def _entry(source: Source, revision: str) -> dict[str, Any]:
    return {
        "name": source.name,
        "hub_id": source.hub_id,
        "config": source.config,
        "split": source.split,
        "revision": revision,
        "cap": source.cap,
        "licence": source.licence,
    }


def _write_source(writer: StoreWriter, source: Source, stream: Iterable[hub.Row], workers: int) -> None:
    def made(numbered: tuple[int, hub.Row]) -> Normalised | Skipped:
        return normalise(source, numbered[1], numbered[0])

    total = source.cap or source.target or None
    with (
        writer.source(source.name) as part,
        ThreadPoolExecutor(workers) as pool,
        Progress(total, source.name, "records") as progress,
    ):
        stored = 0
        for number, outcome in enumerate(ordered_map(pool, made, enumerate(stream), ahead=8 * workers)):
            if isinstance(outcome, Skipped):
                part.skip(str(number), outcome.reason, outcome.detail)
                continue
            part.add(outcome.record, [outcome.image])
            progress.update()
            stored += 1
            if stored == source.cap:
                break


def ordered_map(pool: ThreadPoolExecutor, work: Callable[[A], B], values: Iterable[A], *, ahead: int) -> Iterator[B]:
    """``map`` in the pool, in order, with at most ``ahead`` values taken beyond the one that is due."""
    source = iter(values)
    pending: deque[Future[B]] = deque(pool.submit(work, value) for value in itertools.islice(source, ahead))
    while pending:
        due = pending.popleft().result()
        pending.extend(pool.submit(work, value) for value in itertools.islice(source, 1))
        yield due
