"""How the values of flags are written: integers as 1e6, paths with ~, mappings as NAME=VALUE or in YAML."""

import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from rmc_agents.config.plain_yaml import dump_yaml, parse_yaml

registry = ConstructorRegistry()
"""Rules for tyro, by a field's type."""


@registry.primitive_rule
def _rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """How a field's type is read and shown, where tyro's own way will not do."""
    if info.type is int:
        return PrimitiveConstructorSpec(
            nargs=1,
            metavar="INT",
            instance_from_str=lambda texts: _integer(texts[0]),
            is_instance=lambda value: isinstance(value, int) and not isinstance(value, bool),
            str_from_instance=lambda value: [str(value)],
        )
    if info.type is Path:  # a shell leaves ~ unchanged in --flag=~/file
        return PrimitiveConstructorSpec(
            nargs=1,
            metavar="PATH",
            instance_from_str=lambda texts: expanded(texts[0]),
            is_instance=lambda value: isinstance(value, Path),
            str_from_instance=lambda path: [str(path)],
        )
    if get_origin(info.type) is dict:
        return PrimitiveConstructorSpec(
            nargs="*",
            metavar="NAME=VALUE [NAME=VALUE ...]",
            instance_from_str=assignments,
            is_instance=lambda value: isinstance(value, dict),
            str_from_instance=lambda pairs: [f"{name}={_as_yaml(value)}" for name, value in pairs.items()] or ["none"],
        )
    if get_origin(info.type) is tuple and get_origin(get_args(info.type)[0]) is dict:
        return PrimitiveConstructorSpec(
            nargs="*",
            metavar="'{NAME: VALUE, ...}' ...",
            instance_from_str=lambda texts: tuple(each for text in texts for each in _mappings_in(text)),
            is_instance=lambda value: isinstance(value, tuple),
            str_from_instance=lambda mappings: [*map(_as_yaml, mappings)] or ["none"],
        )
    return None


def _integer(text: str) -> int:
    """An integer, as 1e6 too, as in YAML."""
    if re.fullmatch(r"[+-]?\d+(\.\d*)?e\+?\d+", text, re.IGNORECASE) and float(text).is_integer():
        return int(float(text))
    return int(text)


def expanded(text: str) -> Path:
    """The path; ~ and ~NAME at its start are the home folders of users that exist."""
    return Path(os.path.expanduser(text))  # Path.expanduser raises RuntimeError for unknown users


def _mappings_in(text: str) -> list[dict[str, Any]]:
    """One mapping in YAML, or a list of them."""
    value = parse_yaml(text, "a mapping")
    mappings = value if isinstance(value, list) else [value]
    if not all(isinstance(each, dict) for each in mappings):
        raise ValueError(f"expected {{NAME: VALUE, ...}}, got {text!r}")
    return mappings


def assignments(texts: Sequence[str]) -> dict[str, Any]:
    """Parse NAME=VALUE texts, with values in YAML syntax. Raises ValueError for anything else, or a repeated name."""
    values: dict[str, Any] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not name or not separator:
            raise ValueError(f"expected NAME=VALUE, got {text!r}")
        if re.match(r"[^\[{\"']*,\s*\w+=", value):
            raise ValueError(f"expected spaces between one NAME=VALUE and the next, got {text!r}")
        if name in values:
            raise ValueError(f"expected each name once, got {name} again")
        values[name] = parse_yaml(value, name)
    return values


def _as_yaml(value: Any) -> str:
    text: str = dump_yaml(value, default_flow_style=True, width=math.inf)
    return text.removesuffix("\n").removesuffix("\n...")
