"""Controls an `rmc-train` process from outside: start, watch, kill, resume, and inspect what remains."""

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import psutil

from rmc_agents.evaluate import trainings
from rmc_agents.runs import checkpoint

SECONDS_TO_GO = 10.0  # limit for processes to end after the learner
SECONDS_TO_COME = 300.0  # limit for the learner to have all actors or to end, and for an actor to be replaced
SHARED_MEMORY = Path("/dev/shm")


class Sample(NamedTuple):
    """The learner at a moment."""

    seconds: float  # since its start
    memory: int  # resident set, bytes
    handles: int  # open files


class End(NamedTuple):
    """What a learner left behind."""

    status: int  # the learner's exit status
    seconds: float  # until the last of its processes was gone, or had been waited for
    processes: int
    shared_memory: list[str]
    checkpoints: int  # in the run's folder
    damaged: list[str]


@dataclass
class Life:
    """A learner, from its start to its end."""

    began: float
    samples: list[Sample] = field(default_factory=list)  # while all actors run
    replacements: list[float] = field(default_factory=list)  # seconds until the replacement, for each kill
    end: End | None = None


class WatchedRun:
    """A run with actors on this machine.

    Args:
      folder: the run's; a log is kept beside it.
      flags: of `rmc-train`, for the first start.

    Attributes:
      lives: its learners, one after the other.
    """

    def __init__(self, folder: Path, flags: Sequence[str]) -> None:
        self.folder, self._flags = folder, flags
        self._log = folder.with_name(f"{folder.name}.log")
        self._shared_before = shared_memory()
        self.lives: list[Life] = []

    def start(self, actors: int) -> None:
        """Starts the learner, new or resumed, in its own session; returns once it has this many actors."""
        resume = ["--resume", str(self.folder)] if self.lives else [*self._flags, "--run-dir", str(self.folder)]
        with self._log.open("a") as log:
            command = [sys.executable, "-c", trainings.RUN, *resume]
            process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        self.process, self.learner = process, psutil.Process(process.pid)
        self.lives.append(Life(time.monotonic()))
        self.wait_for(actors)
        self.sample()

    @property
    def actors(self) -> list[psutil.Process]:
        """The actors that are alive: forks of the learner's fork server."""
        return [process for process in self.learner.children(recursive=True) if is_actor(process)]

    def check(self) -> None:
        """Raises SystemExit with the last line of the log if the learner has ended by itself."""
        if self.process.poll() is not None:
            output = self._log.read_text().strip().splitlines() or ["nothing"]
            raise SystemExit(
                f"rmc-train ended with {self.process.returncode}; its last line: {output[-1]} (see {self._log})"
            )

    def wait_for(self, actors: int) -> float:
        """Seconds until there are this many actors. Raises SystemExit if it takes too long."""
        began = time.monotonic()
        while len(self.actors) < actors:
            self.check()
            if time.monotonic() - began > SECONDS_TO_COME:
                raise SystemExit(f"expected {actors} actors within {SECONDS_TO_COME:g} s, got {len(self.actors)}")
            time.sleep(0.05)
        return time.monotonic() - began

    def sample(self) -> None:
        """Take down memory and handles."""
        life = self.lives[-1]
        with self.learner.oneshot():
            memory, handles = self.learner.memory_info().rss, self.learner.num_fds()
        life.samples.append(Sample(time.monotonic() - life.began, memory, handles))

    def kill_an_actor(self) -> None:
        """Kill the oldest with -9, and wait for its replacement.

        The oldest, because three failures of an actor without a rollout end a run.
        """
        actors = sorted(self.actors, key=lambda actor: actor.create_time())
        actors[0].kill()
        time.sleep(0.1)
        self.lives[-1].replacements.append(0.1 + self.wait_for(len(actors)))

    def end(self, by: signal.Signals) -> None:
        """End the learner, and record what remains. Raises SystemExit if it does not end."""
        others = self.learner.children(recursive=True)
        self.process.send_signal(by)
        try:
            status = self.process.wait(SECONDS_TO_COME)
        except subprocess.TimeoutExpired:
            raise SystemExit(f"rmc-train did not end within {SECONDS_TO_COME:g} s of {by.name}") from None
        began = time.monotonic()
        while (left := sum(is_alive(process) for process in others)) and time.monotonic() - began < SECONDS_TO_GO:
            time.sleep(0.05)
        seconds = time.monotonic() - began
        found = list(checkpoint.numbered(self.folder))
        damaged = [path.name for path in found if not is_whole(path)]
        shared = sorted(shared_memory() - self._shared_before)
        self.lives[-1].end = End(status, seconds, left, shared, len(found), damaged)

    def kill(self) -> None:
        """Kill the learner after a failure of the test itself."""
        self.process.kill()
        self.process.wait()


def is_alive(process: psutil.Process) -> bool:
    """Whether it runs; a zombie does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def is_actor(process: psutil.Process) -> bool:
    """Whether it is a fork of multiprocessing's server, and runs."""
    try:
        parent = process.parent()
        return parent is not None and "forkserver" in " ".join(parent.cmdline()) and is_alive(process)
    except psutil.NoSuchProcess:
        return False


def is_whole(path: Path) -> bool:
    """Whether the checkpoint can be loaded."""
    try:
        checkpoint.load(path)
    except checkpoint.CheckpointError:
        return False
    return True


def shared_memory() -> set[str]:
    """The names in /dev/shm; none where there is no such folder."""
    return {path.name for path in SHARED_MEMORY.iterdir()} if SHARED_MEMORY.is_dir() else set()
