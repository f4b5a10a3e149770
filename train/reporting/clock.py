"""The clock of a training, without compilation and evaluation time."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any, Self

from numba.core import event

COMPILING = "numba:compile"
"""Numba's event for a compilation; there is none for cached code."""


class TrainingClock(event.Listener):
    """A clock in seconds that pauses while this thread compiles kernels and inside `paused`.

    Only differences of its readings have a meaning.

    Args:
      on_compile: called once, before the first compilation.
    """

    def __init__(self, on_compile: Callable[[], None]) -> None:
        self._on_compile, self._thread = on_compile, get_ident()
        self._has_compiled = False
        self._depth = 0  # pauses nest: compiling a kernel compiles those that it calls, and evaluations compile too
        self._paused_at = self._paused_seconds = 0.0

    def __call__(self) -> float:
        """The time."""
        return (self._paused_at if self._depth else time.perf_counter()) - self._paused_seconds

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Context in which the clock is paused."""
        self._pause()
        try:
            yield
        finally:
            self._resume()

    def on_start(self, event: Any) -> None:
        """Pause."""
        if get_ident() != self._thread:  # numba tells of all threads, also of what began before this listener
            return
        if not self._has_compiled:
            self._has_compiled = True
            self._on_compile()
        self._pause()

    def on_end(self, event: Any) -> None:
        """Continue."""
        if get_ident() == self._thread:
            self._resume()

    def _pause(self) -> None:
        if self._depth == 0:
            self._paused_at = time.perf_counter()
        self._depth += 1

    def _resume(self) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._paused_seconds += time.perf_counter() - self._paused_at

    def __enter__(self) -> Self:
        event.register(COMPILING, self)
        return self

    def __exit__(self, *_: object) -> None:
        event.unregister(COMPILING, self)
