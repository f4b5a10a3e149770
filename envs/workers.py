"""Lanes in worker processes, several in each, for environments without a native engine."""

import ctypes
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from itertools import pairwise
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext
from multiprocessing.util import Finalize
from typing import Any, NamedTuple

import numpy as np
from gymnasium.error import ClosedEnvironmentError
from gymnasium.spaces import Box, MultiDiscrete, Space
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import CloudpickleWrapper, batch_space
from numpy.typing import DTypeLike, NDArray

from .guarded import AnyInfos
from .processes import (
    SECONDS_TO_END,
    EnvError,
    Fault,
    WorkerError,
    describe_death,
    end_all,
    leave_stops_to_the_parent,
    stops_held_back,
)

MakeLanes = Callable[[int], VectorEnv]
LaneInfos = list[tuple[int, dict[str, Any]]]  # a lane and its infos
ALWAYS = "target"
"""The info that is sent at every step and reset: the right action, from which `--algo supervised` learns."""


class WorkerVectorEnv(AnyInfos):
    """A NEXT_STEP vector environment whose lanes are shared out among worker processes.

    It gives the numbers that `make_lanes(num_envs)` would: lane i gets seed + i, and every worker plays its lanes in a
    vector environment of `make_lanes`. Actions, observations, rewards and flags pass through shared memory. Infos are
    sent at the end of an episode only, and of them numbers, strings and arrays of numbers; `info["target"]` always.

    Workers are spawned, not forked: a process that runs torch has threads, and a fork takes over the locks that these
    hold, but not the threads that would let go of them. So a script that uses this needs the usual
    `if __name__ == "__main__":`. What the workers need is in `make_lanes`, which is pickled by cloudpickle.

    The workers end when this is closed or deleted, at the end of this process however it comes, and when one fails.
    The memory has no name, so the system takes it back from processes that were killed.

    Args:
      make_lanes: from a number of lanes to a NEXT_STEP vector environment whose actions and observations are numbers
        or arrays of them.
      num_envs: lanes.
      num_workers: processes, from 1 to `num_envs`.

    Raises:
      ValueError: for another number of workers, another autoreset mode or other spaces.
      EnvError: if an environment's constructor fails.
      WorkerError: if a worker dies.
    """

    def __init__(self, make_lanes: MakeLanes, num_envs: int, num_workers: int) -> None:
        """See the class."""
        if not 1 <= num_workers <= num_envs:
            raise ValueError(f"env_workers: expected at most as many as lanes, {num_envs}, got {num_workers}")
        with closing(make_lanes(1)) as example:
            self._describe(example, num_envs)
        observation, action = self.single_observation_space, self.single_action_space
        if not isinstance(observation, Box | MultiDiscrete) or action.dtype is None or action.shape is None:
            raise ValueError(f"expected observations and actions in arrays, got {observation} and {action}")
        context = get_context("spawn")
        shared = _SharedLanes(context, num_envs, observation, action)
        self._rows = shared.rows()
        self._workers: list[_Worker] = []
        self._end_workers = Finalize(self, _end, (self._workers,), exitpriority=0)
        bounds = np.linspace(0, num_envs, num_workers + 1).astype(int).tolist()
        try:
            with stops_held_back():
                for first, end in pairwise(bounds):
                    self._workers.append(_Worker(context, make_lanes, slice(first, end), shared))
            for worker in self._workers:
                worker.receive()
        except BaseException:
            self.close()
            raise

    def _describe(self, example: VectorEnv, num_envs: int) -> None:
        """Copy the attributes that every gymnasium vector environment has."""
        if example.metadata.get("autoreset_mode") != AutoresetMode.NEXT_STEP:
            raise ValueError(f"expected lanes with NEXT_STEP autoreset, got {example.metadata}")
        self.num_envs, self.metadata, self.spec = num_envs, example.metadata, example.spec
        self.render_mode = example.render_mode
        self.single_observation_space = example.single_observation_space
        self.single_action_space = example.single_action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray, dict[str, Any]]:
        """As SyncVectorEnv's, `reset_mask` included, with no infos but the target."""
        lanes = range(self.num_envs)
        seeds = [seed + i for i in lanes] if isinstance(seed, int) else [None] * self.num_envs if seed is None else seed
        if len(seeds) != self.num_envs:
            raise ValueError(f"seed: expected one for each of {self.num_envs} lanes, got {len(seeds)}")
        commands: list[Command | None] = []
        for worker in self._workers:
            mine = options
            if options is not None and "reset_mask" in options:
                mine = options | {"reset_mask": options["reset_mask"][worker.lanes]}
            idle = mine is not None and not np.any(mine.get("reset_mask", True))
            commands.append(None if idle else _Reset(list(seeds[worker.lanes]), mine))
        infos = self._exchange(commands)
        return self._rows.observation.copy(), infos

    def step(
        self, actions: NDArray
    ) -> tuple[NDArray, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """As SyncVectorEnv's, with the infos of lanes whose episode ended, and every lane's target.

        Raises:
          EnvError: if an environment raises; all workers have ended by then.
          WorkerError: if a worker dies; so have the others.
        """
        self._rows.action[:] = actions
        infos = self._exchange([_STEP] * len(self._workers))
        rows = self._rows
        return rows.observation.copy(), rows.reward.copy(), rows.terminated.copy(), rows.truncated.copy(), infos

    def _exchange(self, commands: "Sequence[Command | None]") -> dict[str, Any]:
        """Send every worker its command, None for none at all, and wait for the replies; returns their infos."""
        if self.closed:
            raise ClosedEnvironmentError("the workers have ended: make a new environment")
        infos: dict[str, Any] = {}
        told = [(worker, command) for worker, command in zip(self._workers, commands, strict=True) if command]
        try:
            for worker, command in told:
                worker.send(command)
            for worker, _ in told:
                for lane, info in worker.receive():
                    infos = self._add_info(infos, info, lane)
        except BaseException:  # Ctrl-C included: unread replies would be taken for those to the next command
            self.close()
            raise
        return infos

    def close_extras(self, **kwargs: Any) -> None:
        """Ends the workers, by force those that take long."""
        self._end_workers()


class _Reset(NamedTuple):
    seeds: list[int | None]
    options: dict[str, Any] | None


_STEP = b"step"
Command = _Reset | bytes


class _Rows(NamedTuple):
    """What passes between the processes at a step, each `[N, ...]`."""

    action: NDArray
    observation: NDArray
    reward: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]


