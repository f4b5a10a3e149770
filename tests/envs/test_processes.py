"""Processes that this package starts."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from multiprocessing.connection import Connection
from types import ModuleType

import psutil
import pytest

from rmc_agents.envs.processes import STOPS, ChildContext, idle_cpus, stop_signals_blocked


def report(connection: Connection) -> None:
    """Send an environment variable, whether a module is loaded that only `conftest` imports, and the handlers."""
    handlers = [signal.getsignal(number) for number in STOPS]
    connection.send((os.environ.get("RMC_TEST"), "rmc_agents.plugins" in sys.modules, *map(callable, handlers)))


def test_a_child_has_our_modules_and_environment_and_leaves_stops_to_its_parent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for value in ("one", "two"):
        monkeypatch.setenv("RMC_TEST", value)
        with stop_signals_blocked():
            connection, child = ChildContext().start(report)
        assert connection.recv() == (value, sys.platform == "linux", True, True, True)
        child.join()
        assert child.exitcode == 0


def test_children_of_a_script_on_standard_input_do_not_import_it(monkeypatch: pytest.MonkeyPatch) -> None:
    main = ModuleType("__main__")
    main.__file__ = "<stdin>"
    monkeypatch.setitem(sys.modules, "__main__", main)
    with stop_signals_blocked():
        connection, child = ChildContext().start(report)
    assert connection.recv()
    child.join()


@pytest.mark.skipif(sys.platform != "linux", reason="of Linux's /proc")
def test_a_closed_terminal_does_not_end_the_resource_tracker() -> None:
    program = """
from multiprocessing import resource_tracker
from rmc_agents.envs.processes import ChildContext
ChildContext()
print(open(f"/proc/{resource_tracker._resource_tracker._pid}/status").read())
"""
    status = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    blocked = int(next(line for line in status.splitlines() if line.startswith("SigBlk")).split()[1], 16)
    assert blocked >> signal.SIGHUP - 1 & 1


def test_a_stop_that_another_thread_takes_is_held_back_too() -> None:
    ended, seen = threading.Event(), []
    threading.Thread(target=ended.wait, daemon=True).start()
    before = signal.signal(signal.SIGTERM, lambda *_: seen.append("stop"))
    try:
        with stop_signals_blocked():
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.1)
            seen.append("end of the context")
        assert seen == ["end of the context", "stop"]
    finally:
        signal.signal(signal.SIGTERM, before)
        ended.set()


@pytest.mark.parametrize(("used", "idle"), [([0, 10, 95, 0], 2), ([100, 100, 100, 0], 1)])
def test_what_other_programs_use_is_not_idle(used: list[float], idle: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "cpu_percent", lambda seconds, percpu: used)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2}, raising=False)
    assert idle_cpus() == idle


@pytest.mark.skipif(sys.platform != "linux", reason="the server is Linux's")
def test_a_temporary_folder_with_a_long_path_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/x" + "é" * 37)
    with pytest.raises(ValueError, match=r"^TMPDIR: expected at most 75 bytes, got 76: /x"):
        ChildContext()
