"""Processes that work for this one: started so that signals find them ready, and ended whatever happens."""

import os
import signal
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import parent_process, resource_tracker
from multiprocessing.process import BaseProcess
from typing import NamedTuple, Self

SECONDS_TO_END = 5.0  # what a process may take to end by itself before it is killed
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class WorkerError(ValueError):
    """What a process was to do failed in it, or it died; the message is for the user."""


class EnvError(WorkerError):
    """An environment's own code failed, in a worker or in this process; a note has the traceback through it."""

    is_theirs = True  # see `command_line.run`


class Fault(NamedTuple):
    """The last message of a process that raised an exception."""

    summary: str
    trace: str
    is_envs: bool = False  # an `EnvError`

    @classmethod
    def of(cls, error: Exception) -> Self:
        """What was raised, and where: the last line of the traceback."""
        if isinstance(error, EnvError):
            return cls(str(error), "\n".join(getattr(error, "__notes__", ())), is_envs=True)
        place = traceback.extract_tb(error.__traceback__)[-1]
        summary = f"{type(error).__name__}: {error} ({place.filename}, line {place.lineno}, in {place.name})"
        return cls(summary, "".join(traceback.format_exception(error)))


def describe_death(exit_code: int | None) -> str:
    """How a process ended, as the end of a sentence that begins with its name."""
    if exit_code is None:
        return "does not answer"
    if exit_code >= 0:
        return f"ended with exit status {exit_code}"
    hint = " (is there enough memory?)" if -exit_code == signal.SIGKILL else ""
    return f"was killed by {signal.Signals(-exit_code).name}{hint}"


def end_all(processes: Sequence[BaseProcess]) -> None:
    """Waits for processes that were asked to end, and kills those that take long."""
    deadline = time.monotonic() + SECONDS_TO_END
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
        process.kill()
        process.join()


@contextmanager
def stops_held_back() -> Iterator[None]:
    """Processes started in here do not get the `STOPS`, until they are ready to; this one gets them later."""
    resource_tracker.ensure_running()  # else it is started with the first process, and then lets the signals through
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_stops_to_the_parent() -> None:
    """In a process that was started in `stops_held_back`: take no notice of the `STOPS`.

    The terminal and job schedulers send their signals to all processes of a group; here the parent decides what they
    mean. A handler that does nothing, unlike an ignored signal, is not inherited by programs that are started here.
    """
    for number in STOPS:
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)


def end_with_the_parent() -> None:
    """For a thread of a spawned process that would not see its parent end: one that was killed closes nothing."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