class _SharedLanes:
    """The memory of `_Rows`, which can be sent to a process that is being spawned."""

    def __init__(self, context: SpawnContext, num_envs: int, observation: Box | MultiDiscrete, action: Space) -> None:
        assert action.shape is not None
        assert action.dtype is not None
        self.num_envs = num_envs
        self.kinds: tuple[tuple[DTypeLike, tuple[int, ...]], ...] = (
            (action.dtype, action.shape),
            (observation.dtype, observation.shape),
            (np.float64, ()),
            (np.bool_, ()),
            (np.bool_, ()),
        )
        sizes = (num_envs * math.prod(shape) * np.dtype(dtype).itemsize for dtype, shape in self.kinds)
        self.memory = [context.RawArray(ctypes.c_byte, size) for size in sizes]

    def rows(self) -> _Rows:
        """The arrays in the memory."""
        arrays = (
            np.frombuffer(memoryview(memory), dtype).reshape(self.num_envs, *shape)
            for memory, (dtype, shape) in zip(self.memory, self.kinds, strict=True)
        )
        return _Rows(*arrays)


class _Worker:
    """The parent's handle of a worker process."""

    def __init__(self, context: SpawnContext, make_lanes: MakeLanes, lanes: slice, shared: _SharedLanes) -> None:
        self.lanes = lanes
        self.connection, theirs = context.Pipe()
        with theirs:  # closed here, so that its end is seen when the worker dies
            pickled = CloudpickleWrapper(make_lanes)  # type: ignore[type-var, arg-type]  # it takes any function
            self.process = context.Process(target=_work, args=(pickled, lanes, shared, theirs), daemon=True)
            self.process.start()

    def send(self, command: Command) -> None:
        """Tell it what to do; if it is dead, `receive` will say why."""
        with suppress(OSError):
            self.connection.send(command)

    def receive(self) -> LaneInfos:
        """Wait for its reply. Raises WorkerError if its environment failed or it died."""
        name = f"the worker of lanes {self.lanes.start} to {self.lanes.stop - 1}"
        try:
            reply = self.connection.recv()
        except (EOFError, OSError):
            self.process.join(SECONDS_TO_END)
            raise WorkerError(f"{name} {describe_death(self.process.exitcode)}; the others were ended") from None
        if isinstance(reply, Fault):
            error = (EnvError if reply.is_envs else WorkerError)(f"{reply.summary} [{name}; the others were ended]")
            if reply.trace:
                error.add_note(reply.trace)
            raise error
        return reply


