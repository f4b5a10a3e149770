"""The short --help of a command: its most used flags, described by the docstrings of its dataclasses."""

import ast
import inspect
import shutil
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, get_type_hints

INDENT = 2
COLUMN = 30  # where explanations start
WIDEST = 110


def first_help(settings: Any, prog: str, description: str, first: Sequence[str], more: str = "") -> str:
    """The text of --help.

    Args:
      settings: a dataclass with the defaults; its fields may be dataclasses.
      prog: the command's name.
      description: text at the start.
      first: names of the settings to explain.
      more: text at the end.
    """
    values = {name: (flag, text) for name, flag, text in _flags(settings)}
    lines = [f"usage: {prog} [FLAGS]", "", description, "", "most used flags, with their defaults:"]
    for name in first:
        lines += _entry(*values[name])
    rest = len(values) - len(first)
    lines += ["", *([more, ""] if more else []), f"{prog} --help-all explains the other {rest} flags too."]
    return "\n".join(lines)


def names_entry(title: str, names: Iterable[str]) -> str:
    """A list of names as a paragraph of --help."""
    text = ", ".join(names)
    return "\n".join([f"{title}:", *_wrapped(text, INDENT)])


def _flags(settings: Any) -> Iterable[tuple[str, str, str]]:
    """For each setting: its name, its flag with the default value, and its help text."""
    kind: Any = type(settings)
    documents, hints = docstrings(kind), get_type_hints(type(settings), include_extras=True)
    for each in fields(settings):
        value = getattr(settings, each.name)
        if is_dataclass(value):
            yield from _flags(value)
            continue
        marks = [mark for mark in getattr(hints[each.name], "__metadata__", ()) if getattr(mark, "help", None)]
        if marks:  # by `tyro.conf.arg`
            yield each.name, f"--{marks[0].name or each.name} {marks[0].metavar}", marks[0].help
        else:
            yield each.name, _flag(each.name, value), documents.get(each.name, "")


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


def _flag(name: str, value: Any) -> str:
    flag = f"--{name.replace('_', '-')}"
    if isinstance(value, bool):
        return flag if not value else f"--no-{flag[2:]}"
    if value in (None, ()):
        return f"{flag} {name.upper()}"
    return f"{flag} {value}"


def _entry(flag: str, text: str) -> list[str]:
    lines = _wrapped(text, COLUMN)
    if len(flag) + INDENT + 1 >= COLUMN:
        return [" " * INDENT + flag, *lines]
    return [f"{' ' * INDENT}{flag}".ljust(COLUMN) + lines[0].lstrip(), *lines[1:]]


def _wrapped(text: str, indent: int) -> list[str]:
    width = min(WIDEST, shutil.get_terminal_size().columns)
    space = " " * indent
    wrapped = textwrap.wrap(text, width, initial_indent=space, subsequent_indent=space, break_on_hyphens=False)
    return wrapped or [""]
