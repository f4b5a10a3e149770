"""Trainings as subprocesses: they end with their parent, and their last line is read."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from rmc_agents.evaluate import trainings

pytestmark = pytest.mark.slow
LONGEST = 60.0  # seconds within which a process ends when asked to, on any machine
WAITS = "print('ready', flush=True); import time; time.sleep(3600)"
WITHOUT_PRCTL = f"""import ctypes, os, sys
ctypes.CDLL(None).prctl({trainings.PR_SET_PDEATHSIG}, 0)
sys.platform = 'darwin'
end_with(os.getppid())
{WAITS}"""
PARENT = """import sys, time
from rmc_agents.evaluate import trainings
trainings.RUN = sys.argv[2]
print(trainings.start([], open(sys.argv[1], 'ab')).pid, flush=True)
time.sleep(3600)"""


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")
@pytest.mark.parametrize("run", [WAITS, WITHOUT_PRCTL], ids=["prctl", "without"])
def test_a_training_ends_with_a_parent_that_is_killed(run: str, tmp_path: Path) -> None:
    log = tmp_path / trainings.LOG
    command = [sys.executable, "-c", PARENT, str(log), run]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        training = psutil.Process(int(parent.stdout.readline()))
        while trainings.last_line(tmp_path) != "ready":
            assert training.status() != psutil.STATUS_ZOMBIE
            time.sleep(0.05)
        parent.kill()
    deadline = time.monotonic() + LONGEST
    try:
        while training.is_running() and training.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline, "it continues"
            time.sleep(0.05)
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            training.kill()
    assert log.read_text() == "ready\n"


def test_a_training_ends_whose_parent_ended_before_it_looked() -> None:
    program = f"from rmc_agents.evaluate.trainings import end_with; end_with({os.getppid()}); {WAITS}"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False, timeout=LONGEST)
    assert (ended.returncode, ended.stdout) == (-signal.SIGTERM, b"")


def test_modules_in_the_current_folder_do_not_replace_pythons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ctypes.py").write_text("raise SystemExit(1)")
    monkeypatch.chdir(tmp_path)
    with (tmp_path / trainings.LOG).open("wb") as log:
        assert trainings.start(["--version"], log).wait() == 0


def test_the_last_line_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / trainings.LOG
    assert trainings.last_line(tmp_path) == ""
    log.write_bytes(b"first\n" * 5000 + b"last \xff\n\n")
    assert trainings.last_line(tmp_path) == "last \N{REPLACEMENT CHARACTER}"
