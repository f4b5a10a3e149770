"""Machine code that numba caches, under names that change with the sources."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any


def named_by_sources(function: Callable[..., Any], folder: Path) -> Callable[..., Any]:
    """The function, with the time of the folder's newest Python file in its name.

    Numba's cache checks the file of a function, but not those of the functions that it calls.
    """
    function.__qualname__ += f"_{_newest(folder)}"
    return function


@cache
def _newest(folder: Path) -> int:
    return max(path.stat().st_mtime_ns for path in folder.rglob("*.py"))
