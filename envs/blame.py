"""Errors of users' code, reported as theirs: one line, and a note with only their lines of the traceback."""

import traceback
from collections.abc import Sequence
from typing import TypeVar

from .processes import EnvError, WorkerError

Reported = TypeVar("Reported", bound=Exception)

NOT_THEIRS = ("rmc_agents", "gymnasium", "importlib", "functools", "numpy", "torch")
"""Packages whose stack frames lead to an environment's own code."""


class Blame:
    """Context that reports exceptions as errors of the environment `name` in `call`.

    A class, because it is entered at every step of every lane, and contextlib's generators are several times slower.

    Raises:
      EnvError: in place of the exception; a note holds the traceback through the user's code, if any.
    """

    def __init__(self, name: str, call: str) -> None:
        self.name, self.call = name, call

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, Exception | SystemExit) or isinstance(error, WorkerError | MemoryError):
            return
        if type(error).__name__ == "OutOfMemoryError":  # torch's, by name: environments need no torch
            return
        if isinstance(error, SystemExit) and isinstance(error.__context__, BrokenPipeError):
            return  # rich's: the output is closed, in which a compilation was announced
        theirs: BaseException = error
        if error.__cause__ is not None and not _their_frames(error):  # gymnasium rephrases a constructor's TypeError
            theirs = error.__cause__
        what = f"the environment {self.name!r} failed in {self.call}"
        raise as_theirs(EnvError, what, theirs, _their_frames(theirs)) from error


def as_theirs(
    kind: type[Reported], what: str, error: BaseException, frames: Sequence[traceback.FrameSummary]
) -> Reported:
    """An exception of the given kind that says in one line what failed, why and, by the last frame, where.

    A note shows the traceback through the frames.
    """
    shown = traceback.TracebackException.from_exception(error)  # its str() is the error's text, or a placeholder
    place = f" ({frames[-1].filename}, line {frames[-1].lineno}, in {frames[-1].name})" if frames else ""
    reported = kind(f"{what}: {type(error).__name__}: {shown}{place}")
    if frames or isinstance(error, SyntaxError):
        shown.stack = traceback.StackSummary.from_list(frames)
        reported.add_note("".join(shown.format()).rstrip())
    return reported


def _their_frames(error: BaseException) -> traceback.StackSummary:
    every = traceback.walk_tb(error.__traceback__)
    modules = ((each, str(each[0].f_globals.get("__name__"))) for each in every)
    return traceback.StackSummary.extract(each for each, name in modules if name.partition(".")[0] not in NOT_THEIRS)
