"""What the command lines share: parsing by dataclass, and errors that are one line."""

import contextlib
import io
import os
import re
import sys
from collections.abc import Callable, Sequence
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
    """What tyro's boxed message says, and the names of the flags that it holds for meant, in one line."""
    lines = [line.strip("│╭╮╰╯─ ") for line in text.splitlines()]
    body = [line for line in lines[1:] if not line.startswith("For full helptext")]
    problem = " ".join(body[: body.index("")] if "" in body else body)
    meant = dict.fromkeys(line.split()[0].rstrip(",") for line in body if line.startswith("--"))
    hint = f"; did you mean {' or '.join(meant)}?" if meant and "Perhaps you meant" in text else ""
    return problem.rstrip(".") + hint


def run(program: str, main: Callable[[], int]) -> int:
    """Run a command: its exit status is main's, 2 after one line on standard error for anything a user can mend, 130
    after Ctrl-C. Before the line comes what is noted on the error: the traceback through an environment's own code.

    RMC_TRACEBACK=1 in the environment shows where the error came from.
    """
    try:
        return main()
    except KeyboardInterrupt:
        print(f"{program}: interrupted", file=sys.stderr)
        return 130
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not re.search("alloc|out of memory|overflow", str(error)):
            raise
        print(f"{program}: not enough memory for these sizes", file=sys.stderr)
        return 2
    except (ValueError, OSError) as error:
        if os.environ.get("RMC_TRACEBACK"):
            raise
        for note in getattr(error, "__notes__", ()):
            print(note, file=sys.stderr)
        print(f"{program}: {_one_line(error)}", file=sys.stderr)
        return 2


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
