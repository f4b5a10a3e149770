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
def _integers(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[int] | None:
    """Lets integers be given as 1e6 too, as in YAML."""
    if info.type is not int:
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT",
        instance_from_str=lambda texts: _integer(texts[0]),
        is_instance=lambda value: isinstance(value, int) and not isinstance(value, bool),
        str_from_instance=lambda value: [str(value)],
    )


def _integer(text: str) -> int:
    if re.fullmatch(r"[+-]?\d+(\.\d*)?e\+?\d+", text, re.IGNORECASE) and float(text).is_integer():
        return int(float(text))
    return int(text)


@registry.primitive_rule
def _paths(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Path] | None:
    """Expands ~ in paths: a shell leaves it unchanged in --flag=~/file."""
    if info.type is not Path:
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="PATH",
        instance_from_str=lambda texts: expanded(texts[0]),
        is_instance=lambda value: isinstance(value, Path),
        str_from_instance=lambda path: [str(path)],
    )


def expanded(text: str) -> Path:
    """The path; ~ and ~NAME at its start are the home folders of users that exist."""
    return Path(os.path.expanduser(text))  # Path.expanduser raises RuntimeError for unknown users


@registry.primitive_rule
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


@registry.primitive_rule
def _lists_of_mappings(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[tuple[dict[str, Any], ...]] | None:
    """Lets flags take a list of mappings in YAML: each as one argument, or all as a list."""
    if get_origin(info.type) is not tuple or get_origin(get_args(info.type)[0]) is not dict:
        return None
    return PrimitiveConstructorSpec(
        nargs="*",
        metavar="'{NAME: VALUE, ...}' ...",
        instance_from_str=lambda texts: tuple(each for text in texts for each in _mappings_in(text)),
        is_instance=lambda value: isinstance(value, tuple),
        str_from_instance=lambda mappings: [*map(_as_yaml, mappings)] or ["none"],
    )


def _mappings_in(text: str) -> list[dict[str, Any]]:
    value = parse_yaml(text, "a mapping")
    mappings = value if isinstance(value, list) else [value]
    if not all(isinstance(each, dict) for each in mappings):
        raise ValueError(f"expected {{NAME: VALUE, ...}}, got {text!r}")
    return mappings


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
