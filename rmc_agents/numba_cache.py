"""Numba's compiler with a cache that several processes, users and kinds of machine can share.

Imports nothing of this project, so that environments and kernels may both use it.
"""

import secrets
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numba
from numba.core.caching import FunctionCache, IndexDataCacheFile


def compiled(function: Callable[..., Any], folder: Path, **options: Any) -> Any:
    """The function, compiled at its first call, or loaded from the cache.

    Args:
      function: it may be defined several times, with other constants.
      folder: of the functions that it calls. Numba's cache checks the function's own file alone, so cached code has the
        time of the folder's newest file in its name.
      options: of `numba.njit`.
    """
    function.__qualname__ += f"_{_newest(folder)}"
    made = numba.njit(**options)(function)
    with suppress(RuntimeError):  # no folder for the cache can be written
        if not numba.config.CACHE_DIR:
            Path.home()  # raises where there is none, and numba would make a folder named "~"
        made._cache = Cache(function)
    return made


@cache
def _newest(folder: Path) -> int:
    return max(path.stat().st_mtime_ns for path in folder.rglob("*.py"))


class Files(IndexDataCacheFile):
    """The files of a function: an index, and one for each signature, kind of processor and set of constants.

    Numba numbers those. Two processes that save at once could take the same number, and one would from then on load the
    other's code: here they are drawn at random.
    """

    def _data_name(self, number: int) -> str:
        return super()._data_name(secrets.randbits(63))


class Cache(FunctionCache):
    """A function's cache. What cannot be saved or loaded is compiled again."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._cache_file = Files(self._cache_path, self._impl.filename_base, self._impl.locator.get_source_stamp())

    def save_overload(self, *arguments: Any) -> None:
        """Save the code of one signature."""
        with suppress(OSError):  # a full disk
            super().save_overload(*arguments)

    def load_overload(self, *arguments: Any) -> Any:
        """The code of one signature, or None. Files that cannot be read, or were cut by a crash, are begun anew."""
        try:
            return super().load_overload(*arguments)
        except (OSError, EOFError, UnpicklingError):
            with suppress(OSError):
                self.flush()
            return None
