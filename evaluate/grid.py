"""Trainings of agents by seeds, side by side, each a process of rmc-train that is resumed if it was stopped."""

import subprocess
import time
from collections.abc import Generator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock, Timeout
from rich.console import Console
from rich.progress import Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column

from rmc_agents import plugins
from rmc_agents.config import Config
from rmc_agents.evaluate import trainings
from rmc_agents.evaluate.summary import read_evaluated
from rmc_agents.runs import archive
from rmc_agents.runs.checkpoint import write_atomically
from rmc_agents.runs.folder import CONFIG, LOCK, RunFolder, has_checkpoints

from .comparison import COMMITS, read_commits
from .plot import essence

ROOT = Path(__file__).parent.parent
POLL = 0.2  # seconds between looks at the running trainings


class Job(NamedTuple):
    """A run that is wanted."""

    agent: str
    folder: Path
    config: Config


def differing(one: Config, other: Config) -> list[str]:
    """Names of the settings in which two agents differ."""
    before, after = essence(one), essence(other)
    return [name for name in before if before[name] != after[name]]


def train_all(jobs: Sequence[Job], at_once: int, console: Console, trust: bool = False) -> Generator[Job, None, None]:
    """Trains what is not finished, and hands out every job once it is; closed, it has what is under way save and end.

    Args:
      jobs: which.
      at_once: trainings side by side.
      console: shows how far each of them is.
      trust: whether to resume runs of Stable-Baselines3's algorithms, whose checkpoints may run code.

    Raises:
      ValueError: if a folder holds a run with other settings, or one that is not trusted, or a training fails, with
        its last line.
    """
    for job in jobs:
        check_folder(job, trust)
    yield from (job for job in jobs if is_finished(job.folder))
    waiting = [job for job in jobs if not is_finished(job.folder)]
    running: dict[Training, TaskID] = {}
    line = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis"))
    shown = Progress(line, TimeElapsedColumn(), console=console, transient=True, disable=not console.is_terminal)
    with shown as progress:
        try:
            while waiting or running:
                while waiting and len(running) < at_once:
                    running[Training(waiting.pop(0), console, trust)] = progress.add_task("")
                time.sleep(POLL)
                for training, task in list(running.items()):
                    if training.has_ended():
                        progress.remove_task(running.pop(training))
                        yield training.job
                    else:
                        said = trainings.last_line(log_of(training.job))
                        progress.update(task, description=f"{training.job.folder.name}: {said}")
        finally:
            for training in running:
                training.stop()
            for training in running:
                training.wait()


class Training:
    """A job under way: its process, as soon as no other one trains in its folder.

    Args:
      job: what is wanted.
      console: told when it begins or waits.
      trust: as of `train_all`.
    """

    def __init__(self, job: Job, console: Console, trust: bool = False) -> None:
        self.job, self._console, self._trust = job, console, trust
        self._process: subprocess.Popen[bytes] | None = None
        self._waits = False

    def has_ended(self) -> bool:
        """Whether the run is finished; starts its process when nobody else trains there.

        Raises:
          ValueError: if the process failed, with its last line.
        """
        if self._process is None:
            if is_in_use(self.job.folder):
                if not self._waits:
                    self._say(f"waits: {self.job.folder} is in use by another training")
                self._waits = True
                return False
            if is_finished(self.job.folder):
                return True
            verb = "goes on" if (self.job.folder / CONFIG).exists() else "begins"
            self._process = start(self.job, self._trust)
            self._say(f"{verb}, see {log_of(self.job)}")
        if self._process.poll() is None:
            return False
        check_success(self.job, self._process.returncode)
        return True

    def stop(self) -> None:
        """Have it save and end; it can be resumed."""
        if self._process is not None:
            self._process.terminate()

    def wait(self) -> None:
        """Until it has."""
        if self._process is not None:
            self._process.wait()

    def _say(self, text: str) -> None:
        self._console.print(f"{self.job.folder.name} {text}", highlight=False, soft_wrap=True, markup=False)


def is_in_use(folder: Path) -> bool:
    """Whether a process trains there, perhaps one of a comparison that was killed."""
    if not (folder / LOCK).exists():
        return False
    try:
        with FileLock(folder / LOCK, timeout=0):
            return False
    except Timeout:
        return True


def start(job: Job, trust: bool) -> subprocess.Popen[bytes]:
    """The training as a process, new or resumed."""
    folder = job.folder
    if has_checkpoints(folder):
        flags = ["--resume", str(folder)]
    else:
        with RunFolder(folder, resuming=False):  # no other process trains there
            (folder / COMMITS).unlink(missing_ok=True)  # of a run that was killed before its first checkpoint
        settings = beside(folder, ".yaml")
        write_atomically(settings, job.config.to_yaml().encode())
        flags = ["--config", str(settings), "--run-dir", str(folder)]
    flags += [*plugins.flags(), *(["--trust"] if trust else [])]
    note_commit(folder)
    with log_of(job).open("ab") as log:
        return trainings.start(flags, log)


def note_commit(folder: Path) -> None:
    """Add the code's commit, or else its version, to what the run was trained with, unless it is there already."""
    commits = read_commits(folder)
    commit = version("rmc-agents")
    if (ROOT / ".git").exists():  # not installed, but a working copy
        describe = ["git", "describe", "--always", "--abbrev=12", "--dirty", "--exclude", "*"]
        commit = subprocess.run(describe, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    write_atomically(folder / COMMITS, "\n".join(dict.fromkeys([*commits, commit, ""])).encode())


def is_finished(folder: Path) -> bool:
    """Whether the run is trained and evaluated."""
    return read_evaluated(folder) is not None


def check_folder(job: Job, trust: bool) -> None:
    """Raises ValueError if a run with other settings is there, or an unfinished one that is not trusted."""
    if (job.folder / CONFIG).exists():
        found = Config().updated_from_yaml(job.folder / CONFIG)
        names = differing(found, job.config)
        if found.run.eval_episodes != job.config.run.eval_episodes:
            names.append("eval_episodes")
        if names:
            raise ValueError(
                f"{job.folder} holds a run that differs in {', '.join(names)}: choose another --folder, or remove it"
            )
    if archive.is_archive(job.folder) and not is_finished(job.folder):
        archive.check_trust(job.folder, trust)


def check_success(job: Job, status: int) -> None:
    """Raises ValueError with the last line of the training's log if it failed."""
    if status != 0 or not is_finished(job.folder):
        said = trainings.last_line(log_of(job)) or f"exit status {status}"
        raise ValueError(f"training of {job.folder.name} failed: {said} (see {log_of(job)})")


def log_of(job: Job) -> Path:
    """Where a training's output goes."""
    return beside(job.folder, ".log")


def beside(path: Path, suffix: str) -> Path:
    """The file of that name with the suffix behind it, whatever dots are in the name."""
    return path.with_name(path.name + suffix)
