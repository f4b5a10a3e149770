"""YAML from whomever: plain values, each key once, of few levels; anything else is one line of error."""

import reprlib
from os import PathLike
from pathlib import Path
from typing import Any

import yaml

MOST_LEVELS = 20  # a sweep's file has 4


def read_yaml(path: str | PathLike[str]) -> dict[str, Any]:
    """The names and values of a YAML file. Raises ValueError if it cannot be read or holds something else."""
    try:
        text = Path(path).read_text()
    except OSError as error:
        raise ValueError(f"cannot read the config {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no YAML: {error}") from error
    settings = parse_yaml(text, str(path))
    if settings is None:
        settings = {}
    if not isinstance(settings, dict):
        raise ValueError(f"{path}: expected lines of 'name: value', got a {type(settings).__name__}")
    return settings


def parse_yaml(text: str, source: str) -> Any:
    """The value of a YAML text.

    Raises:
      ValueError: beginning with `source`, if it is no YAML, has a key twice, or is nested deeper than `MOST_LEVELS`.
    """
    try:
        return yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date that does not exist
        raise ValueError(f"{source} is no YAML: {' '.join(str(error).split())}") from None


class _Loader(yaml.SafeLoader):
    """Plain values only, each key once."""

    levels = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Counts how deep it is."""
        self.levels += 1
        if self.levels > MOST_LEVELS:
            raise yaml.YAMLError(f"expected at most {MOST_LEVELS} levels, got more")
        node = super().compose_node(parent, index)
        self.levels -= 1
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Looks at the keys as they are written: once constructed, a later one has replaced an earlier one."""
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                line = key.start_mark.line + 1
                raise yaml.YAMLError(f"expected each key once, got {key.value!r} again in line {line}")
            seen.add(key.value)
        return node


def shortened(value: Any) -> str:
    """A value for an error message; a file's may be of any size, and within itself."""
    short = reprlib.Repr()
    short.maxlevel, short.maxstring, short.maxother = 2, 80, 80
    return short.repr(value)
