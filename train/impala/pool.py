"""The actors of a run: receives their rollouts, replaces failed actors, and counts losses."""

import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from rmc_agents.envs.processes import Fault
from rmc_agents.episodes import EndedEpisodes, Episode

from .actors import Parcel, ParcelReader, UnfitParcel

TRIES = 3  # consecutive failures of an actor that end the run
POLL = 0.5  # seconds between checks for hung actors

logger = logging.getLogger(__name__)


class Arrival(NamedTuple):
    """A parcel has arrived; another rollout may be requested from the actor."""

    actor: int
    content: bytes


class Failure(NamedTuple):
    """An actor has ended and has to be restarted."""

    actor: int
    reason: str  # what happened, as the rest of a sentence after its name
    trace: str = ""  # the traceback, if it raised an exception


class ActorEngine(Protocol):
    """Runs actors, and transfers rollouts and weights between them and the learner.

    An actor makes one rollout per `grant`, in order, with the last weights published before it or newer ones.
    """

    def start(self, actor: int, state: dict[str, Any] | None) -> None:
        """Start an actor, new or from the state of an earlier one. Returns before it is ready."""

    def publish(self, version: int, weights: bytes) -> None:
        """Set the weights for rollouts granted from now on; `version` increases with every call."""

    def grant(self, actor: int) -> None:
        """Request one more rollout."""

    def receive(self, seconds: float) -> Sequence[Arrival | Failure]:
        """Events since the last call; waits up to `seconds` if there are none."""

    def kill(self, actor: int) -> None:
        """Kill an actor, without a `Failure`; its unread messages are lost."""

    def close(self) -> None:
        """End all actors and release their resources."""


@dataclass
class _Seat:
    """The state of an actor, independent of its current process."""

    snapshot: dict[str, Any] | None = None  # after the last valid rollout that arrived
    taken: dict[str, Any] | None = None  # after the last rollout that was taken
    next_sequence: int = 0
    outstanding: int = 0  # outstanding rollout requests
    heard: float = 0.0  # time of its last start, request or message
    failures: int = 0


@dataclass
class PoolCounts:
    """Counts of rollouts and actors since the start of the run."""

    rollouts_stale: int = 0  # dropped because of too old weights
    rollouts_unfit: int = 0  # invalid parcels
    rollouts_repeated: int = 0  # had arrived before
    actors_replaced: int = 0  # restarted


