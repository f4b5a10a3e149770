"""Actors in a Ray cluster: each is a process on any node with a free CPU.

Ray (ray.io) starts the processes, detects when one or its node dies, and transfers parcels and weights through the
object stores of its nodes, which hold each version of the weights once. Actors work as in `processes`, except that a
rollout uses the weights from the time of its request, not from its start.
"""

import logging
import pickle
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from typing import Any, NamedTuple

import ray
import torch
from ray.exceptions import RayError

from rmc_agents.envs.processes import Fault, WorkerError
from rmc_agents.runs import checkpoint

from .actors import Actor, MakeActor, packed
from .pool import Arrival, Failure
from .ray_cluster import connect

NEVER_RAN = "The actor never ran"  # Ray's message if it placed an actor on a dead node

logger = logging.getLogger(__name__)


class Report(NamedTuple):
    """The first message of an actor process."""

    node: str  # Ray's id
    address: str  # of the node
    versions: dict[str, str]


class ActorHost:
    """An actor process. Ray runs the calls in the order in which they were made.

    Args:
      make_actor: creates an actor from its index; pickled, so `report` works even if unpickling fails.
      index: the actor's index.
      state: the state to continue from, as checkpoint bytes; None: a new actor.
    """

    def __init__(self, make_actor: bytes, index: int, state: bytes | None) -> None:
        torch.set_num_threads(1)
        self._make_actor, self._index, self._state = make_actor, index, state
        self._idle_since: float | None = None

    def report(self) -> Report:
        """The node of the process, and its package versions."""
        return Report(ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address(), find_versions())

    def act(self, weights_version: int, weights: bytes) -> bytes | Fault:
        """The next rollout's parcel, made with these weights."""
        began = time.perf_counter()
        try:
            if self._actor.version != weights_version:
                self._actor.take_weights(weights_version, weights)
            return self._actor.act(began - (self._idle_since or began)).to_bytes()
        except Exception as error:
            return Fault.of(error)
        finally:
            self._idle_since = time.perf_counter()

    @cached_property
    def _actor(self) -> Actor:
        actor = pickle.loads(self._make_actor)(self._index)
        if self._state is not None:
            actor.set_state(checkpoint.from_bytes(self._state, "the actor's state"))
        return actor


@dataclass
class _RayActor:
    """The learner's handle of an actor process."""

    state: bytes | None  # the state it started from
    host: Any  # Ray's handle of an ActorHost
    calls: deque[Any]  # references to pending results, in the order of the calls
    report: Report | None = None


class RayEngine:
    """An `ActorEngine` on Ray; only one at a time per process.

    Args:
      make_actor: creates an actor from its index; pickled by cloudpickle.
      actors: number of actors; each takes a CPU of the cluster.
      address: HOST:PORT of the cluster's head node; 'auto': the cluster of this machine; None: start a new Ray on this
        machine, which the network cannot reach.

    Raises:
      ValueError: if `make_actor` cannot be pickled, no cluster answers, or it has too few CPUs.
    """

    def __init__(self, make_actor: MakeActor, actors: int, address: str | None) -> None:
        self._make_actor, self._actors = packed(make_actor), actors
        self._placed: dict[int, _RayActor] = {}
        self._remote_host = ray.remote(num_cpus=1, scheduling_strategy="SPREAD")(ActorHost)
        connect(address, actors)

    def start(self, actor: int, state: dict[str, Any] | None) -> None:
        """See `ActorEngine`. Ray must not restart actors itself, because it would start them from an older state."""
        cpus = ray.cluster_resources().get("CPU", 0)
        if cpus < self._actors:
            logger.warning("%g CPUs are left in the Ray cluster: %d actors wait for more", cpus, self._actors - cpus)
        self._place(actor, None if state is None else checkpoint.to_bytes(state))

    def _place(self, actor: int, state: bytes | None) -> None:
        host = self._remote_host.remote(self._make_actor, actor, state)
        self._placed[actor] = _RayActor(state, host, deque([host.report.remote()]))

    def publish(self, version: int, weights: bytes) -> None:
        """See `ActorEngine`."""
        self._weights = version, ray.put(weights)

    def grant(self, actor: int) -> None:
        """See `ActorEngine`."""
        placed = self._placed[actor]
        placed.calls.append(placed.host.act.remote(*self._weights))

    def receive(self, seconds: float) -> Sequence[Arrival | Failure]:
        """See `ActorEngine`.

        Raises:
          WorkerError: if a node has other versions than the learner.
        """
        first = {placed.calls[0]: actor for actor, placed in self._placed.items() if placed.calls}
        if not first:
            time.sleep(seconds)
            return []
        ray.wait(list(first), timeout=seconds)
        ready, _ = ray.wait(list(first), num_returns=len(first), timeout=0)
        events = [self._event(first[call]) for call in ready]
        return [event for event in events if event is not None]

    def _event(self, actor: int) -> Arrival | Failure | None:
        """The result of an actor's oldest pending call; None: nothing for the pool."""
        placed = self._placed[actor]
        try:
            result = ray.get(placed.calls.popleft())
        except RayError as error:
            if NEVER_RAN in str(error):
                self._place(actor, placed.state)
                for _ in placed.calls:
                    self.grant(actor)
                return None
            self.kill(actor)
            return Failure(actor, describe_loss(placed.report, error), str(error))
        if isinstance(result, Fault):
            self.kill(actor)
            return Failure(actor, f"failed: {result.summary}", result.trace)
        if isinstance(result, Report):
            check_versions(result)
            placed.report = result
            return None
        return Arrival(actor, result)

    def kill(self, actor: int) -> None:
        """See `ActorEngine`."""
        ray.kill(self._placed.pop(actor).host)

    def close(self) -> None:
        """See `ActorEngine`. Disconnecting ends the actors, and a Ray that was started here."""
        self._placed.clear()
        ray.shutdown()


def find_versions() -> dict[str, str]:
    """The package versions that must match between learner and actors, without torch's build suffix (GPU or CPU)."""
    return {
        "rmc-agents": version("rmc-agents"),
        "torch": version("torch").split("+")[0],
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
    }


def check_versions(report: Report) -> None:
    """Raises WorkerError if an actor has other versions than this process."""
    here, there = find_versions(), report.versions
    other = [f"{name} {there.get(name)} (here {here[name]})" for name in here if there.get(name) != here[name]]
    if other:
        raise WorkerError(
            f"node {report.address} has {', '.join(other)}: expected the same versions on all nodes; install them there"
        )


def describe_loss(report: Report | None, error: RayError) -> str:
    """How a lost actor ended, as the end of a sentence that starts with its name."""
    if report is None:
        return f"did not start: {str(error).strip().splitlines()[-1]}"
    alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
    if report.node not in alive:
        return f"was lost with node {report.address}"
    return f"was killed or ended on node {report.address} (is there enough memory?)"
