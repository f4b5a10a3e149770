"""YAML from whomever: plain values, each key once, of few levels; anything else is one line of error."""

import reprlib
from os import PathLike
from typing import Any

import yaml

from rmc_agents.files import read_regular

MOST_LEVELS = 20  # a sweep's file has 4
MOST_VALUES = 100_000  # what an alias repeats counts every time: a few lines of aliases can stand for billions


def read_yaml(path: str | PathLike[str]) -> dict[str, Any]:
    """The names and values of a YAML file. Raises ValueError if it cannot be read or holds something else."""
    try:
        text = read_regular(path).decode()
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
      ValueError: beginning with `source`, if it is no YAML, has a key twice, is nested deeper than `MOST_LEVELS`, or
        has more than `MOST_VALUES` values.
    """
    try:
        return yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date that does not exist
        raise ValueError(f"{source} is no YAML: {' '.join(str(error).split())}") from None


class _Loader(yaml.SafeLoader):
    """Plain values only, each key once."""

    levels = 0
    values = 0

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.values_in: dict[yaml.Node | None, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Counts how deep it is, and how many values there are once every alias stands for what it names."""
        self.levels += 1
        if self.levels > MOST_LEVELS:
            raise yaml.YAMLError(f"expected at most {MOST_LEVELS} levels, got more")
        is_alias, before = self.check_event(yaml.AliasEvent), self.values
        node = super().compose_node(parent, index)
        self.values += self.values_in.get(node, MOST_VALUES) if is_alias else 1  # none yet: an alias within itself
        if self.values > MOST_VALUES:
            raise yaml.YAMLError(f"expected at most {MOST_VALUES:,} values, got more, by its aliases")
        self.values_in[node] = self.values - before
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
