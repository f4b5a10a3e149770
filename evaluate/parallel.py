"""Episodes on several cores: parts of an evaluation in separate processes."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import current_process
from typing import Literal

import cloudpickle
import torch

from rmc_agents import plugins
from rmc_agents.envs.checks import checked_int
from rmc_agents.envs.making import EnvFactory
from rmc_agents.envs.processes import GUARD, ChildContext, Fault, WorkerError, cpu_cores, pickled, stop_signals_blocked

from .progress import OnProgress, ignore_progress
from .statistics import Episodes

MIN_PARTS = 8  # from which "auto" uses several processes: with fewer, starting them takes as long as they save

Part = Callable[..., Episodes]
"""A part of an evaluation, called with `on_progress`."""
Jobs = int | Literal["auto"]
"""A number of processes; auto: one per physical core if there are enough parts, and this process may start others."""


def play_all(
    parts: Sequence[Part],
    env: str | EnvFactory,
    jobs: Jobs,
    device: torch.device,
    on_progress: OnProgress = ignore_progress,
) -> list[Episodes]:
    """Play all parts, which make this environment; the episodes are the same with any number of processes.

    Raises:
      ValueError: for a number below 1, or an agent or environment that cannot be sent to another process.
      EnvError: if the environment's own code fails.
      WorkerError: if a process fails otherwise, or dies.
    """
    if jobs == "auto":
        is_alone = device.type != "cpu" or len(parts) < MIN_PARTS or current_process().daemon
        processes = 1 if is_alone else cpu_cores()
    else:
        processes = checked_int("jobs", jobs, 1)
    processes = min(processes, len(parts))
    if processes == 1:
        return [part(on_progress=on_progress) for part in parts]
    played: dict[int, Episodes] = {}
    try:
        with _pool(processes) as pool:
            waiting = deque(enumerate(parts))
            running: dict[Future[Episodes | Fault], int] = {}
            while waiting or running:
                while waiting and len(running) < 2 * processes:  # one to play, one to go on with
                    i, part = waiting.popleft()
                    packed = pickled(plugins.carried(part, env), "jobs: expected 1 for this agent and environment")
                    with stop_signals_blocked():  # it may start a process
                        running[pool.submit(_play, packed)] = i
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    if isinstance(episodes := future.result(), Fault):
                        raise episodes.error()
                    on_progress(len(episodes.returns))
                    played[running.pop(future)] = episodes
    except BrokenProcessPool:
        hint = "" if played else f" ({GUARD})"
        raise WorkerError(f"a process that played episodes has ended; try --jobs 1{hint}") from None
    return [played[i] for i in range(len(parts))]


@contextmanager
def _pool(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that end with this context, at once if it ends with an exception."""
    pool = ProcessPoolExecutor(jobs, ChildContext(), torch.set_num_threads, (1,))
    try:
        yield pool
    except BaseException:
        for process in list(pool._processes.values()):  # only these: the program may have others
            process.kill()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _play(part: bytes) -> Episodes | Fault:
    try:
        episodes: Episodes = cloudpickle.loads(part)()
    except Exception as error:
        return Fault.of(error)
    return episodes
