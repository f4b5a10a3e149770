"""Handling of Ctrl-C, SIGTERM and SIGHUP: training ends between two updates."""

import os
import signal
import sys
from types import FrameType, TracebackType
from typing import Any

from rmc_agents import command_line

from . import distributed


class StopSignals:
    """Context that records `command_line.stop_signals` in `received`; a second one of the same kind ends the
    process immediately. In an interactive session its earlier handler runs instead: Ctrl-C raises KeyboardInterrupt.

    Under torchrun, further signals change nothing: torchrun forwards a signal that a scheduler has already sent to
    every process, so each may get it twice. It kills processes that do not end.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._previous: dict[int, Any] = {}
        self._parent = os.getppid()

    def __enter__(self) -> "StopSignals":
        for number in command_line.stop_signals():
            self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def agreed(self) -> bool:
        """Whether this or another learner has received a signal. Collective: all learners agree, also on `received`.

        If torchrun itself was killed, this counts as SIGTERM.
        """
        if distributed.by_torchrun() and os.getppid() != self._parent:
            self.received = signal.SIGTERM
        number = distributed.highest(self.received or 0)
        if number:
            self.received = signal.Signals(number)
        return number != 0

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = signal.Signals(number)
        if not distributed.by_torchrun():
            is_interactive = hasattr(sys, "ps1")  # where the next one must not end the session
            signal.signal(number, self._previous[number] if is_interactive else signal.SIG_DFL)
