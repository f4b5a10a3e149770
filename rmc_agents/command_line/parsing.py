"""The flags of all commands: parsing into dataclasses, help in two levels."""

import argparse
import contextlib
import io
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass, make_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin

import tyro

from rmc_agents import __version__, configs, plugins
from rmc_agents.config import NAMES_ELSEWHERE, Config
from rmc_agents.envs.names import SHORT_NAMES

from .help_text import help_text
from .messages import plain_message
from .values import expanded, registry

Arguments = TypeVar("Arguments")
REQUIRED: Any = tyro.MISSING_NONPROP
SEEDS = 2**32  # as many as a training takes
VALUES = {"true", "false", "yes", "no", "0", "1"}
SWITCHES = "; switches take no value: write --video or --no-video, for example"
Imports = Annotated[
    tuple[str, ...],
    tyro.conf.UseAppendAction,
    tyro.conf.arg(
        name="import",
        metavar="MODULE",
        help="Import this module first: it defines a custom core, encoder, loss or environment. MODULE:FUNCTION if a "
        "run names that function. May be repeated.",
    ),
]
"""A flag of every command; its value goes to `plugins.load`."""


def parse(
    kind: type[Arguments],
    argv: Sequence[str] | None,
    prog: str,
    description: str,
    default: Arguments = REQUIRED,
    first: Sequence[str] = (),
    more: Callable[[], str] | None = None,
    if_unknown: str = "",
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
      if_unknown: advice at the end of the line about an unknown flag.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    if "--version" in argv:
        print(f"{prog} {__version__}")
        raise SystemExit(0)
    if {"--help", "--help-all", "-h"} & set(argv):
        explained = () if "--help-all" in argv else first
        values = None if default is REQUIRED else default
        print(help_text(kind, values, prog, description, explained, more() if more and explained else ""))
        raise SystemExit(0)
    _check_given_once(kind, argv)
    if default is not REQUIRED and (found := _parse_given(default, argv)) is not None:
        return found
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), _wide_lines():
            return _cli(kind, default, argv, prog=prog, description=description)
    except SystemExit as end:
        if end.code:
            problem = plain_message(said.getvalue())
            if problem.startswith("Unrecognized"):
                unknown = set(problem.partition(": ")[2].split(", "))
                if {word.lower() for word in unknown} <= VALUES:
                    problem += SWITCHES
                elif hasattr(kind, "config") and unknown & {*configs.names()}:
                    problem += "; presets go after --config"
                elif (issubclass(kind, Config) or hasattr(kind, "env")) and unknown & {*SHORT_NAMES}:
                    problem += "; environments go after --env"
                elif hasattr(kind, "resume") and any(Path(each).exists() for each in unknown):
                    problem += "; a run goes on with --resume RUN"
                elif issubclass(kind, Config) and (meant := _named_elsewhere(unknown)):
                    problem = f"{problem.partition(';')[0]}; did you mean {' and '.join(meant)}?"
                else:
                    problem += if_unknown
            print(f"{prog}: {problem} (see {prog} --help)", file=sys.stderr)
        raise


@contextlib.contextmanager
def _wide_lines() -> Iterator[None]:
    """Context in which tyro does not break the lines of its messages, and so not the paths in them."""
    columns = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "100000"
    try:
        yield
    finally:
        os.environ.pop("COLUMNS")
        if columns is not None:
            os.environ["COLUMNS"] = columns


def _named_elsewhere(unknown: Iterable[str]) -> list[str]:
    """The flags for unknown ones that have other names in other libraries."""
    names = (word.removeprefix("--").partition("=")[0].replace("-", "_") for word in unknown if word.startswith("--"))
    return sorted({f"--{NAMES_ELSEWHERE[name].replace('_', '-')}" for name in names if name in NAMES_ELSEWHERE})


def _cli(kind: type[Arguments], default: Arguments, argv: Sequence[str], **options: Any) -> Arguments:
    config = (tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes)
    return tyro.cli(kind, args=argv, default=default, config=config, registry=registry, **options)


def _parse_given(default: Arguments, argv: Sequence[str]) -> Arguments | None:
    """As `parse`, but tyro reads only the fields whose flags are given, and so takes a fifth of the time.

    None for what has to be explained with all fields: flags or values that are wrong.
    """
    names = {word[2:].partition("=")[0].replace("-", "_") for word in argv if word.startswith("--")}
    given = _fields_of(default, {"imports" if name == "import" else name.removeprefix("no_") for name in names})
    if given is None:
        return None
    with contextlib.suppress(SystemExit, ValueError), contextlib.redirect_stderr(io.StringIO()):
        return _with_fields(default, _cli(type(given), given, argv))
    return None


