"""Programs in forks, which start sooner than interpreters: those import torch again."""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from rmc_agents.envs.processes import ChildContext, stop_signals_blocked
from rmc_agents.evaluate import trainings

TRAININGS = "from helpers import forked; from rmc_agents.evaluate import trainings; trainings.start = forked.Training"
"""For a program that starts trainings: as forks."""


class Program:
    """A text to execute, with `sys` and arguments, as `subprocess.Popen` has it; all output goes to a file."""

    def __init__(self, program: str, arguments: Sequence[str], log: Path) -> None:
        self.log = log
        with stop_signals_blocked():
            _, self._process = ChildContext().start(_execute, program, arguments, os.fspath(log), daemon=False)

    @property
    def pid(self) -> int | None:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self) -> int | None:
        self._process.join()
        return self.returncode

    def communicate(self) -> tuple[str, str]:
        """After its end: all output, standard error included, and nothing."""
        self.wait()
        return self.log.read_text(), ""

    def send_signal(self, number: int) -> None:
        if self.pid is not None:
            os.kill(self.pid, number)


class Training(Program):
    """As `trainings.start` returns it."""

    def __init__(self, flags: Sequence[str], log: IO[bytes]) -> None:
        super().__init__(trainings.RUN, flags, Path(log.name))


def run(program: str, *arguments: str, log: Path) -> str:
    """The output of a program that succeeds."""
    ended = Program(program, arguments, log)
    output, _ = ended.communicate()
    assert ended.returncode == 0, output
    return output


def _execute(program: str, arguments: Sequence[str], log: str, _: object) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with open(log, "ab") as file:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())
    sys.argv = ["-c", *arguments]
    exec(program, {"sys": sys})
