"""Trainings in forks, which start sooner than the processes of `evaluate.trainings`: those import torch again."""

import os
import signal
import sys
from collections.abc import Sequence
from typing import IO

from rmc_agents.envs.processes import ChildContext, stops_held_back
from rmc_agents.evaluate import trainings


class Training:
    """As `trainings.start` returns it."""

    def __init__(self, flags: Sequence[str], log: IO[bytes]) -> None:
        with stops_held_back():
            _, self._process = ChildContext().start(_train, trainings.RUN, flags, log.name, daemon=False)

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self) -> None:
        self._process.join()

    def send_signal(self, number: int) -> None:
        if self._process.pid is not None:
            os.kill(self._process.pid, number)


def _train(program: str, flags: Sequence[str], log: str, _: object) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with open(log, "ab") as file:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())
    sys.argv = ["-c", *flags]
    exec(program, {"sys": sys})