class ActorPool(EndedEpisodes):
    """Keeps actors running and returns their rollouts, each at most once.

    Args:
      engine: runs them; closed with the pool.
      reader: opens their parcels.
      states: one for each actor, from an earlier part of the run; None: a new actor.
      rollouts_ahead: rollouts that each actor may have in progress or not yet taken.
      max_policy_lag: maximum age of a rollout's weights, in updates.
      timeout: seconds after which an actor with a requested rollout counts as hung.

    Attributes:
      counts: see `PoolCounts`.
      episodes: episodes that ended in the rollouts that were taken or dropped as stale, since the last `take_episodes`.
    """

    def __init__(
        self,
        engine: ActorEngine,
        reader: ParcelReader,
        states: Sequence[dict[str, Any] | None],
        *,
        rollouts_ahead: int,
        max_policy_lag: int,
        timeout: float,
    ) -> None:
        self._engine, self._reader = engine, reader
        self._rollouts_ahead, self._max_policy_lag, self._timeout = rollouts_ahead, max_policy_lag, timeout
        self._queue: deque[Parcel] = deque()
        self._version = 0
        self._checked = time.monotonic()  # when `_listen` last looked for actors that hang
        self.counts = PoolCounts()
        self.episodes: list[Episode] = []
        self._seats = [_Seat(state, state, state["sequence"] if state else 0) for state in states]

    def start(self, version: int, weights: bytes) -> None:
        """Start the actors, with the weights after a number of updates."""
        self.publish(version, weights)
        for actor in range(len(self._seats)):
            self._start(actor)

    @property
    def queued(self) -> int:
        """Rollouts that have arrived and not been taken."""
        return len(self._queue)

    def publish(self, version: int, weights: bytes) -> None:
        """Send the actors the weights after a number of updates."""
        self._version = version
        self._engine.publish(version, weights)

    def take(self, count: int) -> list[Parcel]:
        """Wait for `count` rollouts and return them, oldest first; those with too old weights are dropped.

        Raises:
          WorkerError: if an actor fails repeatedly; no rollout is taken then.
        """
        self._listen(0.0)
        self._drop_stale()
        while len(self._queue) < count:
            self._listen(POLL)
            self._drop_stale()
        parcels = [self._queue.popleft() for _ in range(count)]
        for parcel in parcels:
            self._seats[parcel.actor].taken = parcel.snapshot
            self.episodes += parcel.episodes
            self._grant(parcel.actor)
        return parcels

    def get_state(self) -> list[dict[str, Any] | None]:
        """The state of each actor after its last rollout that was taken; None: before its first."""
        return [seat.taken for seat in self._seats]

    def close(self) -> None:
        """End all actors."""
        self._engine.close()

    def _start(self, actor: int) -> None:
        seat = self._seats[actor]
        self._engine.start(actor, seat.snapshot)
        waiting = sum(parcel.actor == actor for parcel in self._queue)
        seat.outstanding = 0
        seat.heard = time.monotonic()
        for _ in range(self._rollouts_ahead - waiting):
            self._grant(actor)

    def _grant(self, actor: int) -> None:
        seat = self._seats[actor]
        if seat.outstanding == 0:
            seat.heard = time.monotonic()
        seat.outstanding += 1
        self._engine.grant(actor)

    def _listen(self, seconds: float) -> None:
        for event in self._engine.receive(seconds):
            if isinstance(event, Failure):
                self._replace(event)
            else:
                self._admit(event)
        now = time.monotonic()
        absent, self._checked = now - self._checked, now
        for actor, seat in enumerate(self._seats):
            if absent > self._timeout:  # this process was suspended, or evaluated: no message could be read
                seat.heard = now
            if seat.outstanding and now - seat.heard > self._timeout:
                self._engine.kill(actor)
                self._replace(Failure(actor, f"has not sent a rollout for {self._timeout:g} s"))

    def _admit(self, event: Arrival) -> None:
        seat = self._seats[event.actor]
        seat.outstanding, seat.heard = seat.outstanding - 1, time.monotonic()
        try:
            parcel = self._reader.open(event.content, event.actor)
            if parcel.version > self._version:
                raise UnfitParcel(
                    f"version: expected at most {self._version}, which is the newest, got {parcel.version}"
                )
        except UnfitParcel as error:
            self.counts.rollouts_unfit += 1
            self._note_failure(Failure(event.actor, f"sent something other than a rollout of this run: {error}"))
            self._grant(event.actor)
            return
        if parcel.sequence < seat.next_sequence:
            self.counts.rollouts_repeated += 1
            self._grant(event.actor)
            return
        seat.next_sequence, seat.snapshot, seat.failures = parcel.sequence + 1, parcel.snapshot, 0
        self._queue.append(parcel)

    def _replace(self, failure: Failure) -> None:
        self._note_failure(failure)
        self.counts.actors_replaced += 1
        self._start(failure.actor)

    def _note_failure(self, failure: Failure) -> None:
        """Count a failure. Raises WorkerError at the last one allowed."""
        seat = self._seats[failure.actor]
        seat.failures += 1
        if seat.failures < TRIES:
            logger.warning("actor %d %s; it is restarted", failure.actor, " ".join(failure.reason.split()))
            return
        fault = Fault(failure.reason, failure.trace)
        raise fault.error(f"actor {failure.actor} ", f"; {TRIES} failures without a rollout in between")

    def _drop_stale(self) -> None:
        oldest = self._version - self._max_policy_lag
        dropped = [parcel for parcel in self._queue if parcel.version < oldest]
        self._queue = deque(parcel for parcel in self._queue if parcel.version >= oldest)
        self.counts.rollouts_stale += len(dropped)
        for parcel in dropped:
            self.episodes += parcel.episodes
            self._grant(parcel.actor)
