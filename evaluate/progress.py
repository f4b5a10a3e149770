"""Progress of episodes that are played or recorded."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from rich.console import Console

OnProgress = Callable[[int], None]
"""Called with the number of episodes that have just ended, or of frames recorded so far."""


def ignore_progress(count: int) -> None:
    """Ignores the count."""


@contextmanager
def shown(console: Console, text: str, episodes: int) -> Iterator[OnProgress]:
    """A bar with the episodes so far and the time left, on a terminal only; it goes away at the end."""
    if not console.is_interactive:
        yield ignore_progress
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True) as bar:
        yield partial(bar.advance, bar.add_task(text, total=episodes))


@contextmanager
def status(console: Console, text: str) -> Iterator[Callable[[str], None]]:
    """What is being done, on a terminal only, and a function that changes the text; it goes away at the end."""
    if not console.is_interactive:  # rich would ask for ipywidgets in a notebook
        yield lambda _: None
        return
    with console.status(text) as line:
        yield line.update
