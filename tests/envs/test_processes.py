"""Processes that this package starts."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType, SimpleNamespace

import psutil
import pytest

from rmc_agents.envs import processes
from rmc_agents.envs.processes import (
    STOPS,
    Child,
    ChildContext,
    Process,
    WorkerError,
    available_memory,
    cpu_cores,
    idle_cpus,
    stop_signals_blocked,
)


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


def test_modules_in_the_current_folder_do_not_replace_pythons(tmp_path: Path) -> None:
    here, script = tmp_path / "here", tmp_path / "script.py"
    here.mkdir()
    (here / "multiprocessing.py").write_text("raise ImportError('of the current folder')")
    script.write_text("""
import os
from operator import methodcaller
from rmc_agents.envs.processes import SAFE_PATH, ChildContext, stop_signals_blocked
if __name__ == "__main__":
    with stop_signals_blocked():
        connection, child = ChildContext().start(methodcaller("send", 7))
    print(connection.recv(), SAFE_PATH in os.environ)
""")
    environment = {name: value for name, value in os.environ.items() if name != processes.SAFE_PATH}
    command = [sys.executable, str(script)]
    ended = subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True, check=False)
    assert (ended.stdout, ended.stderr) == ("7 False\n", "")


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


@pytest.mark.parametrize("error", [EOFError, BlockingIOError])
def test_a_process_that_cannot_be_started_is_one_line(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    """EOFError: the server of forks has ended."""

    def start(_: object) -> None:
        raise error

    monkeypatch.setattr(Process, "start", start)
    with pytest.raises(WorkerError, match=r"a process cannot be started .*ulimit -u"):
        Child().start()


@pytest.mark.parametrize(
    ("own", "files"),
    [
        (
            "0::/jobs/1/step",
            {"jobs/1/cpu.max": "150000 100000", "jobs/1/memory.max": "max", "memory.max": "9000000000"},
        ),
        (
            "5:cpu,cpuacct:/jobs/1\n4:memory:/hosts\n0::/",
            {
                "cpu,cpuacct/jobs/1/cpu.cfs_quota_us": "150000",
                "cpu,cpuacct/jobs/1/cpu.cfs_period_us": "100000",
                "cpu,cpuacct/cpu.cfs_quota_us": "-1",
                "cpu,cpuacct/cpu.cfs_period_us": "100000",
                "memory/memory.limit_in_bytes": "9000000000",
            },
        ),
    ],
    ids=["version 2", "version 1"],
)
def test_limits_of_control_groups_are_seen(
    own: str, files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in {"own": own, **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    monkeypatch.setattr(processes, "CONTROL_GROUPS", tmp_path)
    monkeypatch.setattr(processes, "OWN_CONTROL_GROUPS", tmp_path / "own")
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8), raising=False)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=10**12))
    assert cpu_cores() == 1
    assert 0 < available_memory() < 9_000_000_000
