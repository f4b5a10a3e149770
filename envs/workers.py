"""Lanes in worker processes, several per process, for environments without a native engine."""

import ctypes
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from copy import deepcopy
from itertools import pairwise
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.util import Finalize
from typing import Any, NamedTuple

import cloudpickle
import numpy as np
from gymnasium.error import ClosedEnvironmentError
from gymnasium.spaces import Box, Space
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from .checks import checked_reset_mask, lane_seeds
from .guarded import AnyInfos
from .nested import KeyPath, numeric_leaves, pick, rebuild
from .processes import (
    GUARD,
    SECONDS_TO_END,
    ChildContext,
    Fault,
    WorkerError,
    describe_death,
    end_all,
    pickled,
    stop_signals_blocked,
)

REWARD, FLAG = Box(-np.inf, np.inf, (), np.float64), Box(0, 1, (), np.bool_)  # type: ignore[arg-type]
MakeLanes = Callable[[int], VectorEnv]
LaneInfos = list[tuple[int, dict[str, Any]]]  # a lane and its infos
ALWAYS = ("target", "action_mask", "is_success")
"""Infos sent at every step and reset: the correct action, for `--algo supervised`, the action mask, and success."""


class WorkerVectorEnv(AnyInfos):
    """A NEXT_STEP vector environment with its lanes distributed over worker processes.

    The results equal those of `make_lanes(num_envs)`: lane i gets seed + i, and every worker steps its lanes in a
    vector environment from `make_lanes`. Actions, observations, rewards and flags pass through shared memory. Infos are
    sent only at the end of an episode, limited to numbers, strings and arrays of numbers; `target`,
    `action_mask` and `is_success` are always sent. Parts of an observation that are Text are None.

    Workers are not forks of this process: a process with torch has threads, and a fork copies the locks that they hold
    but not the threads that would release them. A script that uses workers therefore needs the usual
    `if __name__ == "__main__":`. `make_lanes` contains all that the workers need and is pickled by cloudpickle.

    The workers end when the environment is closed or deleted, when this process ends in any way, and when a worker
    fails. The shared memory is anonymous, so the system frees it even if processes are killed.

    Args:
      make_lanes: takes a number of lanes and returns a NEXT_STEP vector environment with numbers or arrays as actions
        and observations.
      num_envs: number of lanes.
      num_workers: processes, from 1 to `num_envs`.

    Raises:
      ValueError: for an invalid number of workers, another autoreset mode, unsupported spaces, or lanes that cannot be
        pickled.
      EnvError: if an environment's constructor fails.
      WorkerError: if a worker dies.
    """

    def __init__(self, make_lanes: MakeLanes, num_envs: int, num_workers: int) -> None:
        if not 1 <= num_workers <= num_envs:
            raise ValueError(f"env_workers: expected 1 to {num_envs}, the number of lanes, got {num_workers}")
        with closing(make_lanes(1)) as example:
            self._describe(example, num_envs)
        observation, action = self.single_observation_space, self.single_action_space
        context, packed = ChildContext(), pickled(make_lanes, "env_workers: expected 0 for this environment")
        shared = _SharedLanes(context, num_envs, observation, action)
        self._rows = shared.rows()
        self._workers: list[_Worker] = []
        self._end_workers = Finalize(self, _end, (self._workers,), exitpriority=0)
        bounds = np.linspace(0, num_envs, num_workers + 1).astype(int).tolist()
        try:
            with stop_signals_blocked():
                for first, end in pairwise(bounds):
                    self._workers.append(_Worker(context, packed, slice(first, end), shared))
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
    ) -> tuple[Any, dict[str, Any]]:
        """As SyncVectorEnv's, `reset_mask` included, but with only the infos in `ALWAYS`."""
        seeds, mask = lane_seeds(seed, self.num_envs), checked_reset_mask(options, np.ones(self.num_envs, np.bool_))
        commands: list[Command | None] = []
        for worker in self._workers:
            mine = options
            if options is not None and "reset_mask" in options:
                mine = options | {"reset_mask": mask[worker.lanes]}
            commands.append(_Reset(list(seeds[worker.lanes]), mine) if mask[worker.lanes].any() else None)
        infos = self._exchange(commands)
        return deepcopy(self._rows.observation), infos

    def step(
        self, actions: Any
    ) -> tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """As SyncVectorEnv's, with the infos of lanes that have ended, and those in `ALWAYS` of every lane.

        Raises:
          ValueError: for actions of another shape or dtype.
          EnvError: if an environment raises; all workers have then ended.
          WorkerError: if a worker dies; the others have then ended.
        """
        for path in numeric_leaves(self.single_action_space):
            given, row = np.asarray(pick(actions, path)), pick(self._rows.action, path)
            if given.shape != row.shape or not np.can_cast(given.dtype, row.dtype, "same_kind"):
                raise ValueError(f"actions: expected {row.dtype} {row.shape}, got {given.dtype} {given.shape}")
            row[...] = given
        infos = self._exchange([_STEP] * len(self._workers))
        rows = self._rows
        return deepcopy(rows.observation), rows.reward.copy(), rows.terminated.copy(), rows.truncated.copy(), infos

    def _exchange(self, commands: "Sequence[Command | None]") -> dict[str, Any]:
        """Send every worker its command (None: no command) and wait for the replies; returns their infos."""
        if self.closed:
            raise ClosedEnvironmentError("the workers have ended: create a new environment")
        infos: dict[str, Any] = {}
        commanded = [(worker, command) for worker, command in zip(self._workers, commands, strict=True) if command]
        try:
            for worker, command in commanded:
                worker.send(command)
            for worker, _ in commanded:
                for lane, info in worker.receive():
                    infos = self._add_info(infos, info, lane)
        except BaseException:  # also Ctrl-C: unread replies would be mistaken for those to the next command
            self.close()
            raise
        return infos

    def close_extras(self, **kwargs: Any) -> None:
        """End the workers; kill those that do not end in time."""
        self._end_workers()


