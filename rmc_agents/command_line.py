"""What the command lines share: parsing by dataclass, help in two levels, and errors that are one line."""

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
from typing import Annotated, Any, TypeVar, get_origin

import tyro
import yaml
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from rmc_agents import __version__, plugins
from rmc_agents.config import Config
from rmc_agents.help_text import first_help
from rmc_agents.plain_yaml import parse_yaml

Arguments = TypeVar("Arguments")
REQUIRED: Any = tyro.MISSING_NONPROP
TRACEBACK_HINT = "RMC_TRACEBACK=1 shows the whole traceback"
MOST_TOLD = 2000  # characters of an error's line: names and messages come from anywhere

Imports = Annotated[
    tuple[str, ...],
    tyro.conf.UseAppendAction,
    tyro.conf.arg(
        name="import",
        metavar="MODULE",
        help="Import this module first, such as one that registers a core, an encoder or an environment of your own; "
        "may be given again.",
    ),
]
"""A field that every command has; `plugins.load` takes its value."""

_registry = ConstructorRegistry()


@_registry.primitive_rule
def _mappings(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[dict[str, Any]] | None:
    """Flags whose value is a mapping take NAME=VALUE, the value as YAML reads it."""
    if get_origin(info.type) is not dict:
        return None
    return PrimitiveConstructorSpec(
        nargs="*",
        metavar="NAME=VALUE [NAME=VALUE ...]",
        instance_from_str=assignments,
        is_instance=lambda value: isinstance(value, dict),
        str_from_instance=lambda mapping: [f"{name}={_as_yaml(value)}" for name, value in mapping.items()] or ["none"],
    )


def assignments(texts: Sequence[str]) -> dict[str, Any]:
    """'NAME=VALUE's to names and values, these as YAML reads them. Raises ValueError for anything else."""
    values: dict[str, Any] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not name or not separator:
            raise ValueError(f"expected NAME=VALUE, got {text!r}")
        values[name] = parse_yaml(value, name)
    return values


def _as_yaml(value: Any) -> str:
    text: str = yaml.safe_dump(value, default_flow_style=True, width=math.inf)
    return text.removesuffix("\n").removesuffix("\n...")


def parse(
    kind: type[Arguments],
    argv: Sequence[str] | None,
    prog: str,
    description: str,
    default: Arguments = REQUIRED,
    first: Sequence[str] = (),
    more: Callable[[], str] | None = None,
) -> Arguments:
    """The command line as a dataclass; fields become flags, without the names of sections in front.

    A wrong flag ends the program with one line on standard error and exit status 2; --help, --help-all and --version
    end it with 0.

    Args:
      kind: the dataclass; it may have dataclasses as fields.
      argv: the command line; None: this program's.
      prog: the command's name.
      description: the beginning of its help.
      default: values of what no flag gives.
      first: settings that --help explains, where it leaves the others to --help-all; none: --help has them all.
      more: what --help says behind them.
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
    """The flags that are needed before the settings are parsed: config and resume, which give their defaults; imports,
    env, core, encoder and track, which may name modules to import; run_dir and trust.

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
    """The `sources`, after the import of the modules that they name, and of further ones (see `plugins.load`)."""
    found = sources(argv)
    plugins.load([*modules, *found.imports], *names, found.core, found.encoder, found.track, env=found.env)
    return found


def check_names(config: Config, source: object) -> None:
    """Refuse an unknown name, or a module that only a file names, before anything heavy is imported.

    Args:
      config: the settings.
      source: the file that they may come from.

    Raises:
      ValueError: with the nearest name, or what to type.
    """
    from rmc_agents.envs import names

    plugins.check_named(config.env.env, source)
    names.check(config.env.env)
    config.check_parts()


def _without_box(text: str) -> str:
    """tyro's boxed message, and the flags that it suggests, in one line.

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
    """Run a command: its exit status is main's, 2 after one line on standard error for anything a user can mend, 130
    after Ctrl-C, and 141 without a message when the reader of its output has gone, as in `| head`.
    Before the line comes what is noted on the error: the traceback through a user's own code.

    RMC_TRACEBACK=1 in the environment shows the whole traceback. The line mentions it for errors in a user's own code:
    those with a note or an attribute `is_theirs`.
    """
    try:
        try:
            return main()
        except (Exception, SystemExit) as error:
            plugins.blame(error)
            raise
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
    """Whether the reader of standard output has gone, as in `| head`; further output is then discarded."""
    output = select.poll()
    output.register(sys.stdout, 0)  # errors alone
    if not output.poll(0):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return True


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    line = " ".join(str(error).split())
    return line if len(line) <= MOST_TOLD else f"{line[: MOST_TOLD // 2]} ... {line[-MOST_TOLD // 2 :]}"


def stop_signals() -> list[signal.Signals]:
    """The signals by which a user, a scheduler or a closed terminal ends a command. SIGHUP is one of them unless the
    command was started by nohup, which has it ignored. None outside of the main thread, which alone may handle signals.
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
