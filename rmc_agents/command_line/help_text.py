"""The --help of a command: its flags with their defaults, described by the docstrings of its dataclass."""

import ast
import inspect
import re
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import tyro

INDENT = 2
COLUMN = 30  # where explanations start
WIDEST = 110
ARGUMENTS = "arguments"  # the heading of those without a flag
PLACEHOLDERS = {Path: "PATH", int: "N", float: "X", str: "NAME"}
"""Type -> what stands for a value if there is no default."""


@dataclass(frozen=True)
class Entry:
    """A flag or a positional argument in --help."""

    name: str
    """Of the dataclass's field."""
    shown: str
    """The flag and its default value, or the argument's placeholder."""
    text: str
    section: str
    """Its heading."""


def help_text(kind: type, default: Any, prog: str, description: str, first: Sequence[str] = (), more: str = "") -> str:
    """The text of --help.

    Args:
      kind: the dataclass of the settings; its fields may be dataclasses.
      default: an object of it, with the defaults; None: they are the dataclass's own.
      prog: the command's name.
      description: text at the start; its paragraphs are wrapped, but not those that begin with a space.
      first: names of the settings to explain, leaving the others to --help-all; empty: all.
      more: text at the end.
    """
    entries = list(_entries(kind, default))
    if first:
        named = {entry.name: entry for entry in entries}
        shown = [replace(named[name], section="most used flags, with their defaults") for name in first]
    else:
        shown = entries
    arguments = [entry.shown for entry in entries if entry.section == ARGUMENTS]
    lines = [" ".join(["usage:", prog, *arguments, "[FLAGS]"]), ""]
    for paragraph in description.split("\n\n"):
        lines += [paragraph] if paragraph.startswith(" ") else _wrapped(paragraph, 0)
        lines.append("")
    section = ""
    for entry in shown:
        if entry.section != section:
            lines += [*([""] if section else []), f"{entry.section}:"]
            section = entry.section
        lines += _lines(entry)
    if more:
        lines += ["", more]
    if first:
        lines += ["", f"{prog} --help-all explains the other {len(entries) - len(first)} flags too."]
    return "\n".join(lines)


def names_entry(title: str, names: Iterable[str]) -> str:
    """A list of names as a paragraph of --help."""
    text = ", ".join(names)
    return "\n".join([f"{title}:", *_wrapped(text, INDENT)])


def _entries(kind: Any, values: Any, section: str = "flags, with their defaults") -> Iterator[Entry]:
    """The settings of a dataclass: the arguments, its own flags, and those of its sections."""
    documents, hints = docstrings(kind), get_type_hints(kind, include_extras=True)
    own: list[Entry] = []
    sections: list[Entry] = []
    for each in fields(kind):
        hint = hints[each.name]
        if is_dataclass(hint):
            title = str(hint.__doc__).partition(".")[0]
            sections += _entries(hint, getattr(values, each.name, None), title[0].lower() + title[1:])
            continue
        value = getattr(values, each.name) if values is not None else _default(each)
        metadata = getattr(hint, "__metadata__", ())
        mark = next((mark for mark in metadata if hasattr(mark, "metavar")), None)  # by `tyro.conf.arg`
        text = (mark and mark.help) or documents.get(each.name, "")
        name = (mark and mark.name) or each.name
        placeholder = (mark and mark.metavar) or _placeholder(hint)
        if tyro.conf.Positional in metadata:
            yield Entry(each.name, placeholder, text, ARGUMENTS)
        else:
            text = f"{text} Default: on." if value is True else _with_choices(text, hint)
            own.append(Entry(each.name, _flag(name, value, placeholder), text, section))
    yield from [*own, *sections]


@cache
def docstrings(kind: type) -> dict[str, str]:
    """The docstring below each field of a dataclass, base classes included, as one line."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-1]):
        tree = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        assert isinstance(tree, ast.ClassDef)
        for statement, follower in zip(tree.body, tree.body[1:], strict=False):
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                match follower:
                    case ast.Expr(ast.Constant(str(text))):
                        found[statement.target.id] = " ".join(text.split())
    return found


def _default(field: Any) -> Any:
    return field.default_factory() if field.default_factory is not MISSING else field.default


def _placeholder(hint: Any) -> str:
    """What stands for a flag's values in --help, by their type."""
    kind, parts = get_origin(hint), [part for part in get_args(hint) if part is not type(None)]
    if kind is Annotated:
        return _placeholder(parts[0])
    if kind is dict:
        return "NAME=VALUE ..."
    if kind is tuple:
        return "'{NAME: VALUE, ...}' ..." if get_origin(parts[0]) is dict else f"{_placeholder(parts[0])} ..."
    if kind is Literal:
        return "|".join(map(str, parts))
    return "|".join(map(_placeholder, parts)) if parts else PLACEHOLDERS.get(hint, "")  # parts: of a union


def _choices(hint: Any) -> list[Any]:
    """The values of the Literals in a type."""
    if get_origin(hint) is Literal:
        return [*get_args(hint)]
    return [choice for part in get_args(hint) for choice in _choices(part)]


def _with_choices(text: str, hint: Any) -> str:
    """A flag's help text, and the values it takes unless the text names them."""
    choices = [str(choice) for choice in _choices(hint)]
    if all(re.search(rf"\b{re.escape(choice)}\b", text) for choice in choices):
        return text
    return f"{text} One of {', '.join(choices)}."


def _flag(name: str, value: Any, placeholder: str) -> str:
    flag = f"--{name.replace('_', '-')}"
    if isinstance(value, bool):
        return f"--[no-]{flag[2:]}" if value else flag
    if value in (None, (), {}, ""):
        return f"{flag} {placeholder}"
    values = value if isinstance(value, tuple) else (value,)
    return f"{flag} {' '.join(map(str, values))}"


def _lines(entry: Entry) -> list[str]:
    lines = _wrapped(entry.text, COLUMN)
    if len(entry.shown) + INDENT + 1 >= COLUMN:
        return [" " * INDENT + entry.shown, *lines]
    return [f"{' ' * INDENT}{entry.shown}".ljust(COLUMN) + lines[0].lstrip(), *lines[1:]]


def _wrapped(text: str, indent: int) -> list[str]:
    text = " ".join(text.split())
    width = min(WIDEST, shutil.get_terminal_size().columns)
    space = " " * indent
    wrapped = textwrap.wrap(text, width, initial_indent=space, subsequent_indent=space, break_on_hyphens=False)
    return wrapped or [""]