class _Reset(NamedTuple):
    seeds: list[int | None]
    options: dict[str, Any] | None


_STEP = b"step"
Command = _Reset | bytes


class _Rows(NamedTuple):
    """The data exchanged between the processes at a step, each `[N, ...]`."""

    action: Any  # nested like the space
    observation: Any
    reward: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]


class _SharedLanes:
    """The shared memory of `_Rows`; it can be passed to a process that is being started."""

    def __init__(self, context: BaseContext, num_envs: int, observation: Space, action: Space) -> None:
        self.num_envs = num_envs
        self.spaces: tuple[Space[Any], ...] = (action, observation, REWARD, FLAG, FLAG)
        self.memory = [
            {
                path: context.RawArray(ctypes.c_byte, num_envs * _row_bytes(leaf))
                for path, leaf in numeric_leaves(space).items()
            }
            for space in self.spaces
        ]

    def rows(self) -> _Rows:
        """The arrays in the memory."""
        return _Rows(*(self._arrays(space, memory) for space, memory in zip(self.spaces, self.memory, strict=True)))

    def _arrays(self, space: Space, memory: dict[KeyPath, Any]) -> Any:
        arrays = {
            path: np.frombuffer(memoryview(memory[path]), leaf.dtype).reshape(self.num_envs, *(leaf.shape or ()))
            for path, leaf in numeric_leaves(space).items()
        }
        return rebuild(space, arrays)


def _row_bytes(space: Space) -> int:
    return math.prod(space.shape or ()) * np.dtype(space.dtype).itemsize


class _Worker:
    """The parent's handle of a worker process."""

    def __init__(self, context: ChildContext, make_lanes: bytes, lanes: slice, shared: _SharedLanes) -> None:
        self.lanes, self.has_begun = lanes, False
        self.connection, self.process = context.start(_work, make_lanes, lanes, shared)

    def send(self, command: Command) -> None:
        """Send a command; if the worker is dead, `receive` reports it."""
        with suppress(OSError):
            self.connection.send(command)

    def receive(self) -> LaneInfos:
        """Wait for the reply. Raises WorkerError if the environment failed or the worker died."""
        name = f"the worker of lanes {self.lanes.start} to {self.lanes.stop - 1}"
        try:
            reply = self.connection.recv()
        except (EOFError, OSError):
            self.process.join(SECONDS_TO_END)
            hint = "" if self.has_begun else f" before it could begin ({GUARD})"
            death = describe_death(self.process.exitcode)
            raise WorkerError(f"{name} {death}{hint}; the others were ended") from None
        self.has_begun = True
        if isinstance(reply, Fault):
            raise reply.error(after=f" [{name}; the others were ended]")
        return reply


def _end(workers: list[_Worker]) -> None:
    """Close the pipes, which ends the workers unless an environment hangs."""
    for worker in workers:
        worker.connection.close()
    end_all([worker.process for worker in workers])
    workers.clear()


def _work(packed: bytes, lanes: slice, shared: _SharedLanes, connection: Connection) -> None:
    """The main function of a worker process; it returns when the parent closes its end of the pipe."""
    rows = shared.rows()
    with suppress(Exception), ExitStack() as stack:  # the parent may be gone
        try:
            make_lanes: MakeLanes = cloudpickle.loads(packed)
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
        observation, infos = env.reset(seed=command.seeds, options=command.options)  # type: ignore[arg-type]
        ended = np.zeros(env.num_envs, np.bool_)
    else:
        space = env.single_action_space
        action = rebuild(space, {path: pick(rows.action, path)[lanes].copy() for path in numeric_leaves(space)})
        observation, reward, terminated, truncated, infos = env.step(action)
        rows.reward[lanes], rows.terminated[lanes], rows.truncated[lanes] = reward, terminated, truncated
        ended = terminated | truncated
    for path in numeric_leaves(env.single_observation_space):
        pick(rows.observation, path)[lanes] = pick(observation, path)
    return _to_send(infos, lanes, ended)


def _to_send(infos: dict[str, Any], lanes: slice, ended: NDArray[np.bool_]) -> LaneInfos:
    """All infos of the lanes that `ended` `[N]`, and the infos that are always sent of the others."""
    always = {key: values for key, values in infos.items() if str(key).removeprefix("_") in ALWAYS}
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
        is_plain = type(value) in (str, int, float, bool)  # others, such as an IntEnum, may not be sent
        if is_numbers or is_plain or isinstance(value, dict | np.generic):
            info[key] = value
    return info
