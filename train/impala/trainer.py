"""IMPALA (Espeholt et al., 2018): actors collect rollouts continuously, and the learner corrects for older weights.

Agent, lanes and rollouts are as in A2C, but in other processes. An actor starts each rollout with the newest weights.
Meanwhile the learner makes further updates, so the policy that acted is some updates older than the one that learns;
V-trace corrects for that.
"""

import math
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rmc_agents import losses, plugins
from rmc_agents.config import Config
from rmc_agents.envs.processes import available_memory
from rmc_agents.episodes import EndedEpisodes, Episode
from rmc_agents.losses import Metrics
from rmc_agents.train import distributed
from rmc_agents.train.learner import Learner, state_norm
from rmc_agents.tree_checks import Either
from rmc_agents.types import Rollout, UnrollOutput, map_leaves

from .actors import Actor, Parcel, ParcelReader, pack_weights
from .pool import ActorEngine, ActorPool
from .processes import ProcessEngine

ROOM = 1 << 16  # bytes by which the text in parcels may differ
BYTES_OF_EPISODE = 32  # four float64 (`to_rows`); at most one per step in a parcel
BYTES_OF_ACTOR = 250 << 20  # to leave for each actor; with Mini PacMan and an LSTM it has 112 MiB (218 not on Linux)


