"""The clock that a training is timed by."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

from numba.core import event

COMPILING = "numba:compile"
"""Numba's event around a compilation; code that is found in its cache has none."""


class TrainingClock(event.Listener):
    """Seconds, of no meaning but their differences, that stand still while kernels are compiled in this process, and in
    `standing_still`.

    Args:
      tell: called once, before the first compilation.
    """

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell = tell
        self._told = False
        self._depth = 0  # a kernel's compilation compiles those that it calls; an evaluation compiles too
        self._began = self._compiled = 0.0

    def __call__(self) -> float:
        """The time."""
        return (self._began if self._depth else time.perf_counter()) - self._compiled

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """In here, time does not pass."""
        self._stop()
        try:
            yield
        finally:
            self._go_on()

    def on_start(self, event: Any) -> None:
        """Stand still."""
        if not self._told:
            self._told = True
            self._tell()
        self._stop()

    def on_end(self, event: Any) -> None:
        """Go on."""
        self._go_on()

    def _stop(self) -> None:
        if self._depth == 0:
            self._began = time.perf_counter()
        self._depth += 1

    def _go_on(self) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._compiled += time.perf_counter() - self._began

    def __enter__(self) -> Self:
        event.register(COMPILING, self)
        return self

    def __exit__(self, *_: object) -> None:
        event.unregister(COMPILING, self)
