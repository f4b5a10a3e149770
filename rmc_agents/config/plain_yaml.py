"""Safe YAML parsing: plain values, unique keys, limited size and depth, one-line errors."""

import re
import reprlib
from os import PathLike
from typing import Any

import yaml

from rmc_agents.files import read_regular

MAX_LEVELS = 20  # a sweep file has 4
MAX_VALUES = 100_000  # aliases expanded: a few lines of aliases can expand to billions


def read_yaml(path: str | PathLike[str]) -> dict[str, Any]:
    """Read a YAML mapping. Raises ValueError if the file cannot be read or holds anything else."""
    try:
        text = read_regular(path).decode()
    except OSError as error:
        raise ValueError(f"cannot read the config {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not valid YAML: {error}") from error
    settings = parse_yaml(text, str(path))
    if not isinstance(settings, dict):
        got = "none" if settings is None else f"a {type(settings).__name__}"
        raise ValueError(f"{path}: expected lines of 'name: value', got {got}")
    return settings


def parse_yaml(text: str, source: str) -> Any:
    """The value of a YAML text.

    Raises:
      ValueError: beginning with `source`, if it is not valid YAML, repeats a key, is nested deeper than `MAX_LEVELS`,
        or has more than `MAX_VALUES` values.
    """
    try:
        return yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError, LookupError, ArithmeticError, AttributeError) as error:  # of dates, after tags
        raise ValueError(f"{source} is not valid YAML: {' '.join(str(error).split())}") from None


class _Loader(yaml.SafeLoader):
    """Plain values only, each key once; numbers such as 1e-3 too, which YAML 1.1 takes for text."""

    levels = 0
    values = 0

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.values_in: dict[yaml.Node | None, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Tracks the depth and the number of values with aliases expanded."""
        self.levels += 1
        if self.levels > MAX_LEVELS:
            raise yaml.YAMLError(f"expected at most {MAX_LEVELS} levels, got more")
        is_alias, before = self.check_event(yaml.AliasEvent), self.values
        node = super().compose_node(parent, index)
        self.values += self.values_in.get(node, MAX_VALUES) if is_alias else 1  # no count yet: an alias inside itself
        if self.values > MAX_VALUES:
            raise yaml.YAMLError(f"expected at most {MAX_VALUES:,} values with aliases expanded, got more")
        self.values_in[node] = self.values - before
        self.levels -= 1
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Rejects repeated keys here, because in the constructed dict a later key replaces an earlier one."""
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                line = key.start_mark.line + 1
                raise yaml.YAMLError(f"expected each key once, got {key.value!r} again in line {line}")
            seen.add(key.value)
        return node


class _Dumper(yaml.SafeDumper):
    """Quotes texts that `_Loader` would take for numbers."""


for _each in (_Loader, _Dumper):
    _each.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
    )


def dump_yaml(value: Any, **style: Any) -> str:
    """YAML text that `parse_yaml` reads as an equal value."""
    text: str = yaml.dump(value, Dumper=_Dumper, **style)
    return text


def shortened(value: Any) -> str:
    """A short repr for error messages; a value from a file may be huge or contain itself."""
    short = reprlib.Repr()
    short.maxlevel, short.maxstring, short.maxother = 2, 80, 80
    return short.repr(value)
