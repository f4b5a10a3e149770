"""Checks the structure of a tree from a file before anything is restored from it.

The expected tree is made by the code that saves one: keys, lengths, types, dtypes and shapes must be equal. Values may
differ, but counts must not be negative, and no number may be NaN or infinite, except where the expected array has such
numbers, as masks have infinite ones.
"""

import reprlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from .types import map_leaves

ANYTHING: Any = object()
"""Placeholder in an expected tree: this part is checked by the code that restores it."""
COUNT_LIMIT = 2**63  # exclusive


class Either:
    """Placeholder in an expected tree: like one of these."""

    def __init__(self, *kinds: Any) -> None:
        self.kinds = kinds


def unbounded(state: Any) -> Any:
    """The expected tree of numbers that may be infinite, as the logarithm of 0 in a recurrent state is; NaN stays."""

    def infinite(leaf: torch.Tensor) -> torch.Tensor:
        has_values = leaf.is_floating_point() and not leaf.is_meta
        return torch.where(leaf.isnan(), leaf, torch.inf) if has_values else leaf

    return map_leaves(infinite, state)


def check_like(found: Any, expected: Any, name: str) -> None:
    """Compare a checkpoint's tree with the expected one.

    Args:
      found: the tree, or a part of it.
      expected: a tree with the same structure; it may contain `ANYTHING` and `Either`.
      name: the part's name, for the message.

    Raises:
      ValueError: naming the first part that differs.
    """
    if expected is ANYTHING:
        return
    match expected:
        case Either():
            _check_either(found, expected.kinds, name)
        case dict():
            _check_keys(found, expected, name)
            for key, kind in expected.items():
                check_like(found[key], kind, f"{name}/{key}")
        case list() | tuple():
            if not isinstance(found, list | tuple) or len(found) != len(expected):
                got = f"{len(found)}" if isinstance(found, list | tuple) else type(found).__name__
                raise _unlike(name, f"{len(expected)} parts", got)
            for i, (part, kind) in enumerate(zip(found, expected, strict=True)):
                check_like(part, kind, f"{name}/{i}")
        case torch.Tensor() | np.ndarray():
            _check_array(found, expected, name)
        case _:
            _check_plain(found, expected, name)


def check_progress(tree: Mapping[str, Any]) -> None:
    """Raises ValueError unless `frames`, `updates` and `seconds` are valid counts."""
    for name, kind in (("frames", 0), ("updates", 0), ("seconds", 0.0)):
        check_like(tree[name], kind, name)
    if tree["seconds"] < 0:
        raise _unlike("seconds", "a number of at least 0", str(tree["seconds"]))


def _check_either(found: Any, kinds: tuple[Any, ...], name: str) -> None:
    """Raises the last kind's error if none fits."""
    for kind in kinds[:-1]:
        try:
            return check_like(found, kind, name)
        except ValueError:
            continue
    check_like(found, kinds[-1], name)


def _check_array(found: Any, expected: torch.Tensor | np.ndarray, name: str) -> None:
    is_tensor = isinstance(expected, torch.Tensor)
    if isinstance(found, torch.Tensor) != is_tensor or not isinstance(found, torch.Tensor | np.ndarray):
        raise _unlike(name, "a tensor" if is_tensor else "an array", type(found).__name__)
    if found.dtype != expected.dtype or found.shape != expected.shape:
        raise _unlike(name, *(f"{array.dtype} {list(array.shape)}" for array in (expected, found)))
    if not _is_finite(found) and (_is_finite(expected) or (_has_nan(found) and not _has_nan(expected))):
        raise _unlike(name, "finite numbers", "NaN or infinity")


def _is_finite(array: torch.Tensor | np.ndarray) -> bool:
    values = torch.as_tensor(array)
    return values.is_meta or not values.is_floating_point() or bool(values.isfinite().all())


def _has_nan(array: torch.Tensor | np.ndarray) -> bool:
    return bool(torch.as_tensor(array).isnan().any())


def _check_plain(found: Any, expected: Any, name: str) -> None:
    if type(found) is not type(expected):
        raise _unlike(name, f"a {type(expected).__name__}", reprlib.repr(found))
    if isinstance(found, int) and not 0 <= found < COUNT_LIMIT:
        raise _unlike(name, "a number of at least 0, below 2**63", reprlib.repr(found))
    if isinstance(found, float) and not np.isfinite(found):
        raise _unlike(name, "a finite number", str(found))


def _check_keys(found: Any, expected: dict[str, Any], name: str) -> None:
    if not isinstance(found, dict):
        raise _unlike(name, "a dict", type(found).__name__)
    for missing in expected.keys() - found.keys():
        raise ValueError(f"{name}: {missing} is missing")
    for unknown in found.keys() - expected.keys():
        raise ValueError(f"{name}: unknown part {reprlib.repr(unknown)}")


def _unlike(name: str, expected: str, got: str) -> ValueError:
    return ValueError(f"{name}: expected {expected}, got {got}")