def _fields_of(values: Any, names: set[str]) -> Any:
    """A dataclass like `values`, its sections included, of nothing but the fields `names`; None if it has none."""
    kept: dict[str, tuple[Any, Any]] = {}
    for field in fields(values):
        value = getattr(values, field.name)
        if is_dataclass(value):
            section = _fields_of(value, names)
            if section is not None:
                kept[field.name] = type(section), section
        elif field.name in names:
            kept[field.name] = field.type, value
    types = [(name, kind) for name, (kind, _) in kept.items()]
    no_source = {"__module__": "builtins"}  # where tyro looks for no texts for --help
    made = make_dataclass(type(values).__name__, types, namespace=no_source)
    return made(**{name: value for name, (_, value) in kept.items()}) if kept else None


def _with_fields(values: Any, others: Any) -> Any:
    """`values`, with what `others` has instead."""
    found = {field.name: getattr(others, field.name) for field in fields(others)}
    for name, other in found.items():
        if is_dataclass(other):
            found[name] = _with_fields(getattr(values, name), other)
    return replace(values, **found)


def sources(argv: Sequence[str] | None) -> argparse.Namespace:
    """The flags needed before the settings are parsed: config and resume determine the defaults; imports, env, core,
    encoder, loss and track may name modules to import; also run_dir and trust.

    Raises:
      ValueError: for a flag without its value.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for flag in ("--config", "--run-dir", "--run_dir", "--resume"):  # tyro takes both spellings
        parser.add_argument(flag, type=_path)
    for flag in ("--env", "--core", "--encoder", "--loss", "--track"):
        parser.add_argument(flag, type=lambda text: None if text == "None" else text)
    parser.add_argument("--import", dest="imports", action="append", default=[])
    parser.add_argument("--trust", action=argparse.BooleanOptionalAction, default=False)
    try:
        return parser.parse_known_args(argv)[0]
    except argparse.ArgumentError as error:
        problem = error.message.replace("expected one argument", "expected a value, got none")
        raise ValueError(f"{error.argument_name}: {problem}") from None


def _path(text: str) -> Path | None:
    if not text:
        raise argparse.ArgumentTypeError("expected a path, got an empty one")
    return None if text == "None" else expanded(text)  # as `parse` reads it


def import_typed(argv: Sequence[str] | None, modules: Sequence[str] = (), names: Sequence[str] = ()) -> Any:
    """Import the modules that the command line names, and further ones (see `plugins.load`); returns the `sources`."""
    found = sources(argv)
    named = (found.core, found.encoder, found.loss, found.track)
    plugins.load([*modules, *found.imports], *names, *named, env=found.env)
    return found


def check_names(config: Config, source: object) -> None:
    """Reject an unknown name, or a module that only a file names, before any slow import.

    Args:
      config: the settings.
      source: the file they may come from; None: they come from flags.

    Raises:
      ValueError: with the nearest known name, or what to type.
    """
    from rmc_agents.envs import names

    plugins.check_named(config.env.env, source or "--env")
    names.check(config.env.env)
    config.check_parts()


def _check_given_once(kind: type[Any], argv: Sequence[str]) -> None:
    """Raises ValueError for a flag of several values that is repeated: only the last would count."""
    given = Counter(word[2:].partition("=")[0].replace("-", "_") for word in argv if word.startswith("--"))
    for name, times in given.items():
        if times > 1 and name in _of_several_values(kind):
            flag = name.replace("_", "-")
            raise ValueError(f"--{flag}: expected once, followed by all its values, got it {times} times")


def _of_several_values(kind: type[Any]) -> set[str]:
    """Names of fields that hold several values, those of sections included; not of those whose flag may be repeated."""
    names = set()
    for field in fields(kind):
        if is_dataclass(field.type):
            names |= _of_several_values(field.type)  # type: ignore[arg-type]
        parts = (field.type, *get_args(field.type))
        several = any((get_origin(part) or part) in (tuple, list, dict) for part in parts)
        if several and tyro.conf.UseAppendAction not in parts:
            names.add(field.name)
    return names


def check_unused(arguments: Any, when: str, *names: str) -> None:
    """Raises ValueError for an option of a dataclass that has no effect then, but differs from its default."""
    defaults = {field.name: field.default for field in fields(arguments)}
    for name in names:
        if getattr(arguments, name) != defaults[name]:
            raise ValueError(f"--{name.replace('_', '-')}: has no effect {when}; leave it out")


def check_numbers(arguments: Any, *names: str) -> None:
    """Raises ValueError for a number below 1 or a seed out of range; None, an option that is not given, passes."""
    for name in names:
        value, least = getattr(arguments, name), 0 if name == "seed" else 1
        if value is None:
            continue
        if not isinstance(value, int):
            raise ValueError(f"--{name.replace('_', '-')}: expected an integer, got {value!r}")
        if value < least:
            raise ValueError(f"--{name.replace('_', '-')}: expected at least {least}, got {value}")
        if name == "seed" and value >= SEEDS:
            raise ValueError(f"--seed: expected less than {SEEDS:,}, got {value}")
