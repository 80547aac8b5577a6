"""Rows of a data set, from the Hub or a folder in the Hub set's own schema, through `datasets`.

Streaming, so that nothing is downloaded twice over; images stay undecoded, because one corrupt image would end the
iteration. A dropped connection is taken up where it broke, with growing pauses. `HF_HUB_OFFLINE`, `HF_ENDPOINT` and the
caches are the Hub library's own and work as ever.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled
from huggingface_hub.utils import httpx  # whichever client the Hub library uses; `datasets` takes it from here too
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt, wait_exponential_jitter

from odb_example.data.sources import Source
from odb_example.errors import UserError

Row = Mapping[str, Any]
ATTEMPTS = 6
_SHUFFLE_BUFFER = 2_000
_COMMIT = re.compile(r"[0-9a-f]{40}")
# What a failing network raises, in the Hub library, its HTTP client, or Python's own sockets.
_NETWORK = (ConnectionError, TimeoutError, httpx.HTTPError)


def local_folder(source: Source, root: str | None) -> Path | None:
    """The folder a source is read from, or None for the Hub.

    Raises:
        UserError: a root is given and the set is not in it.
    """
    if source.name == "vqa_like" and Path(source.hub_id).is_dir():
        return Path(source.hub_id)
    if root is None:
        return None
    folder = Path(root, source.hub_id)
    if not folder.is_dir():
        raise UserError(f"{folder} is missing: source {source.name} is looked for there", f"copy {source.hub_id} to it")
    return folder


def resolved_revision(source: Source, folder: Path | None) -> str:
    """What exactly is read: a commit of the Hub, or the folder's files by name and size.

    A commit given as the revision is taken without asking the Hub.

    Raises:
        UserError: the Hub cannot be reached, or has no such set.
    """
    if folder is not None:
        files = sorted(file for file in folder.rglob("*") if file.is_file())
        listing = "\n".join(f"{file.relative_to(folder).as_posix()} {file.stat().st_size}" for file in files)
        return f"local:{hashlib.sha256(listing.encode()).hexdigest()[:16]}"
    if _COMMIT.fullmatch(source.revision):
        return source.revision
    try:
        for attempt in retrying():
            with attempt:
                return str(HfApi().dataset_info(source.hub_id, revision=source.revision).sha)
    except _NETWORK as error:
        raise unreachable(source, error) from error
    raise AssertionError("tenacity raises the last error")


def rows(source: Source, *, folder: Path | None, revision: str, seed: int, cache_dir: str | None) -> Iterator[Row]:
    """All rows of a source in a fixed order; a capped source is shuffled by ``seed``.

    Raises:
        UserError: no such set, config, split or column, or the connection stays away.
    """

    def opened(skip: int) -> Iterable[Row]:
        return _stream(source, folder, revision, seed, cache_dir, skip)

    return resuming(opened, source)


def resuming(opened: Callable[[int], Iterable[Row]], source: Source) -> Iterator[Row]:
    """Iterate ``opened(0)``; after a transient error pause and go on with ``opened(rows seen)``.

    The pauses grow as long as no row arrives in between.
    """
    seen = 0
    while True:
        try:
            for attempt in retrying():
                with attempt:
                    stream = iter(opened(seen))
                    first = list(itertools.islice(stream, 1))
        except _NETWORK as error:
            raise unreachable(source, error) from error
        if not first:
            return
        seen += 1
        yield first[0]
        try:
            for row in stream:
                seen += 1
                yield row
            return
        except _NETWORK as error:
            if not transient(error):
                raise unreachable(source, error) from error


def transient(error: BaseException) -> bool:
    """Whether waiting may help: a broken connection, a busy or failing server; not a missing set, nor offline mode."""
    if isinstance(error, OfflineModeIsEnabled):
        return False
    if isinstance(error, HfHubHTTPError):
        return error.response is not None and (error.response.status_code == 429 or error.response.status_code >= 500)
    return isinstance(error, _NETWORK)


def retrying() -> Retrying:
    """Pauses of about 1, 2, 4, 8 and 16 seconds after transient errors; the last error is raised as it is."""
    return Retrying(
        retry=retry_if_exception(transient),
        stop=stop_after_attempt(ATTEMPTS),
        wait=wait_exponential_jitter(initial=1, max=30),
        before_sleep=_say,
        reraise=True,
    )


def _say(state: RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome else None
    pause = state.next_action.sleep if state.next_action else 0
    print(f"connection trouble ({error}); trying again in {pause:.0f} s", file=sys.stderr)


def unreachable(source: Source, error: BaseException) -> UserError:
    """The one line for a set that cannot be had."""
    words = str(error).splitlines()[0] if str(error) else repr(error)
    return UserError(
        f"source {source.name}: {source.hub_id} cannot be read: {words}",
        "check network and HF_HUB_OFFLINE (which needs --revisions), or give --recipe-root with local copies",
    )


def _stream(
    source: Source, folder: Path | None, revision: str, seed: int, cache_dir: str | None, skip: int
) -> Iterable[Row]:
    import datasets
    from datasets.exceptions import DataFilesNotFoundError, DatasetNotFoundError

    place = str(folder) if folder is not None else source.hub_id
    try:
        data = datasets.load_dataset(
            place,
            source.config,
            split=source.split,
            revision=None if folder is not None else revision,
            cache_dir=cache_dir,
            # Offline, only what was prepared before can be read, and that is not a stream.
            streaming=folder is not None or not datasets.config.HF_HUB_OFFLINE,
        )
    except (DatasetNotFoundError, DataFilesNotFoundError, FileNotFoundError, ValueError) as error:
        raise UserError(
            f"source {source.name}: {' '.join(str(error).split())}",
            f"it should have config {source.config!r} and split {source.split!r}",
        ) from error
    _check_columns(source, place, list(data.features or source.columns.values()))
    if not isinstance(data, datasets.IterableDataset):
        data = data.to_iterable_dataset()
    data = data.cast_column(source.columns["image"], datasets.Image(decode=False))
    if source.cap is not None:
        data = data.shuffle(seed=seed, buffer_size=_SHUFFLE_BUFFER)
    if skip:
        data = data.skip(skip)
    return ({ours: row.get(theirs) for ours, theirs in source.columns.items()} for row in data)


def _check_columns(source: Source, place: str, found: list[str]) -> None:
    theirs = source.columns
    texts = [theirs[name] for name in ("conversations", "text", "question") if name in theirs]
    missing = [theirs["image"]] if theirs["image"] not in found else []
    if not set(texts) & set(found):
        missing.append(" or ".join(texts))
    if missing:
        raise UserError(
            f"source {source.name}: {place} has no column {', '.join(missing)}", f"its columns are {', '.join(found)}"
        )
