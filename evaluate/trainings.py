"""rmc-train as a subprocess, for programs that train many agents; it ends when its parent ends."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO

from rmc_agents.config import SB3_ALGORITHMS
from rmc_agents.files import read_regular

RUN = "import sys; from rmc_agents.train.cli import main; sys.exit(main())"
LOG = "output.log"  # in the run's folder
COMMITS = "commits.txt"  # there, too: the code versions it was trained with, one line each
PR_SET_PDEATHSIG = 1  # linux/prctl.h
SECONDS_BETWEEN_LOOKS = 0.5
TAIL = 4096  # bytes of a log that are searched for its last line


def start(flags: Sequence[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start rmc-train in its own session; this process has to forward the terminal's Ctrl-C.

    Args:
      flags: flags of rmc-train.
      log: receives its output.
    """
    program = f"from rmc_agents.evaluate.trainings import end_with; end_with({os.getpid()}); {RUN}"
    return subprocess.Popen(
        [sys.executable, "-P", "-c", program, *flags],  # -P: a torch.py in the current folder is not torch
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )


def end_with(parent: int) -> None:
    """Send SIGTERM to this process when its parent ends, even by SIGKILL, so that the training saves.

    Args:
      parent: the id of the parent process, which may already have ended.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    else:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(SECONDS_BETWEEN_LOOKS)
    os.kill(os.getpid(), signal.SIGTERM)


def last_line(run_dir: Path) -> str:
    """The last line that a training printed to its log; '' if there is none."""
    try:
        with (run_dir / LOG).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
            lines = file.read().decode(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1].strip() if lines else ""


def read_commits(folder: Path) -> list[str]:
    """The commits of the code that trained the run; empty if not recorded."""
    path = folder / COMMITS
    return read_regular(path).decode(errors="replace").split() if path.exists() else []


def same_command(algos: Iterable[str], trust: bool) -> str:
    """The command that continues trainings with these algorithms, in words."""
    return "the same command" if trust or set(algos).isdisjoint(SB3_ALGORITHMS) else "the same command with --trust"