def _end(workers: list[_Worker]) -> None:
    """A worker ends when its pipe does, unless its environment never comes back."""
    for worker in workers:
        worker.connection.close()
    end_all([worker.process for worker in workers])
    workers.clear()


def _work(pickled: Any, lanes: slice, shared: _SharedLanes, connection: Connection) -> None:
    """A worker process, from its first line to its last; it ends when the parent's end of the pipe does."""
    leave_stops_to_the_parent()
    make_lanes: MakeLanes = pickled.fn
    rows = shared.rows()
    with suppress(Exception), ExitStack() as stack:  # the parent may be gone
        try:
            env = stack.enter_context(closing(make_lanes(lanes.stop - lanes.start)))
            connection.send([])
            for command in _commands(connection):
                connection.send(_obey(command, env, lanes, rows))
        except Exception as error:
            connection.send(Fault.of(error))


def _commands(connection: Connection) -> Iterator[Command]:
    """The parent's commands, until it closes its end of the pipe or dies."""
    with suppress(EOFError, OSError):
        while True:
            yield connection.recv()


def _obey(command: Command, env: VectorEnv, lanes: slice, rows: _Rows) -> LaneInfos:
    """Run a command on a worker's own lanes; returns the infos to send."""
    if isinstance(command, _Reset):
        rows.observation[lanes], infos = env.reset(seed=command.seeds, options=command.options)  # type: ignore[arg-type]
        return _to_send(infos, lanes, np.zeros(env.num_envs, np.bool_))
    observation, reward, terminated, truncated, infos = env.step(rows.action[lanes])
    rows.observation[lanes], rows.reward[lanes] = observation, reward
    rows.terminated[lanes], rows.truncated[lanes] = terminated, truncated
    return _to_send(infos, lanes, terminated | truncated)


def _to_send(infos: dict[str, Any], lanes: slice, ended: NDArray[np.bool_]) -> LaneInfos:
    """All infos of lanes whose episode `ended` `[N]`, and what is sent always of the others."""
    always = {key: infos[key] for key in (ALWAYS, f"_{ALWAYS}") if key in infos}
    sent = ((lane, _lane_info(infos if ended[lane] else always, lane)) for lane in range(len(ended)))
    return [(lanes.start + lane, info) for lane, info in sent if info or ended[lane]]


def _lane_info(infos: dict[str, Any], lane: int) -> dict[str, Any]:
    """One lane's part of a vector environment's infos, as the lane's own environment returned it."""
    info: dict[str, Any] = {}
    for key, values in infos.items():
        if f"_{key}" not in infos or not infos[f"_{key}"][lane]:
            continue
        value = _lane_info(values, lane) if isinstance(values, dict) else values[lane]
        if isinstance(value, np.bool_) and values.dtype == np.bool_:
            value = bool(value)
        is_numbers = isinstance(value, np.ndarray) and value.dtype.kind in "biufc"
        if is_numbers or isinstance(value, dict | str | int | float | np.generic):
            info[key] = value
    return info
