"""Shared by all commands: parsing into dataclasses, help in two levels, one-line errors."""

import argparse
import contextlib
import gc
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
from typing import Annotated, Any, TypeVar, get_args, get_origin

import tyro
from rich.console import Console
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from rmc_agents import __version__, plugins
from rmc_agents.config import Config
from rmc_agents.help_text import first_help
from rmc_agents.plain_yaml import dump_yaml, parse_yaml

Arguments = TypeVar("Arguments")
REQUIRED: Any = tyro.MISSING_NONPROP
TRACEBACK_HINT = "RMC_TRACEBACK=1 shows the whole traceback"
MAX_ERROR_LENGTH = 2000  # characters: names and messages come from anywhere

Imports = Annotated[
    tuple[str, ...],
    tyro.conf.UseAppendAction,
    tyro.conf.arg(
        name="import",
        metavar="MODULE",
        help="Import this module first, for example one that registers a custom core, encoder or environment; "
        "may be given again.",
    ),
]
"""A flag of every command; its value goes to `plugins.load`."""

_registry = ConstructorRegistry()


@_registry.primitive_rule
def _mappings(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[dict[str, Any]] | None:
    """Lets mappings be given as NAME=VALUE, with values in YAML syntax."""
    if get_origin(info.type) is not dict:
        return None
    return PrimitiveConstructorSpec(
        nargs="*",
        metavar="NAME=VALUE [NAME=VALUE ...]",
        instance_from_str=assignments,
        is_instance=lambda value: isinstance(value, dict),
        str_from_instance=lambda mapping: [f"{name}={_as_yaml(value)}" for name, value in mapping.items()] or ["none"],
    )


@_registry.primitive_rule
def _lists_of_mappings(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[tuple[dict[str, Any], ...]] | None:
    """Flags whose value is a list of mappings take each as YAML, in a word of its own."""
    if get_origin(info.type) is not tuple or get_origin(get_args(info.type)[0]) is not dict:
        return None
    return PrimitiveConstructorSpec(
        nargs="*",
        metavar="'{NAME: VALUE, ...}' ...",
        instance_from_str=lambda texts: tuple(_mapping(text) for text in texts),
        is_instance=lambda value: isinstance(value, tuple),
        str_from_instance=lambda mappings: [*map(_as_yaml, mappings)] or ["none"],
    )


def _mapping(text: str) -> dict[str, Any]:
    value = parse_yaml(text, "a mapping")
    if not isinstance(value, dict):
        raise ValueError(f"expected {{NAME: VALUE, ...}}, got {text!r}")
    return value


def assignments(texts: Sequence[str]) -> dict[str, Any]:
    """Parse NAME=VALUE texts, with values in YAML syntax. Raises ValueError for anything else."""
    values: dict[str, Any] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not name or not separator:
            raise ValueError(f"expected NAME=VALUE, got {text!r}")
        values[name] = parse_yaml(value, name)
    return values


def _as_yaml(value: Any) -> str:
    text: str = dump_yaml(value, default_flow_style=True, width=math.inf)
    return text.removesuffix("\n").removesuffix("\n...")


def console() -> Console:
    """Standard output; texts stay as they are, where rich would draw a picture for the `:factory:` in a name."""
    return Console(emoji=False)


def parse(
    kind: type[Arguments],
    argv: Sequence[str] | None,
    prog: str,
    description: str,
    default: Arguments = REQUIRED,
    first: Sequence[str] = (),
    more: Callable[[], str] | None = None,
) -> Arguments:
    """Parse the command line into a dataclass; fields become flags, without section names as prefixes.

    A wrong flag ends the program with one line on standard error and exit status 2; --help, --help-all and --version
    end it with 0.

    Args:
      kind: the dataclass; its fields may be dataclasses.
      argv: the command line; None: this program's.
      prog: the command's name.
      description: the beginning of its help.
      default: the values that flags change.
      first: the settings that --help explains, leaving the others to --help-all; empty: --help explains all.
      more: text at the end of --help.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    if "--version" in argv:
        print(f"{prog} {__version__}")
        raise SystemExit(0)
    if first and {"--help", "-h"} & set(argv):
        print(first_help(default, prog, description, first, more() if more else ""))
        raise SystemExit(0)
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(
                kind,
                prog=prog,
                description=description,
                args=["--help" if word == "--help-all" else word for word in argv],
                default=default,
                config=(tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes),
                registry=_registry,
            )
    except SystemExit as end:
        if end.code:
            print(f"{prog}: {_without_box(said.getvalue())} (see {prog} --help)", file=sys.stderr)
        raise


def sources(argv: Sequence[str] | None) -> argparse.Namespace:
    """The flags needed before the settings are parsed: config and resume determine the defaults; imports, env, core,
    encoder and track may name modules to import; also run_dir and trust.

    Raises:
      ValueError: for a flag without its value.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for flag in ("--config", "--run-dir", "--resume"):
        parser.add_argument(flag, type=_path)
    for flag in ("--env", "--core", "--encoder", "--track"):
        parser.add_argument(flag)
    parser.add_argument("--import", dest="imports", action="append", default=[])
    parser.add_argument("--trust", action=argparse.BooleanOptionalAction, default=False)
    try:
        return parser.parse_known_args(argv)[0]
    except argparse.ArgumentError as error:
        raise ValueError(str(error)) from None


def _path(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("expected a path, got an empty one")
    return Path(text)


def import_typed(argv: Sequence[str] | None, modules: Sequence[str] = (), names: Sequence[str] = ()) -> Any:
    """Import the modules that the command line names, and further ones (see `plugins.load`); returns the `sources`."""
    found = sources(argv)
    plugins.load([*modules, *found.imports], *names, found.core, found.encoder, found.track, env=found.env)
    return found


def check_names(config: Config, source: object) -> None:
    """Reject an unknown name, or a module that only a file names, before any slow import.

    Args:
      config: the settings.
      source: the file they may come from.

    Raises:
      ValueError: with the nearest known name, or what to type.
    """
    from rmc_agents.envs import names

    plugins.check_named(config.env.env, source)
    names.check(config.env.env)
    config.check_parts()


def _without_box(text: str) -> str:
    """tyro's boxed error message, and the flags it suggests, in one line.

    Without UTF-8 the box has no sides, and its horizontal lines are made of '-', one of them below the title.
    """
    lines = [line.strip("│╭╮╰╯─ ") if line.strip(" -") else "" for line in text.splitlines()]
    body = [line for line in lines[1:] if not line.startswith("For full helptext")]
    body = body[next((i for i, line in enumerate(body) if line), 0) :]
    problem = " ".join(body[: body.index("")] if "" in body else body)
    meant = dict.fromkeys(line.split()[0].rstrip(",") for line in body if line.startswith("--"))
    hint = f"; did you mean {' or '.join(meant)}?" if meant and "Perhaps you meant" in text else ""
    problem = re.sub(r"^Error parsing \w+: ", "", problem)  # the section's name adds nothing to the setting's
    return problem.rstrip(".") + hint


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """For imports that take seconds: in here the garbage collector rests.

    They make half a million objects, all of which stay. Looking through them again and again for some to free takes a
    fifth of the time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()  # later collections leave out what is there by now
        if was_enabled:
            gc.enable()


def run(program: str, main: Callable[[], int]) -> int:
    """Run a command and return its exit status.

    The status is main's; 2 after a one-line message on standard error for anything the user can fix; 130 after Ctrl-C;
    141 without a message if standard output was closed, as by `| head`.

    Notes on the error are printed before the line: the traceback through a user's own code. RMC_TRACEBACK=1 in the
    environment shows the whole traceback; the line mentions it for errors in a user's own code, which are those with a
    note or the attribute `is_theirs`.
    """
    try:
        try:
            return main()
        except (Exception, SystemExit) as error:
            plugins.blame(error)
            raise
        finally:
            sys.stdout.flush()  # if it fails, it fails here and not at interpreter exit
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
        notes = getattr(error, "__notes__", ())
        for note in notes:
            print(note, file=sys.stderr)
        hint = f" ({TRACEBACK_HINT})" if notes or getattr(error, "is_theirs", False) else ""
        return _fail(program, _one_line(error) + hint)


def _fail(program: str, message: str, status: int = 2) -> int:
    with contextlib.suppress(OSError):  # the terminal may be gone
        print(f"{program}: {message}", file=sys.stderr)
    return status


def _output_is_closed() -> bool:
    """Whether standard output was closed by its reader, as in `| head`; further output is then discarded."""
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

    SIGHUP is left out if the command was started with nohup, which ignores it. Empty outside the main thread, the only
    one that may handle signals.
    """
    if threading.current_thread() is not threading.main_thread():
        return []
    hangup = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGINT, signal.SIGTERM, *hangup]


@contextlib.contextmanager
def interrupted_by_stops() -> Iterator[None]:
    """Context in which every signal of `stop_signals` raises KeyboardInterrupt, as Ctrl-C does."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in stop_signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def quoted(path: Path) -> str:
    """A path quoted for the shell, for lines that say what to type next."""
    return shlex.quote(str(path))


def decimals(*scores: float) -> int:
    """Decimals that give the largest score three significant digits; at least one."""
    largest = max((abs(score) for score in scores if math.isfinite(score)), default=0.0)
    return max(1, 2 - math.floor(math.log10(largest))) if largest else 1


def with_interval(mean: float, interval: Sequence[float] | None, digits: int | None = None) -> str:
    """'MEAN (LOW to HIGH)', or only the mean; the number of digits defaults to `decimals`."""
    digits = decimals(mean) if digits is None else digits
    if interval is None:
        return f"{mean:.{digits}f}"
    return f"{mean:.{digits}f} ({interval[0]:.{digits}f} to {interval[1]:.{digits}f})"
