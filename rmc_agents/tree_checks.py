"""Whether a tree out of a file is like one that this program would have saved: found out before anything is restored.

What is expected is such a tree itself, made by the code that would save it: same keys and lengths, same types, dtypes
and shapes. Values may differ, but counts are not negative, and no number is NaN or infinite.
"""

import reprlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

ANYTHING: Any = object()
"""In an expected tree: this part is checked by the code that restores it."""
MOST = 2**63  # counts are below


class Either:
    """In an expected tree: like one of these."""

    def __init__(self, *kinds: Any) -> None:
        self.kinds = kinds


def check_like(found: Any, expected: Any, name: str) -> None:
    """Compare a tree of a checkpoint with the one that is expected.

    Args:
      found: the tree, or a part of it.
      expected: a tree like it; `ANYTHING` and `Either` may be in it.
      name: of the part, for the message.

    Raises:
      ValueError: naming the first place that is not as expected.
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
    """Raises ValueError unless `frames`, `updates` and `seconds` are as a run counts them."""
    for name, kind in (("frames", 0), ("updates", 0), ("seconds", 0.0)):
        check_like(tree[name], kind, name)
    if tree["seconds"] < 0:
        raise _unlike("seconds", "no negative number", str(tree["seconds"]))


def _check_either(found: Any, kinds: tuple[Any, ...], name: str) -> None:
    """The last kind's complaint, if it is like none."""
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
    values = torch.as_tensor(found)
    if values.is_floating_point() and not values.isfinite().all():
        raise _unlike(name, "finite numbers", "NaN or infinity")


def _check_plain(found: Any, expected: Any, name: str) -> None:
    if type(found) is not type(expected):
        raise _unlike(name, f"a {type(expected).__name__}", reprlib.repr(found))
    if isinstance(found, int) and not 0 <= found < MOST:
        raise _unlike(name, "a number of at least 0, below 2**63", reprlib.repr(found))
    if isinstance(found, float) and not np.isfinite(found):
        raise _unlike(name, "a finite number", str(found))


def _check_keys(found: Any, expected: dict[str, Any], name: str) -> None:
    if not isinstance(found, dict):
        raise _unlike(name, "a dict", type(found).__name__)
    for missing in expected.keys() - found.keys():
        raise ValueError(f"{name}: {missing} is missing")
    for unknown in found.keys() - expected.keys():
        raise ValueError(f"{name}: there is no such part as {reprlib.repr(unknown)}")


def _unlike(name: str, expected: str, got: str) -> ValueError:
    return ValueError(f"{name}: expected {expected}, got {got}")
