"""Access to the leaves of nested spaces and observations.

A leaf's path is the keys that lead to it, `("camera",)` in a Dict, `("arm", "0")` in a Tuple inside a Dict; its name is
the path joined by slashes, `arm/0`. An observation that is not nested is one leaf with an empty path.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from gymnasium.spaces import Dict, Space, Text, Tuple

KeyPath = tuple[str, ...]

MAX_CATEGORIES = 2**16
"""Limit per observation: each category is a row of weights in the encoder's first layer."""


def leaves(space: Space[Any], path: KeyPath = ()) -> dict[KeyPath, Space[Any]]:
    """The leaf spaces of a space by path, in its order, text spaces included."""
    return (
        {place: leaf for key, part in _parts(space) for place, leaf in leaves(part, (*path, key)).items()}
        if is_nested(space)
        else {path: space}
    )


def is_nested(space: Space[Any]) -> bool:
    """Whether a space contains other spaces."""
    return isinstance(space, Dict | Tuple)


def numeric_leaves(space: Space[Any]) -> dict[KeyPath, Space[Any]]:
    """The leaves except text spaces, which agents cannot read."""
    return {path: leaf for path, leaf in leaves(space).items() if not isinstance(leaf, Text)}


def rebuild(space: Space[Any], values: Mapping[KeyPath, Any], path: KeyPath = ()) -> Any:
    """A dict or tuple with the space's structure and these leaves; None for missing values."""
    if not is_nested(space):
        return values.get(path)
    parts = {key: rebuild(part, values, (*path, key)) for key, part in _parts(space)}
    return tuple(parts.values()) if isinstance(space, Tuple) else parts


def _parts(space: Any) -> Iterable[tuple[str, Space[Any]]]:
    if not isinstance(space, Dict):
        return ((str(i), part) for i, part in enumerate(space.spaces))
    if wrong := [key for key in space.spaces if not isinstance(key, str)]:
        raise ValueError(f"a Dict space: expected keys that are strings, got {wrong[0]!r}")
    return space.spaces.items()


def pick(observation: Any, path: KeyPath) -> Any:
    """A part of an observation, for one lane or all.

    Raises:
      ValueError: if it is missing.
    """
    part = observation
    for depth, key in enumerate(path):
        try:
            part = part[key] if isinstance(part, Mapping) else part[int(key)]
        except (KeyError, IndexError, TypeError, ValueError):
            raise ValueError(
                f"expected an observation with {path_name(path[: depth + 1])!r}, got {_shown(part)}"
            ) from None
    return part


def path_name(path: KeyPath) -> str:
    """The name of a path, such as `arm/0`; '' for the empty path."""
    return "/".join(path)


def _shown(part: Any) -> str:
    return f"a dict of {sorted(part)}" if isinstance(part, Mapping) else f"a {type(part).__name__}"
