"""What the command lines share: parsing by dataclass, and errors that are one line."""

import contextlib
import io
import math
import os
import re
import select
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import tyro

Arguments = TypeVar("Arguments")
REQUIRED: Any = tyro.MISSING_NONPROP


def parse(
    kind: type[Arguments], argv: Sequence[str] | None, prog: str, description: str, default: Arguments = REQUIRED
) -> Arguments:
    """The command line as a dataclass; fields become flags, without the names of sections in front.

    A wrong flag ends the program with one line on standard error and exit status 2.
    """
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(
                kind,
                prog=prog,
                description=description,
                args=argv,
                default=default,
                config=(tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes),
            )
    except SystemExit as end:
        if end.code:
            print(f"{prog}: {_without_box(said.getvalue())} (see {prog} --help)", file=sys.stderr)
        raise


def _without_box(text: str) -> str:
    """What tyro's boxed message says, and the names of the flags that it holds for meant, in one line.

    Without UTF-8 the box has no sides, and its rules are of '-', one of them below the title.
    """
    lines = [line.strip("│╭╮╰╯─ ") if line.strip(" -") else "" for line in text.splitlines()]
    body = [line for line in lines[1:] if not line.startswith("For full helptext")]
    body = body[next((i for i, line in enumerate(body) if line), 0) :]
    problem = " ".join(body[: body.index("")] if "" in body else body)
    meant = dict.fromkeys(line.split()[0].rstrip(",") for line in body if line.startswith("--"))
    hint = f"; did you mean {' or '.join(meant)}?" if meant and "Perhaps you meant" in text else ""
    problem = re.sub(r"^Error parsing \w+: ", "", problem)  # a section's name, which is of no use beside the setting's
    return problem.rstrip(".") + hint


def run(program: str, main: Callable[[], int]) -> int:
    """Run a command: its exit status is main's, 2 after one line on standard error for anything a user can mend, 130
    after Ctrl-C, and 141 without a word when nobody reads its output any more, as in `| head`.
    Before the line comes what is noted on the error: the traceback through an environment's own code.

    RMC_TRACEBACK=1 in the environment shows where the error came from.
    """
    try:
        try:
            return main()
        finally:
            sys.stdout.flush()  # fails here, if it does, and not while the interpreter ends
    except KeyboardInterrupt:
        return _fail(program, "interrupted", 130)
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not re.search(
            "alloc|out of memory|size calculation overflow", str(error)
        ):
            raise
        return _fail(program, "not enough memory for these sizes")
    except (ValueError, OSError) as error:
        if isinstance(error, BrokenPipeError) and _output_is_closed():
            return 128 + signal.SIGPIPE
        if os.environ.get("RMC_TRACEBACK"):
            raise
        for note in getattr(error, "__notes__", ()):
            print(note, file=sys.stderr)
        return _fail(program, _one_line(error))


def _fail(program: str, message: str, status: int = 2) -> int:
    with contextlib.suppress(OSError):  # the terminal may be gone
        print(f"{program}: {message}", file=sys.stderr)
    return status


def _output_is_closed() -> bool:
    """Whether nobody reads standard output any more; what is left of it then goes nowhere, and fails no more."""
    output = select.poll()
    output.register(sys.stdout, 0)  # errors alone
    if not output.poll(0):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return True


def find_modules_here(env: str | None) -> None:
    """Let Python find the module in 'module:Id' in the current folder too, as `python -m` does.

    Args:
      env: an environment's name from the command line; never one that a file gives, which must not choose what is run.
    """
    here = os.getcwd()
    if env is not None and ":" in env and here not in sys.path:
        sys.path.insert(0, here)


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(str(error).split())


def stop_signals() -> list[signal.Signals]:
    """Those by which a user, a scheduler or a closed terminal ends a command: SIGHUP too, but for a command that was
    started by nohup, which has it ignored. None outside of the main thread, which alone may handle signals.
    """
    if threading.current_thread() is not threading.main_thread():
        return []
    hangup = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGINT, signal.SIGTERM, *hangup]


@contextlib.contextmanager
def interrupted_by_stops() -> Iterator[None]:
    """In here, every signal of `stop_signals` raises KeyboardInterrupt, as Ctrl-C does."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in stop_signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def quoted(path: Path) -> str:
    """A path as a shell reads it, for lines that say what to type next."""
    return shlex.quote(str(path))


def decimals(*scores: float) -> int:
    """Digits after the point that give the largest of the scores three significant ones; at least one."""
    largest = max((abs(score) for score in scores if math.isfinite(score)), default=0.0)
    return max(1, 2 - math.floor(math.log10(largest))) if largest else 1


def with_interval(mean: float, interval: Sequence[float] | None, digits: int | None = None) -> str:
    """'MEAN (LOW to HIGH)'; without an interval the mean alone. Digits as `decimals` has them, if not given."""
    digits = decimals(mean) if digits is None else digits
    if interval is None:
        return f"{mean:.{digits}f}"
    return f"{mean:.{digits}f} ({interval[0]:.{digits}f} to {interval[1]:.{digits}f})"
