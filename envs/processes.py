"""Helpers for worker processes: how many, safe start with respect to signals, reliable termination, error reports."""

import gc
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from multiprocessing import current_process, parent_process, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Thread, current_thread, main_thread
from typing import Any, NamedTuple, Self

import cloudpickle
import psutil

if sys.platform == "linux":
    from multiprocessing.context import ForkServerContext as Context
    from multiprocessing.context import ForkServerProcess as Process
else:
    from multiprocessing.context import SpawnContext as Context
    from multiprocessing.context import SpawnProcess as Process

PRELOADED = (__name__.partition(".")[0] + ".", "numba.", "scipy.")
"""Packages whose modules the server of forks imports: numba's kernels need most of it when the first one is loaded."""
CONTROL_GROUPS, OWN_CONTROL_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
SECONDS_TO_END = 5.0  # grace period before a process is killed
SECONDS_TO_MEASURE = 0.5
SAFE_PATH = "PYTHONSAFEPATH"
GUARD = "a script that uses several processes needs the usual `if __name__ == '__main__':`"
LONGEST_TEMPORARY = 107 - len("/pymp-12345678/listener-12345678")  # a socket's path has 107 characters at most
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class WorkerError(ValueError):
    """The work of a process failed, or the process died; the message is for the user."""


class EnvError(WorkerError):
    """An environment's own code failed, in a worker or in this process; a note holds the traceback through it."""

    is_theirs = True  # see `command_line.run`


class Fault(NamedTuple):
    """The last message of a process that raised an exception."""

    summary: str
    trace: str
    is_envs: bool = False  # an `EnvError`

    @classmethod
    def of(cls, error: Exception) -> Self:
        """The exception, where it was raised, and its traceback."""
        if isinstance(error, EnvError):
            return cls(str(error), "\n".join(getattr(error, "__notes__", ())), is_envs=True)
        place = traceback.extract_tb(error.__traceback__)[-1]
        summary = f"{type(error).__name__}: {error} ({place.filename}, line {place.lineno}, in {place.name})"
        return cls(summary, "".join(traceback.format_exception(error)))

    def error(self, before: str = "", after: str = "") -> WorkerError:
        """The exception to raise here: the summary, with text before and after it, and the traceback as a note."""
        error = (EnvError if self.is_envs else WorkerError)(f"{before}{self.summary}{after}")
        if self.trace:
            error.add_note(self.trace)
        return error


def check_main_guarded() -> None:
    """Raises ValueError in a process that another has started and that runs the script again, to import it."""
    if getattr(current_process(), "_inheriting", False):
        raise ValueError(GUARD)


def pickled(function: Callable[..., Any], expected: str) -> bytes:
    """A function for another process, by cloudpickle. Raises ValueError, which begins with `expected`, if it cannot
    be pickled: an environment may hold an open file.
    """
    try:
        return cloudpickle.dumps(function)
    except Exception as error:
        raise ValueError(f"{expected}, which cannot be sent to another process: {error}") from error


def cpu_cores() -> int:
    """Physical cores available to this process, at least 1, limited by its affinity and container."""
    physical = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else physical
    quotas = _limits("cpu.max"), _limits("cpu.cfs_quota_us", "cpu.cfs_period_us")
    return max(1, min(physical, allowed, *(int(quota / period) for quota, period in chain(*quotas) if quota > 0)))


def available_memory() -> int:
    """Bytes that this process and those that it starts may still use on this machine, limited by the container."""
    own = psutil.Process().memory_info().rss
    limits = (limit for (limit,) in chain(_limits("memory.max"), _limits("memory.limit_in_bytes")))
    return max(0, min(psutil.virtual_memory().available, *(int(limit) - own for limit in limits)))


def _limits(*files: str) -> Iterator[list[float]]:
    """The numbers in these files of this process's control groups, of version 1 or 2, and in all those around them."""
    with suppress(OSError):
        for line in OWN_CONTROL_GROUPS.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            group = (top := CONTROL_GROUPS / controllers) / path.lstrip("/")
            for folder in (group, *group.parents)[: len(group.parts) - len(top.parts) + 1]:
                with suppress(OSError, ValueError):  # ValueError: "max"
                    yield [float(number) for file in files for number in (folder / file).read_text().split()]


def idle_cpus() -> int:
    """Logical CPUs of those available to this process that are idle, measured for half a second; at least 1."""
    used = psutil.cpu_percent(SECONDS_TO_MEASURE, percpu=True)
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(len(used))
    return max(1, round(sum(1 - used[cpu] / 100 for cpu in allowed if cpu < len(used))))


def describe_death(exit_code: int | None) -> str:
    """How a process ended, as the end of a sentence that starts with its name."""
    if exit_code is None:
        return "does not answer"
    if exit_code >= 0:
        return f"ended with exit status {exit_code}"
    hint = " (is there enough memory?)" if -exit_code == signal.SIGKILL else ""
    names = {each.value: each.name for each in signal.Signals}  # not of all real-time signals
    return f"was killed by {names.get(-exit_code, f'signal {-exit_code}')}{hint}"


