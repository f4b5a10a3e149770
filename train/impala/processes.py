"""Actors in processes on this machine: rollouts and weights pass through shared memory.

There are no listening ports: parent and actor share an anonymous socket pair and anonymous memory, which the system
frees however the processes end.
"""

import ctypes
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from typing import Any

import cloudpickle
import torch

from rmc_agents.envs.processes import (
    GUARD,
    SECONDS_TO_END,
    ChildContext,
    Fault,
    describe_death,
    end_all,
    stop_signals_blocked,
)
from rmc_agents.runs import checkpoint

from .actors import Actor, MakeActor, packed
from .pool import Arrival, Failure

GRANT = b"g"


class ProcessEngine:
    """An `ActorEngine` of processes on this machine.

    Actors are started like the workers of `envs.workers`. Each has one slot of shared memory per rollout that it may
    be ahead, and writes its parcels into the slots in rotation.

    Args:
      make_actor: creates an actor from its index; pickled by cloudpickle.
      actors: number of actors.
      slots: per actor, the maximum number of outstanding rollouts.
      parcel_bytes: maximum size of a parcel.
      weights_bytes: size of packed weights.
    """

    def __init__(self, make_actor: MakeActor, actors: int, slots: int, parcel_bytes: int, weights_bytes: int) -> None:
        self._make_actor = packed(make_actor)
        self._context = ChildContext()
        self._board = WeightsBoard(self._context, weights_bytes)
        self._slots = [
            [self._context.RawArray(ctypes.c_byte, parcel_bytes) for _ in range(slots)] for _ in range(actors)
        ]
        self._processes: dict[int, _ActorProcess] = {}
        self.close = Finalize(self, _end, (self._processes,), exitpriority=0)

    def start(self, actor: int, state: dict[str, Any] | None) -> None:
        """See `ActorEngine`."""
        packed = None if state is None else checkpoint.to_bytes(state)
        with stop_signals_blocked():
            started = self._context.start(_run, self._make_actor, actor, packed, self._board, self._slots[actor])
            self._processes[actor] = _ActorProcess(*started)

    def publish(self, version: int, weights: bytes) -> None:
        """See `ActorEngine`."""
        self._board.write(version, weights)

    def grant(self, actor: int) -> None:
        """See `ActorEngine`."""
        with suppress(OSError):  # if it is dead, `receive` reports it
            self._processes[actor].connection.send_bytes(GRANT)

    def receive(self, seconds: float) -> Sequence[Arrival | Failure]:
        """See `ActorEngine`."""
        actors = {process.connection: actor for actor, process in self._processes.items()}
        return [self._event(actors[ready]) for ready in wait(list(actors), seconds)]  # type: ignore[index]

    def _event(self, actor: int) -> Arrival | Failure:
        process = self._processes[actor]
        try:
            message = json.loads(process.connection.recv_bytes())
        except (EOFError, OSError):
            process.process.join(SECONDS_TO_END)
            status = process.process.exitcode
            hint = f" before its first rollout ({GUARD})" if status == 1 and not process.has_begun else ""
            self.kill(actor)
            return Failure(actor, describe_death(status) + hint)
        process.has_begun = True
        if "fault" in message:
            fault = Fault(*message["fault"])
            self.kill(actor)
            return Failure(actor, f"failed: {fault.summary}", fault.trace)
        slot = memoryview(self._slots[actor][message["slot"]])
        return Arrival(actor, bytes(slot[: message["bytes"]]))

    def kill(self, actor: int) -> None:
        """See `ActorEngine`."""
        process = self._processes.pop(actor)
        process.connection.close()
        process.process.kill()
        process.process.join()


@dataclass
class _ActorProcess:
    """The learner's handle of an actor process."""

    connection: Connection
    process: BaseProcess
    has_begun: bool = False  # it has sent something


def _end(processes: dict[int, _ActorProcess]) -> None:
    """Close the pipes, which ends the actors unless an environment hangs."""
    for process in processes.values():
        process.connection.close()
    end_all([process.process for process in processes.values()])
    processes.clear()


class WeightsBoard:
    """The newest weights in shared memory, lock-free, for many readers and one writer.

    The writer alternates between two buffers. A reader checks afterwards whether its buffer may have been overwritten,
    and then reads again. That is rare, because reading takes much less time than an update.
    """

    def __init__(self, context: BaseContext, size: int) -> None:
        self._version = context.RawValue(ctypes.c_int64, -1)
        self._places = [context.RawArray(ctypes.c_byte, size) for _ in range(2)]

    @property
    def version(self) -> int:
        """Version of the newest weights; -1 before the first."""
        return self._version.value

    def write(self, version: int, weights: bytes) -> None:
        """Publish weights. Raises ValueError unless versions increase by one."""
        if self.version >= 0 and version != self.version + 1:
            raise ValueError(f"expected version {self.version + 1}, got {version}")
        memoryview(self._places[version % 2]).cast("B")[:] = weights
        self._version.value = version

    def read(self) -> tuple[int, bytes]:
        """The newest version and its weights."""
        while True:
            version = self.version
            weights = bytes(memoryview(self._places[version % 2]))
            if self.version == version:
                return version, weights


def _run(
    make_actor: bytes,
    index: int,
    state: bytes | None,
    board: WeightsBoard,
    slots: list[Any],
    connection: Connection,
) -> None:
    """The main function of an actor process."""
    torch.set_num_threads(1)
    with suppress(OSError):  # the parent has closed its end
        try:
            with closing(cloudpickle.loads(make_actor)(index)) as actor:
                if state is not None:
                    actor.set_state(checkpoint.from_bytes(state, "the actor's state"))
                _act(actor, board, slots, connection)
        except Exception as error:
            connection.send_bytes(json.dumps({"fault": Fault.of(error)}).encode())


def _act(actor: Actor, board: WeightsBoard, slots: list[Any], connection: Connection) -> None:
    """Write one rollout per grant, into the slots in rotation."""
    for granted, waited in enumerate(_grants(connection)):
        if board.version != actor.version:
            actor.take_weights(*board.read())
        slot, parcel = granted % len(slots), actor.act(waited)
        content = parcel.to_bytes()
        if len(content) > len(memoryview(slots[slot]).cast("B")):  # the environment's state has grown
            content = parcel.without_lanes().to_bytes()
        memoryview(slots[slot]).cast("B")[: len(content)] = content
        connection.send_bytes(json.dumps({"slot": slot, "bytes": len(content)}).encode())


def _grants(connection: Connection) -> Iterator[float]:
    """Seconds waited for each grant, until the learner closes its end of the pipe."""
    with suppress(EOFError):
        while True:
            began = time.perf_counter()
            connection.recv_bytes()
            yield time.perf_counter() - began
