"""Trainings of agents by seeds, side by side, each a process of rmc-train that is resumed if it was stopped."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from rmc_agents.config import Config
from rmc_agents.runs import archive
from rmc_agents.runs.checkpoint import write_atomically
from rmc_agents.runs.folder import CONFIG, SUMMARY, RunFolder, has_checkpoints

from .comparison import COMMITS, read_commits
from .plot import essence

ROOT = Path(__file__).parent.parent
TRAIN = [sys.executable, "-c", "import sys; from rmc_agents.train.cli import main; sys.exit(main())"]
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


def train_all(jobs: Sequence[Job], at_once: int, trust: bool = False) -> Iterator[Job]:
    """Trains what is not finished, and hands out every job once it is; stopped, it stops and saves what is under way.

    Args:
      jobs: which.
      at_once: trainings side by side.
      trust: whether to resume runs of Stable-Baselines3's algorithms, whose checkpoints may run code.

    Raises:
      ValueError: if a folder holds a run with other settings, or one that is not trusted, or a training fails, with
        its last line.
    """
    for job in jobs:
        check_folder(job, trust)
    yield from (job for job in jobs if is_finished(job.folder))
    waiting = [job for job in jobs if not is_finished(job.folder)]
    running: dict[Job, subprocess.Popen] = {}
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                job = waiting.pop(0)
                running[job] = start(job, trust)
            time.sleep(POLL)
            for job in [job for job, process in running.items() if process.poll() is not None]:
                check_success(job, running.pop(job).returncode)
                yield job
    finally:
        for process in running.values():
            process.terminate()  # rmc-train saves, and can be resumed
        for process in running.values():
            process.wait()


def start(job: Job, trust: bool) -> subprocess.Popen:
    """The training as a process, new or resumed, in a session of its own: Ctrl-C is for this script to handle.

    Raises:
      ValueError: if another process trains there.
    """
    folder = job.folder
    if has_checkpoints(folder):
        flags = ["--resume", str(folder)]
    else:
        with RunFolder(folder, resuming=False):  # no other process trains there
            (folder / COMMITS).unlink(missing_ok=True)  # of a run that was killed before its first checkpoint
        settings = beside(folder, ".yaml")
        write_atomically(settings, job.config.to_yaml().encode())
        flags = ["--config", str(settings), "--run-dir", str(folder)]
    flags += ["--env", job.config.env.env, *(["--trust"] if trust else [])]
    note_commit(folder)
    with log_of(job).open("a") as log:
        return subprocess.Popen([*TRAIN, *flags], stdout=log, stderr=log, start_new_session=True)


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
    path = folder / SUMMARY
    return path.exists() and json.loads(path.read_text())["evaluation"] is not None


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
        said = log_of(job).read_text(errors="replace").strip().splitlines() or [f"exit status {status}"]
        raise ValueError(f"training of {job.folder.name} failed: {said[-1]} (see {log_of(job)})")


def log_of(job: Job) -> Path:
    """Where a training's output goes."""
    return beside(job.folder, ".log")


def beside(path: Path, suffix: str) -> Path:
    """The file of that name with the suffix behind it, whatever dots are in the name."""
    return path.with_name(path.name + suffix)