def end_all(processes: Sequence[BaseProcess]) -> None:
    """Wait for processes that were asked to end, and kill those that do not in time."""
    deadline = time.monotonic() + SECONDS_TO_END
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
        process.kill()
        process.join()


@contextmanager
def stop_signals_blocked() -> Iterator[None]:
    """Context in which started processes block the `STOPS` until they are ready; this process gets them afterwards.

    The mask is of this thread alone. Another one, of a library, may take a signal, whose handler would then interrupt
    the start of a process: the handlers wait too. Only the main thread may set them, and only there do they run.
    """
    received: list[int] = []
    before, handlers = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS), {}
    if current_thread() is main_thread():
        own = [number for number in STOPS if signal.getsignal(number) is not None]  # None: of a library in C
        handlers = {number: signal.signal(number, lambda number, _: received.append(number)) for number in own}
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for late in received:
            signal.raise_signal(late)


class Child(Process):
    """A process that ignores the `STOPS`, which its parent handles, and exits when the parent dies.

    Start it inside `stop_signals_blocked`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._environ = dict(os.environ)  # the server has that of its own start

    def start(self) -> None:
        """Start it. Raises WorkerError if no process can be started."""
        with _starting():
            super().start()

    def run(self) -> None:
        """The main function of the new process."""
        os.environ.clear()
        os.environ.update(self._environ)
        ignore_stop_signals()
        gc.freeze()  # collections would copy the memory that is shared with the server
        Thread(target=end_with_the_parent, daemon=True).start()
        super().run()


class ChildContext(Context):
    """Starts processes of the class `Child`.

    On Linux they are forks of a server, which has the `PRELOADED` modules that this process has at its first use.
    A fork is ready in a tenth of a second instead of importing torch again, and shares the memory of the imports.
    Elsewhere they are spawned: macOS's libraries do not survive a fork.

    Raises:
      ValueError: if the path of the folder for temporary files is too long for the server's socket, or this process may
        not start others.
    """

    Process = Child

    def __init__(self) -> None:
        super().__init__()
        if current_process().daemon:
            raise ValueError(
                "this process is daemonic, as those of multiprocessing.Pool are, and may not start others: take jobs=1 "
                "and no workers, or start it by concurrent.futures.ProcessPoolExecutor"
            )
        folder = tempfile.gettempdir()
        if sys.platform == "linux" and (length := len(os.fsencode(folder))) > LONGEST_TEMPORARY:
            raise ValueError(f"TMPDIR: expected at most {LONGEST_TEMPORARY} bytes, got {length}: {folder}")
        main = sys.modules["__main__"]
        if getattr(main, "__file__", None) == "<stdin>":  # `python < file`: processes would try to import that
            del main.__file__
        with _starting():
            _start_resource_tracker()
        self.set_forkserver_preload([name for name in sys.modules if name.startswith(PRELOADED)])

    def start(self, target: Callable[..., None], *arguments: Any, daemon: bool = True) -> tuple[Connection, Child]:
        """A started process, and this end of a pipe to it; `target` gets the other end as its last argument.

        Only the process keeps the other end, so reading fails with EOFError when it has ended. A process that is not a
        `daemon` can have processes of its own.

        Raises:
          WorkerError: as `Child.start`.
        """
        ours, theirs = self.Pipe()
        with theirs:
            process = Child(target=target, args=(*arguments, theirs), daemon=daemon)
            process.start()
        return ours, process


@contextmanager
def _starting() -> Iterator[None]:
    """Context that starts a process, to which a module of the current folder is not Python's.

    Raises:
      WorkerError: if the server of forks has ended, or a limit is reached.
    """
    before = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = "1"
    try:
        yield
    except (EOFError, BlockingIOError) as error:
        reason = "is there enough memory, and may this user have more processes: ulimit -u?"
        raise WorkerError(f"a process cannot be started ({reason})") from error
    finally:
        if before is None:
            del os.environ[SAFE_PATH]
        else:
            os.environ[SAFE_PATH] = before


def _start_resource_tracker() -> None:
    """Start Python's resource tracker with SIGHUP blocked, or a closed terminal would kill it.

    Otherwise it starts with the first process or semaphore, and unblocks the other `STOPS`.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    resource_tracker.ensure_running()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore_stop_signals() -> None:
    """In a process that was started in `stop_signals_blocked`: do nothing on the `STOPS`.

    Terminals and job schedulers send signals to all processes of a group, and only the parent handles them. A handler
    that does nothing is not inherited by programs started from here; an ignored signal would be.
    """
    for number in STOPS:
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)


def end_with_the_parent() -> None:
    """For a thread of a `Child`: end this process when the parent dies, even if the parent was killed."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
