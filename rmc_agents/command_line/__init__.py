"""Shared by all commands: one-line errors, stop signals, how texts are printed."""

import contextlib
import errno
import functools
import gc
import io
import logging
import os
import re
import select
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.table import Table

from rmc_agents import plugins

TRACEBACK_HINT = "RMC_TRACEBACK=1 shows the whole traceback"
OUT_OF_MEMORY = (
    "(?i)tried to allocate|an(no|')t allocate|bad_alloc|alloc_failed|out of memory|size calculation overflow"
)
"""In torch's errors."""
OUTPUT_IS_GONE = {errno.EPIPE: signal.SIGPIPE, errno.EIO: signal.SIGHUP}
"""Errors of writing to a closed pipe and to a closed terminal, and their signals."""
MAX_ERROR_LENGTH = 2000  # characters: names and messages come from anywhere


def console() -> Console:
    """Standard output, without emoji codes: rich would replace `:factory:` in a name.

    It redraws lines only on a terminal. FORCE_COLOR makes rich take a file for one.
    """
    console = Console(emoji=False)
    console.is_interactive = console.is_interactive and console.file.isatty()
    return console


def say(console: Console, text: str) -> None:
    """Print a text unchanged: no wrapping of paths at the terminal's edge, no markup in brackets."""
    console.print(printable(text), highlight=False, soft_wrap=True, markup=False)


def show(console: Console, table: Table) -> None:
    """Print a table, `printable`. No number is cut: a table that cannot fit is wider than the terminal."""
    if isinstance(table.title, str):
        table.title = printable(table.title)
    for column in table.columns:
        column._cells[:] = [printable(cell) if isinstance(cell, str) else cell for cell in column.cells]
        if column.overflow != "fold":
            words = " ".join([str(column.header), *map(str, column.cells)]).split()
            column.min_width = max(map(len, words), default=0)
    console.print(table, crop=False)


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Context for imports that take seconds: the garbage collector is off.

    They create half a million objects that stay alive. Collections that search them would take a fifth of the time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()  # later collections skip all objects that exist now
        if was_enabled:
            gc.enable()


def run(program: str, main: Callable[[], int]) -> int:
    """Run a command and return its exit status.

    The status is main's; 2 after a one-line message on standard error for anything the user can fix; 130 after Ctrl-C,
    143 after SIGTERM, 129 after SIGHUP or if the terminal is gone; 141 without a message if standard output was closed,
    as by `| head`.

    Notes on the error are printed before the line: the traceback through a user's own code. RMC_TRACEBACK=1 in the
    environment shows the whole traceback. The line mentions it for errors in a user's own code: those with a note or
    the attribute `is_theirs`. A character that standard output's encoding lacks is printed as "?".
    """
    _prepare_output()
    try:
        try:
            with interrupted_by_stops():
                return main()
        except (Exception, SystemExit) as error:
            if isinstance(error, SystemExit) and isinstance(error.__context__, BrokenPipeError):  # rich's
                return 128 + signal.SIGPIPE
            plugins.blame(error)
            raise
        finally:
            if sys.stdout is not None:  # it is None if it was closed before the start
                sys.stdout.flush()  # if it fails, it fails here and not at interpreter exit
    except KeyboardInterrupt as interrupt:
        return _fail(program, "interrupted", 128 + signal_of(interrupt))
    except (MemoryError, RuntimeError) as error:
        first = str(error).partition("\n")[0]
        is_memory = isinstance(error, MemoryError) or re.search(OUT_OF_MEMORY, first)
        if not is_memory or os.environ.get("RMC_TRACEBACK"):
            raise
        return _fail(program, "not enough memory for these sizes")
    except (ValueError, OSError) as error:
        if isinstance(error, OSError) and error.errno in OUTPUT_IS_GONE and _output_is_closed():
            return 128 + OUTPUT_IS_GONE[error.errno]
        if os.environ.get("RMC_TRACEBACK"):
            raise
        notes = getattr(error, "__notes__", ())
        for note in notes:
            print(note, file=sys.stderr)
        hint = f" ({TRACEBACK_HINT})" if notes or getattr(error, "is_theirs", False) else ""
        return _fail(program, _one_line(error) + hint)


def command(program: str) -> Callable[[Callable[[Sequence[str]], int]], Callable[..., int]]:
    """Make a function of the arguments a command, with the arguments of this program as its default: see `run`."""

    def decorate(main: Callable[[Sequence[str]], int]) -> Callable[..., int]:
        @functools.wraps(main)
        def wrapped(argv: Sequence[str] | None = None) -> int:
            return run(program, lambda: main(sys.argv[1:] if argv is None else argv))

        return wrapped

    return decorate


def _fail(program: str, message: str, status: int = 2) -> int:
    with contextlib.suppress(OSError):  # the terminal may be gone
        print(f"{program}: {printable(message)}", file=sys.stderr)
    return status


def printable(text: str) -> str:
    """The text without control characters, which names and messages from files could bring to the terminal."""
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", "?", text)


def _prepare_output() -> None:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    if logging.lastResort is not None:  # it prints warnings
        logging.lastResort.setFormatter(_Printable())


class _Printable(logging.Formatter):
    """The text of a log record, `printable`."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def _output_is_closed() -> bool:
    """Whether standard output was closed by its reader, as in `| head` or with a terminal; further output is then
    discarded."""
    output = select.poll()
    output.register(sys.stdout, 0)  # only errors
    if not output.poll(0):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return True


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    line = " ".join(str(error).split())
    half = MAX_ERROR_LENGTH // 2
    return line if len(line) <= 2 * half else f"{line[:half]} ... {line[-half:]}"


def stop_signals() -> list[signal.Signals]:
    """The signals that stop a command: from the user, a job scheduler or a closed terminal.

    SIGHUP is left out if the command was started with nohup, which ignores it, and a signal with a handler in C, which
    could not be restored. Empty outside the main thread, the only one that may handle signals.
    """
    if threading.current_thread() is not threading.main_thread():
        return []
    hangup = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
    return [each for each in (signal.SIGINT, signal.SIGTERM, *hangup) if signal.getsignal(each) is not None]


@contextlib.contextmanager
def interrupted_by_stops() -> Iterator[None]:
    """Context in which every signal of `stop_signals` raises KeyboardInterrupt, as Ctrl-C does (see `signal_of`)."""
    before = {number: signal.signal(number, _interrupt) for number in stop_signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt: a moment later inside a function that llvmlite calls from C, where it would be lost."""
    while frame is not None:
        if frame.f_code.co_name.startswith("_raw_object_cache"):
            threading.Timer(0.05, os.kill, (os.getpid(), number)).start()
            return
        frame = frame.f_back
    raise KeyboardInterrupt(signal.Signals(number))


def signal_of(interrupt: KeyboardInterrupt) -> signal.Signals:
    """The signal that interrupted; SIGINT if that was not in `interrupted_by_stops`."""
    return next((each for each in interrupt.args if isinstance(each, signal.Signals)), signal.SIGINT)


def quoted(path: Path) -> str:
    """A path quoted for the shell, for lines that say what to type next."""
    return shlex.quote(str(path))
