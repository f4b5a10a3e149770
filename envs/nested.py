"""Nested spaces and observations as their leaves.

A leaf's path is the keys that lead to it, `("camera",)` in a Dict, `("arm", "0")` in a Tuple inside a Dict; its name is
the path with slashes, `arm/0`. What is not nested is one leaf with an empty path.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from gymnasium.spaces import Dict, Space, Text, Tuple

Place = tuple[str, ...]


def leaves(space: Space[Any], path: Place = ()) -> dict[Place, Space[Any]]:
    """The spaces inside a space, in its order, by their paths; texts included."""
    return (
        {place: leaf for key, part in _parts(space) for place, leaf in leaves(part, (*path, key)).items()}
        if is_nested(space)
        else {path: space}
    )


def is_nested(space: Space[Any]) -> bool:
    """Whether there are spaces inside it."""
    return isinstance(space, Dict | Tuple)


def numbers(space: Space[Any]) -> dict[Place, Space[Any]]:
    """The leaves without texts, of which agents read none."""
    return {path: leaf for path, leaf in leaves(space).items() if not isinstance(leaf, Text)}


def rebuild(space: Space[Any], values: Mapping[Place, Any], path: Place = ()) -> Any:
    """A dict or tuple of the space's structure with these leaves; None where there is no value."""
    if not is_nested(space):
        return values.get(path)
    parts = {key: rebuild(part, values, (*path, key)) for key, part in _parts(space)}
    return tuple(parts.values()) if isinstance(space, Tuple) else parts


def _parts(space: Any) -> Iterable[tuple[str, Space[Any]]]:
    return space.spaces.items() if isinstance(space, Dict) else ((str(i), part) for i, part in enumerate(space.spaces))


def pick(observation: Any, path: Place) -> Any:
    """The part of an observation, of one lane or of all.

    Raises:
      ValueError: if it is not there.
    """
    part = observation
    for depth, key in enumerate(path):
        try:
            part = part[key] if isinstance(part, Mapping) else part[int(key)]
        except (KeyError, IndexError, TypeError, ValueError):
            raise ValueError(
                f"expected an observation with {name_of(path[: depth + 1])!r}, got {_shown(part)}"
            ) from None
    return part


def name_of(path: Place) -> str:
    """`arm/0`; nothing for what is not nested."""
    return "/".join(path)


def _shown(part: Any) -> str:
    return f"a dict of {sorted(part)}" if isinstance(part, Mapping) else f"a {type(part).__name__}"
