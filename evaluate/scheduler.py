"""Parallel trainings for rmc-compare and rmc-sweep: each a process of rmc-train, resumed if it was stopped."""

import signal
import subprocess
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock, Timeout
from rich.console import Console
from rich.progress import Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column

from rmc_agents import plugins
from rmc_agents.command_line import say
from rmc_agents.config import Config
from rmc_agents.files import write_atomically
from rmc_agents.runs.folder import CONFIG, LOCK, InUse, RunFolder, has_checkpoints

from . import trainings
from .summary import read_evaluated
from .trainings import COMMITS, LOG, read_commits

ROOT = Path(__file__).parent.parent
POLL = 0.2  # seconds between checks of the running trainings


class Job(NamedTuple):
    """A requested run."""

    agent: str
    folder: Path
    config: Config


class Training:
    """A running job: its process starts as soon as no other trains in its folder.

    Args:
      job: the requested run.
      console: for messages when it starts or waits.
      trust: whether to resume a run of Stable-Baselines3's algorithms, whose checkpoints can run code.

    Attributes:
      status: the process's exit status after it has ended; 0 if the run was finished before.
      stopped: whether `stop` was called before it had ended.
    """

    def __init__(self, job: Job, console: Console, trust: bool) -> None:
        self.job, self._console, self._trust = job, console, trust
        self._process: subprocess.Popen[bytes] | None = None
        self._waits = False
        self.status, self.stopped = 0, False

    def has_ended(self) -> bool:
        """Whether the training has ended; starts the process once no other trains in the folder."""
        folder = self.job.folder
        if self._process is None:
            if self.stopped:
                return True
            try:
                if is_in_use(folder):
                    raise InUse(folder)
                if is_finished(folder):
                    return True
                verb = "continues" if has_checkpoints(folder) else "begins"
                self._process = start(self.job, self._trust)
            except InUse as error:  # also if another has begun since
                if not self._waits:
                    self._say(f"waits: {error}")
                self._waits = True
                return False
            self._say(f"{verb}, see {folder / LOG}")
        if self._process.poll() is None:
            return False
        if self._process.returncode and is_in_use(folder):  # another began there while this one was starting
            self._process = None
            return False
        self.status = self._process.returncode
        return True

    def stop(self) -> None:
        """Ask the training to save and end. Only the first call has an effect.

        By SIGINT: if this process dies meanwhile, the training gets a SIGTERM, and a second one would end it unsaved.
        """
        if self._process is not None and not self.stopped:
            self._process.send_signal(signal.SIGINT)
        self.stopped = True

    def wait(self) -> None:
        """Wait until the training has ended."""
        if self._process is not None:
            self._process.wait()

    def _say(self, text: str) -> None:
        say(self._console, f"{self.job.folder.name} {text}")


def train_jobs(
    jobs: Iterator[Job], at_once: int, console: Console, trust: bool, ending: Callable[[], bool] = lambda: False
) -> Generator[Training, None, None]:
    """Train jobs, show their progress, and yield each that has ended; when closed, the running ones save and end.

    Args:
      jobs: consumed when another training can start.
      at_once: number of parallel trainings.
      console: for the progress.
      trust: as in `Training`.
      ending: whether to stop: no further job starts, and the running ones save and stop.
    """
    running: dict[Training, TaskID] = {}
    line = TextColumn(
        "{task.description}", markup=False, table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")
    )
    quiet = not console.is_interactive
    remaining = TextColumn("{task.fields[left]}", markup=False)
    with Progress(
        line, remaining, TimeElapsedColumn(), console=console, transient=True, disable=quiet, expand=True
    ) as progress:
        try:
            while True:
                while not ending() and len(running) < at_once and (job := next(jobs, None)) is not None:
                    running[Training(job, console, trust)] = progress.add_task("", left="")
                if not running:
                    return
                for training, task in list(running.items()):
                    if ending():
                        training.stop()
                    if training.has_ended():
                        progress.remove_task(running.pop(training))
                        yield training
                    else:
                        said, eta, left = trainings.last_line(training.job.folder).rpartition("  ETA ")
                        progress.update(
                            task, description=f"{training.job.folder.name}: {said or left}", left=eta and f"ETA {left}"
                        )
                time.sleep(POLL)
        finally:
            for training in running:
                training.stop()
            if running:
                again = trainings.same_command((training.job.config.train.algo for training in running), trust)
                say(console, f"the running trainings save; {again} continues them")
            for training in running:
                training.wait()


def is_in_use(folder: Path) -> bool:
    """Whether a process trains in the folder, possibly left over from a killed comparison."""
    if not (folder / LOCK).exists():
        return False
    try:
        with FileLock(folder / LOCK, timeout=0):
            return False
    except Timeout:
        return True


def start(job: Job, trust: bool) -> subprocess.Popen[bytes]:
    """Start the training, new or resumed, as a process."""
    folder = job.folder
    if has_checkpoints(folder):
        flags = ["--resume", str(folder)]
    else:
        with RunFolder(folder, resuming=False):  # no other process trains there
            (folder / COMMITS).unlink(missing_ok=True)  # from a run that was killed before its first checkpoint
            write_atomically(folder / CONFIG, job.config.to_yaml().encode())
        flags = ["--config", str(folder / CONFIG), "--run-dir", str(folder)]
    if (address := job.config.actors.ray_address) is not None:
        flags += ["--ray-address", address]  # it is not taken from a file
    flags += [*plugins.flags(), *(["--trust"] if trust else [])]
    note_commit(folder)
    with (folder / LOG).open("ab") as log:
        return trainings.start(flags, log)


def note_commit(folder: Path) -> None:
    """Record the code's commit, or else its version, in the run's folder, unless it is there already."""
    commits = read_commits(folder)
    commit = version("rmc-agents")
    if (ROOT / ".git").exists():  # not installed, but a working copy
        describe = ["git", "describe", "--always", "--abbrev=12", "--dirty", "--exclude", "*"]
        with suppress(OSError):  # there may be no git
            described = subprocess.run(describe, cwd=ROOT, capture_output=True, text=True, check=False)
            commit = described.stdout.strip() or commit
    write_atomically(folder / COMMITS, "\n".join(dict.fromkeys([*commits, commit, ""])).encode())


def is_finished(folder: Path) -> bool:
    """Whether the run is trained and evaluated."""
    return read_evaluated(folder) is not None
