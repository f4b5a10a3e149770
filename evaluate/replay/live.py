"""Watching runs during training: a page of the newest checkpoints, replaced when there are newer ones."""

import time
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

from rmc_agents.evaluate.opening import find
from rmc_agents.runs import archive, checkpoint
from rmc_agents.runs.checkpoint import CheckpointError
from rmc_agents.runs.folder import CONFIG, LOCK, has_checkpoints

from .page import Page
from .server import PageServer

POLL = 1.0  # seconds

Versions = tuple[tuple[Path, int], ...]
"""The newest checkpoint of each source, and the time it was written, in nanoseconds."""
MakePage = Callable[[str], tuple[Page, list[str]]]
"""From a version to the page, and lines to print about it."""

WAITING = """<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="refresh" content="2">
<meta name="color-scheme" content="dark light">
<link rel="icon" href="data:,">
<title>Waiting</title>
<p>Waiting for the first checkpoint of {names}</p>
</html>
"""


def find_source(run: Path | None, name: str | None, trust: bool) -> Path:
    """Like `opening.find`, but a run's folder may have no checkpoint yet."""
    return run if run is not None and name is None and _is_waited_for(run) else find(run, name, trust)


def _is_waited_for(source: Path) -> bool:
    """Whether this is the folder of a run without a checkpoint yet."""
    return any((source / name).is_file() for name in (LOCK, CONFIG)) and not has_checkpoints(source)


def serve(sources: Sequence[Path], port: int, make_page: MakePage, say: Callable[[str], None]) -> None:
    """Serve the page until interrupted.

    Args:
      sources: runs, checkpoints or exported files, from `find_source`.
      port: 0: any free port.
      make_page: opens the sources, plays an episode and builds the page.
      say: prints a line.

    Raises:
      ValueError: as `PageServer` and `make_page` do.
    """
    names = ", ".join(map(str, filter(_is_waited_for, sources)))
    with PageServer(port, WAITING.format(names=escape(names)).encode(errors="replace")) as server:
        say(f"{server.address}   stop with Ctrl-C")
        if names:
            say(f"waiting for the first checkpoint of {names}")
        try:
            _follow(sources, server, make_page, say)
        except KeyboardInterrupt:
            say("ended")


def _follow(sources: Sequence[Path], server: PageServer, make_page: MakePage, say: Callable[[str], None]) -> None:
    shown: Versions | None = None
    while True:
        newest = newest_of(sources)
        if newest is not None and newest != shown:
            version = "+".join(f"{path.name}@{written:x}" for path, written in newest)
            try:
                page, lines = make_page(version)
            except (CheckpointError, OSError) as error:  # such as deleted as the oldest while it was being opened
                say(f"skipped: {error}")
            else:
                server.show(version, page.content)
                for line in lines:
                    say(line)
            shown = newest
        time.sleep(POLL)


def newest_of(sources: Sequence[Path]) -> Versions | None:
    """What the page is to show; None while a run has no checkpoint."""
    found = []
    for source in sources:
        try:
            path = _newest(source)
            found.append((path, path.stat().st_mtime_ns))
        except (StopIteration, OSError):  # none yet; deleted, being the oldest; or too many files are open
            return None
    return tuple(found)


def _newest(source: Path) -> Path:
    if not source.is_dir():
        return source
    suffix = archive.SUFFIX if archive.is_archive(source) else checkpoint.SUFFIX
    return next(checkpoint.numbered(source, suffix))
