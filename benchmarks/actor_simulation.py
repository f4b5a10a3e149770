"""IMPALA in simulation, event by event: actors, the learner, and the network between them, of any size.

The rules are those of `ActorPool` and `ActorEngine`: an actor has leave for some rollouts ahead, begins each with the
newest weights, and gets leave for one more when one of its own is taken; the learner takes rollouts in the order in
which they come and drops what is too old. Every machine fetches each version of the weights once, and only when one
of its actors begins a rollout. The learner has one link in each direction, which carries one thing after the other.
Weights and rollouts of one update are the same number of bytes always; how long a rollout takes is drawn from what
was measured.
"""

import math
import random
from collections import Counter
from collections.abc import Generator
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import simpy

Process = Generator[simpy.Event, Any, Any]


class Costs(NamedTuple):
    """What things cost on one core of the machine where they were measured; seconds, and bytes."""

    frames: int  # of a rollout
    act: list[float]  # to make a rollout and to pack it, measured again and again
    take_weights: float  # an actor's, before a rollout
    open_parcel: float  # the learner's, for each rollout
    update: float  # of an update, beside what each rollout adds
    rollout: float  # that each rollout adds to an update
    pack_weights: float  # after an update
    parcel_bytes: int
    weights_bytes: int


class Site(NamedTuple):
    """What actors and learner run on, and with which settings."""

    actors: int  # on a core each
    batch_rollouts: int
    gigabits: float = math.inf  # per second, of the learner's link
    learner_speed: float = 1.0  # how many times as fast as the core that was measured
    actors_per_machine: int = 32
    rollouts_ahead: int = 2
    max_policy_lag: int = 16

    @property
    def machines(self) -> int:
        """Those of the actors."""
        return math.ceil(self.actors / self.actors_per_machine)

    def seconds(self, size: int) -> float:
        """That so many bytes take on the learner's link."""
        return 8e-9 * size / self.gigabits


class Outcome(NamedTuple):
    """What came of it; shares are of the time."""

    frames_per_second: float
    policy_lag: float  # updates, the mean
    policy_lag_95: float  # the 95th percentile
    dropped: float  # share of the rollouts that came
    learner_idle: float
    actor_idle: float
    link_in: float
    link_out: float


def bounds(costs: Costs, site: Site) -> dict[str, float]:
    """Frames per second at most, by what limits them: each if all the rest cost nothing."""
    update = costs.update + costs.pack_weights + site.batch_rollouts * (costs.rollout + costs.open_parcel)
    copies = min(site.machines, site.batch_rollouts)  # of the weights, in an update
    rollouts = {
        "actors": site.actors / (fmean(costs.act) + costs.take_weights),
        "learner": site.learner_speed * site.batch_rollouts / update,
        "link in": _over(1, site.seconds(costs.parcel_bytes)),
        "link out": _over(site.batch_rollouts, copies * site.seconds(costs.weights_bytes)),
    }
    return {name: costs.frames * rate for name, rate in rollouts.items()}


def simulate(costs: Costs, site: Site, updates: int = 90, seed: int = 0) -> Outcome:
    """What comes of so many updates, the first third of which is not counted."""
    simulation = Simulation(costs, site, seed)
    simulation.run(updates // 3)
    before, began = Counter(simulation.counts), simulation.now
    simulation.lags.clear()
    simulation.run(updates)
    counts, seconds = simulation.counts, simulation.now - began
    told = {name: counts[name] - before[name] for name in counts}
    taken = len(simulation.lags)
    return Outcome(
        frames_per_second=taken * costs.frames / seconds,
        policy_lag=fmean(simulation.lags),
        policy_lag_95=float(np.percentile(simulation.lags, 95)),
        dropped=told.get("dropped", 0) / (taken + told.get("dropped", 0)),
        learner_idle=told["learner waits"] / seconds,
        actor_idle=told["actors wait"] / (told["actors wait"] + told["actors act"]),
        link_in=told["link in"] / seconds,
        link_out=told["link out"] / seconds,
    )


class Simulation:
    """A run, from its start.

    Attributes:
      lags: of the rollouts that were taken, in updates.
      counts: seconds, and rollouts dropped, by name.
    """

    def __init__(self, costs: Costs, site: Site, seed: int) -> None:
        self._costs, self._site, self._random = costs, site, random.Random(seed)
        self._env = simpy.Environment()
        self._link_in, self._link_out = simpy.Resource(self._env), simpy.Resource(self._env)
        self._arrived = simpy.Store(self._env)
        self._grants = [
            simpy.Container(self._env, site.rollouts_ahead, site.rollouts_ahead) for _ in range(site.actors)
        ]
        self._version = 0
        self._held: dict[int, tuple[int, simpy.Event]] = {}  # by machine: the version there, and its arrival
        self.lags: list[int] = []
        self.counts: Counter[str] = Counter()
        for actor in range(site.actors):
            self._env.process(self._act(actor))
        self._updated = self._env.event()
        self._env.process(self._learn())

    @property
    def now(self) -> float:
        """Seconds since the start."""
        return self._env.now

    def run(self, updates: int) -> None:
        """Go on until there have been so many."""
        while self._version < updates:
            self._env.run(self._updated)

    def _act(self, actor: int) -> Process:
        yield self._env.timeout(self._random.uniform(0.0, fmean(self._costs.act)))  # not all in step
        while True:
            began = self.now
            yield self._grants[actor].get(1)
            version = yield from self._fetch(actor // self._site.actors_per_machine)
            self.counts["actors wait"] += self.now - began
            seconds = self._costs.take_weights + self._random.choice(self._costs.act)
            yield self._env.timeout(seconds)
            self.counts["actors act"] += seconds
            yield from self._transfer("link in", self._link_in, self._costs.parcel_bytes)
            yield self._arrived.put((actor, version))

    def _fetch(self, machine: int) -> Process:
        """The newest version, as soon as the machine has it."""
        version = self._version
        if machine not in self._held or self._held[machine][0] != version:
            sending = self._transfer("link out", self._link_out, self._costs.weights_bytes)
            self._held[machine] = version, self._env.process(sending)
        yield self._held[machine][1]
        return version

    def _transfer(self, name: str, link: simpy.Resource, size: int) -> Process:
        with link.request() as turn:
            yield turn
            seconds = self._site.seconds(size)
            yield self._env.timeout(seconds)
            self.counts[name] += seconds

    def _learn(self) -> Process:
        costs, batch, speed = self._costs, self._site.batch_rollouts, self._site.learner_speed
        while True:
            parcels = yield from self._take()
            self.lags += [self._version - version for _, version in parcels]
            for actor, _ in parcels:
                self._grants[actor].put(1)
            yield self._env.timeout((costs.update + batch * costs.rollout + costs.pack_weights) / speed)
            self._version += 1
            self._updated.succeed()
            self._updated = self._env.event()

    def _take(self) -> Process:
        """The next rollouts that are not too old."""
        parcels: list[tuple[int, int]] = []
        while len(parcels) < self._site.batch_rollouts:
            began = self.now
            actor, version = yield self._arrived.get()
            self.counts["learner waits"] += self.now - began
            yield self._env.timeout(self._costs.open_parcel / self._site.learner_speed)
            if self._version - version <= self._site.max_policy_lag:
                parcels.append((actor, version))
            else:
                self.counts["dropped"] += 1
                self._grants[actor].put(1)
        return parcels


def _over(amount: float, seconds: float) -> float:
    return amount / seconds if seconds else math.inf
