"""All actors of a run, whatever runs them: their rollouts in, their replacement when they fail, and what is lost."""

import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from rmc_agents.collect import Episode
from rmc_agents.envs.processes import WorkerError

from .actors import Parcel, ParcelReader, UnfitParcel

TRIES = 3  # failures of an actor, one after the other without a good rollout in between, that end the run
POLL = 0.5  # seconds between looks at who hangs

logger = logging.getLogger(__name__)


class Arrival(NamedTuple):
    """A parcel has arrived; the actor may be asked for another."""

    actor: int
    content: bytes


class Failure(NamedTuple):
    """An actor has ended by itself and has to be started again."""

    actor: int
    reason: str  # what happened to it, in words that fit behind its name
    trace: str = ""  # where, if its program raised something


class ActorEngine(Protocol):
    """What runs actors, and carries rollouts and weights between them and the learner.

    An actor makes a rollout for every `grant`, in order, with the weights last published before it or newer ones.
    """

    def start(self, actor: int, state: dict[str, Any] | None) -> None:
        """Start an actor, from the state of an earlier one or from nothing. Returns before it is ready."""

    def publish(self, version: int, weights: bytes) -> None:
        """Rollouts granted from now on are made with these weights or newer; `version` grows from call to call."""

    def grant(self, actor: int) -> None:
        """Leave to make one more rollout."""

    def receive(self, seconds: float) -> Sequence[Arrival | Failure]:
        """What has happened since the last call; if nothing has, waits for so many seconds at most."""

    def kill(self, actor: int) -> None:
        """End an actor at once, without a `Failure`; what it sent before is lost."""

    def close(self) -> None:
        """End all actors and give back what they were run with."""


@dataclass
class _Seat:
    """What is known of an actor, whichever process is it at the moment."""

    snapshot: dict[str, Any] | None = None  # after the last good rollout that has come
    taken: dict[str, Any] | None = None  # after the last one that was taken
    next_sequence: int = 0
    owed: int = 0  # outstanding rollout requests
    heard: float = 0.0  # when it was last started, asked for a rollout or heard from
    failures: int = 0


class PoolCounts(NamedTuple):
    """What has become of rollouts and actors since the run was started."""

    stale: int = 0  # rollouts dropped because their weights were too old
    unfit: int = 0  # parcels that were no good rollout
    repeated: int = 0  # rollouts that had come before
    replaced: int = 0  # actors started again


class ActorPool:
    """Keeps actors running and returns their rollouts, each at most once.

    Args:
      engine: runs them; closed with the pool.
      reader: opens what they send.
      states: one for each actor: where an earlier part of the run left it, None: at the beginning.
      rollouts_ahead: how many rollouts each may be ahead of what was taken.
      max_policy_lag: how many updates old the weights of a rollout may be.
      timeout: seconds after which an actor that owes a rollout is taken to hang.

    Attributes:
      counts: what has become of rollouts and actors.
      episodes: those that ended in the rollouts that have come, since they were last taken out.
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
        self.counts = PoolCounts()
        self.episodes: list[Episode] = []
        self._seats = [_Seat(state, state) for state in states]
        for seat in self._seats:
            seat.next_sequence = 0 if seat.snapshot is None else seat.snapshot["sequence"]

    def start(self, version: int, weights: bytes) -> None:
        """Start the actors, with the weights after so many updates."""
        self.publish(version, weights)
        for actor in range(len(self._seats)):
            self._start(actor)

    @property
    def queued(self) -> int:
        """Rollouts that have come and have not been taken."""
        return len(self._queue)

    def publish(self, version: int, weights: bytes) -> None:
        """Give the actors the weights after so many updates."""
        self._version = version
        self._engine.publish(version, weights)

    def take(self, count: int) -> list[Parcel]:
        """The next rollouts, the oldest first, as soon as there are so many; those of too old weights are dropped.

        Raises:
          WorkerError: if an actor fails again and again; nothing was taken then.
        """
        self._listen(0.0)
        self._drop_stale()
        while len(self._queue) < count:
            self._listen(POLL)
            self._drop_stale()
        parcels = [self._queue.popleft() for _ in range(count)]
        for parcel in parcels:
            self._seats[parcel.actor].taken = parcel.snapshot
            self._grant(parcel.actor)
        return parcels

    def take_episodes(self) -> list[Episode]:
        """The episodes that have ended since the last call."""
        episodes, self.episodes = self.episodes, []
        return episodes

    def get_state(self) -> list[dict[str, Any] | None]:
        """The state of each actor after the last of its rollouts that was taken; None: before its first."""
        return [seat.taken for seat in self._seats]

    def close(self) -> None:
        """Ends all actors."""
        self._engine.close()

    def _start(self, actor: int) -> None:
        seat = self._seats[actor]
        self._engine.start(actor, seat.snapshot)
        waiting = sum(parcel.actor == actor for parcel in self._queue)
        seat.owed = 0
        seat.heard = time.monotonic()
        for _ in range(self._rollouts_ahead - waiting):
            self._grant(actor)

    def _grant(self, actor: int) -> None:
        seat = self._seats[actor]
        if seat.owed == 0:
            seat.heard = time.monotonic()
        seat.owed += 1
        self._engine.grant(actor)

    def _listen(self, seconds: float) -> None:
        for event in self._engine.receive(seconds):
            if isinstance(event, Failure):
                self._replace(event)
            else:
                self._admit(event)
        now = time.monotonic()
        for actor, seat in enumerate(self._seats):
            if seat.owed and now - seat.heard > self._timeout:
                self._engine.kill(actor)
                self._replace(Failure(actor, f"has not sent a rollout for {self._timeout:g} s"))

    def _admit(self, event: Arrival) -> None:
        seat = self._seats[event.actor]
        seat.owed, seat.heard = seat.owed - 1, time.monotonic()
        try:
            parcel = self._reader.open(event.content, event.actor)
            if parcel.version > self._version:
                raise UnfitParcel(
                    f"version: expected at most {self._version}, which is the newest, got {parcel.version}"
                )
        except UnfitParcel as error:
            self._count(unfit=1)
            self._note_failure(Failure(event.actor, f"sent something that is no rollout of this run: {error}"))
            self._grant(event.actor)
            return
        if parcel.sequence < seat.next_sequence:
            self._count(repeated=1)
            self._grant(event.actor)
            return
        seat.next_sequence, seat.snapshot, seat.failures = parcel.sequence + 1, parcel.snapshot, 0
        self.episodes += parcel.episodes
        self._queue.append(parcel)

    def _replace(self, failure: Failure) -> None:
        self._note_failure(failure)
        self._count(replaced=1)
        self._start(failure.actor)

    def _note_failure(self, failure: Failure) -> None:
        """Raises WorkerError if it was one too many."""
        seat = self._seats[failure.actor]
        seat.failures += 1
        if seat.failures < TRIES:
            logger.warning("actor %d %s", failure.actor, " ".join(failure.reason.split()))
            return
        error = WorkerError(f"actor {failure.actor} {failure.reason}; {TRIES} failures without a rollout in between")
        if failure.trace:
            error.add_note(failure.trace)
        raise error

    def _drop_stale(self) -> None:
        oldest = self._version - self._max_policy_lag
        stale = [parcel.actor for parcel in self._queue if parcel.version < oldest]
        self._queue = deque(parcel for parcel in self._queue if parcel.version >= oldest)
        self._count(stale=len(stale))
        for actor in stale:
            self._grant(actor)

    def _count(self, **more: int) -> None:
        self.counts = self.counts._replace(**{name: getattr(self.counts, name) + n for name, n in more.items()})