class Impala(Learner):
    """A run with asynchronous actors. A checkpoint also holds the actors' states, where they can be saved.

    Which rollouts share an update depends on their arrival, so no two runs are bitwise equal.

    With several learners (see `distributed`), each has the number of actors and rollouts per update of the settings.
    Frames, losses and episodes are those of all learners, other metrics those of this one. Each learner normalises the
    advantages of its own rollouts.

    Args:
      config: all settings.
      device: of the learner's agent; actors are on the CPU.

    Raises:
      ValueError: for settings that do not fit together.
    """

    lanes: "ActorLanes"

    def __init__(self, config: Config, device: torch.device) -> None:
        config = config.settled()
        check_settings(config)
        with closing(Actor(config, 0)) as example:
            spec, parcel = example.lanes.spec, example.act(waited=0.0)
            self._actor_state = example.expected_state()
        self._reader = ParcelReader(parcel.rollout, spec)
        self._parcel_bytes = len(parcel.to_bytes()) + ROOM + BYTES_OF_EPISODE * parcel.rollout.value.numel()
        super().__init__(config, spec, device)
        self.lanes = ActorLanes(device)
        self._states: Sequence[dict[str, Any] | None] = [None] * (int(config.run.learners) * config.actors.actors)
        self._learned: list[dict[str, Any] | None] = []  # states of this learner's actors, once there is a pool
        self._pool: ActorPool | None = None

    def update(self) -> Metrics:
        """Learn from the next rollouts. Returns metrics."""
        pool = self._pool or self._start()
        began = time.perf_counter()
        with distributed.failing_together():
            parcels = pool.take(self.config.actors.rollouts_per_update)
        self._learned = pool.get_state()  # not if another learner has failed
        idle = time.perf_counter() - began
        self.lanes.episodes += pool.take_episodes()
        rollout = concatenated([parcel.rollout for parcel in parcels], self.lanes.device)
        metrics = self.learn(rollout)
        steps, lanes = rollout.value.shape
        self.frames += steps * lanes * distributed.size()
        self.updates += 1
        pool.publish(self.updates, pack_weights(self.agent))
        return metrics | self._actor_metrics(pool, parcels, idle / (time.perf_counter() - began))

    def learn(self, rollout: Rollout) -> Metrics:
        """Take one optimizer step, unless there are only fillers between episodes."""
        output, state = self.agent.unroll(rollout.steps, rollout.initial_state)
        steps = (~rollout.steps.is_first[1:]).sum()
        metrics = self._optimize(*self._loss(output, rollout), steps) if distributed.total(steps) > 0 else {}
        return metrics | {"charts/recurrent_state_norm": state_norm(state).detach()}

    def _loss(self, output: UnrollOutput, rollout: Rollout) -> tuple[Tensor, Metrics]:
        """The loss with V-trace, or, with `vtrace` off, as if the current weights had acted."""
        config = self.train
        costs = ("value_cost", "entropy_cost", "reward_cost")
        names = ("discount", "trace_lambda", "reward_scale", "normalize_advantages", *costs)
        options = {name: getattr(config, name) for name in names}
        if not config.vtrace:
            return losses.a2c(output, rollout, **options)
        return losses.vtrace(output, rollout, **options, clip_rho=config.clip_rho, clip_pg_rho=config.clip_pg_rho)

    def _actor_metrics(self, pool: ActorPool, parcels: Sequence[Parcel], idle: float) -> Metrics:
        lag = [self.updates - 1 - parcel.version for parcel in parcels]
        acted, waited = (sum(getattr(parcel, name) for parcel in parcels) for name in ("acted", "waited"))
        scalars = {
            "policy_lag": sum(lag) / len(lag),
            "queue_depth": pool.queued,
            "learner_idle": idle,
            "actor_idle": waited / (acted + waited),
            **asdict(pool.counts),
        }
        return {f"actors/{name}": torch.tensor(float(value)) for name, value in scalars.items()}

    def _start(self) -> ActorPool:
        """Start the actors, at the first update, when any resumed state is known."""
        settings, first = self.config.actors, distributed.rank() * self.config.actors.actors
        weights = pack_weights(self.agent)
        self._pool = ActorPool(
            self._make_engine(len(weights)),
            self._reader,
            self._states[first : first + settings.actors],
            rollouts_ahead=settings.rollouts_ahead,
            max_policy_lag=settings.max_policy_lag,
            timeout=settings.actor_timeout,
        )
        self._learned = self._pool.get_state()
        self._pool.start(self.updates, weights)
        return self._pool

    def _make_engine(self, weights_bytes: int) -> ActorEngine:
        settings = self.config.actors
        make_actor = plugins.carried(partial(Actor, self.config, learner=distributed.rank()), self.config.env.env)
        if settings.actor_engine == "ray":
            from .ray_engine import RayEngine

            return RayEngine(make_actor, settings.actors, settings.ray_address)
        return ProcessEngine(make_actor, settings.actors, settings.rollouts_ahead, self._parcel_bytes, weights_bytes)

    def close(self) -> None:
        """End the actors."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def describe(self) -> list[str]:
        """The first lines that a run prints."""
        settings, learners = self.config.actors, int(self.config.run.learners)
        each = f" of each of {learners} learners" if learners > 1 else ""
        return [
            *super().describe(),
            f"actors{each}: {settings.actors} of {settings.lanes_per_actor} lanes ({settings.actor_engine}), rollouts "
            f"per update: {settings.rollouts_per_update}",
        ]

    def resume_notes(self, state: dict[str, Any]) -> list[str]:
        """Reasons why resuming from a checkpoint's tree is not exact."""
        return ["which rollouts share an update depends on timing, so the resume is not exact"]

    def get_state(self) -> dict[str, Any]:
        """The tree of a checkpoint (see `checkpoint`). Collective once actors run: all learners call this together."""
        states = self._states if self._pool is None else distributed.gather(self._learned)
        return super().get_state() | {"actors": list(states)}

    def expected_state(self) -> dict[str, Any]:
        """As `Learner.expected_state`."""
        return super().expected_state() | {"actors": [Either(None, self._actor_state)] * len(self._states)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint's tree: each actor after its last rollout that was learned from.

        With another number of learners, additional actors start from the beginning, and surplus ones are dropped.
        """
        saved, actors = list(state["actors"]), len(self._states)
        state = state | {"actors": [*saved, *[None] * (actors - len(saved))][:actors]}
        self.check_state(state)
        with closing(Actor(self.config, 0)) as actor:
            for actor_state in filter(None, state["actors"]):
                actor.set_state(actor_state)  # checked here, so an invalid state is reported as the checkpoint's fault
        super().set_state(state)
        self._states = state["actors"]


class ActorLanes(EndedEpisodes):
    """Stands in for lanes that are in other processes.

    Attributes:
      device: of the learner's agent.
      episodes: those that ended since the last `take_episodes`.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.episodes: list[Episode] = []


def concatenated(rollouts: Sequence[Rollout], device: torch.device) -> Rollout:
    """Concatenate rollouts along the lane axis."""
    by_time = [rollout._replace(initial_state=None, targets=None, distribution=None) for rollout in rollouts]
    joined: Rollout = map_leaves(lambda *parts: torch.cat(parts, dim=1).to(device), *by_time)
    state = map_leaves(lambda *parts: torch.cat(parts).to(device), *(rollout.initial_state for rollout in rollouts))
    return joined._replace(initial_state=state, distribution=rollouts[0].distribution)


def check_settings(config: Config) -> None:
    """Raises ValueError for settings that do not fit together."""
    settings = config.actors
    actors, batch = settings.actors, settings.rollouts_per_update
    if batch > actors:
        raise ValueError(f"batch_rollouts: expected at most as many as there are actors, {actors}, got {batch}")
    if batch * settings.lanes_per_actor * config.train.unroll_length < 2 and config.train.normalize_advantages:
        raise ValueError(
            "updates: expected at least 2 frames, batch_rollouts * lanes_per_actor * unroll_length, to normalise their "
            "advantages, got 1"
        )
    oldest = math.ceil(actors * settings.rollouts_ahead / batch)
    if settings.max_policy_lag < oldest:
        raise ValueError(
            f"max_policy_lag: expected at least actors * rollouts_ahead / batch_rollouts = {oldest}, the lag when the "
            f"learner is slower than the actors, got {settings.max_policy_lag}; raise it or batch_rollouts"
        )
    learners = distributed.on_this_machine(int(config.run.learners))
    room = available_memory() // BYTES_OF_ACTOR // learners
    if settings.actor_engine == "local" and actors > room:
        of_each = " of each learner" if learners > 1 else ""
        raise ValueError(f"actors: expected at most {room}{of_each}, limited by memory, got {actors}")
    if settings.actor_engine == "ray" and not plugins.is_installed("ray"):
        raise ValueError("--actor-engine ray needs Ray: pip install 'rmc-agents[ray]'")
    if settings.actor_engine != "ray" and settings.ray_address is not None:
        raise ValueError(f"ray_address: expected None without --actor-engine ray, got {settings.ray_address!r}")
    if config.run.diagnostics:
        raise ValueError("diagnostics: expected algo a2c, ppo or supervised, got impala")
    if config.env.env_workers:
        raise ValueError(
            f"env_workers: expected 0 for impala, whose actors are processes, got {config.env.env_workers}"
        )
