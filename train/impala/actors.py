"""An actor of IMPALA: the agent in its own lanes, and the messages it sends to the learner."""

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import numpy as np
import safetensors.torch
import torch

from rmc_agents.collect import Collector
from rmc_agents.config import Config
from rmc_agents.envs.processes import pickled
from rmc_agents.envs.registry import make_vector_env
from rmc_agents.episodes import Episode, from_rows, to_rows
from rmc_agents.runs import checkpoint
from rmc_agents.spaces import SpaceSpec
from rmc_agents.stream import Lanes, check_ranges, seed_after
from rmc_agents.train.learner import diverged, is_lost, make_agent
from rmc_agents.tree_checks import check_like, unbounded
from rmc_agents.types import Rollout, TimeStep, map_leaves

CPU = torch.device("cpu")


class Parcel(NamedTuple):
    """A rollout for the learner, with its origin."""

    actor: int
    sequence: int  # of this actor's rollouts, from 0
    version: int  # of the weights it was made with: their number of updates
    acted: float  # seconds spent acting
    waited: float  # seconds the actor had waited before it
    rollout: Rollout
    episodes: list[Episode]  # that ended in it
    snapshot: dict[str, Any]  # the actor's state after it, for `Actor.set_state`

    def without_lanes(self) -> Self:
        """The parcel with a smaller state, after which new episodes begin."""
        collector = self.snapshot["collector"] | {"lanes": None, "core": None}
        return self._replace(snapshot=self.snapshot | {"collector": collector})

    def to_bytes(self) -> bytes:
        """Serialise in the format of checkpoints, which cannot carry code and detects damage."""
        tree = self._asdict() | {"rollout": _packed(self.rollout), "episodes": to_rows(self.episodes)}
        return checkpoint.to_bytes(tree)


class Actor:
    """Runs the agent in its lanes, with weights from the learner.

    Args:
      config: all settings, settled.
      index: the actor's index in its learner; its lane i is lane `index * lanes_per_actor + i` of the run.
      learner: the index of its learner; actors are numbered learner by learner.

    Attributes:
      sequence: the number of its next rollout.
      version: the version of the weights.
    """

    def __init__(self, config: Config, index: int, learner: int = 0) -> None:
        self.index, lanes_per_actor = index, config.actors.lanes_per_actor
        number = learner * config.actors.actors + index
        self._seed = seed_after(config.run.seed, 0) + number * lanes_per_actor
        self._frames = config.train.unroll_length * lanes_per_actor
        wanted = config.env
        env = make_vector_env(wanted.env, lanes_per_actor, backend=wanted.env_backend, env_kwargs=wanted.env_kwargs)
        self.lanes = Lanes(env, self._seed, CPU)
        self.agent = make_agent(config, self.lanes.spec, CPU)
        if config.run.backend == "triton":  # the learner's
            self.agent.core.backend = "auto"
        seed = int(np.random.SeedSequence((config.run.seed, number)).generate_state(1, np.uint32)[0])
        self.collector = Collector(self.agent, self.lanes, config.train.unroll_length, seed)
        self.sequence, self.version = 0, -1

    def take_weights(self, version: int, weights: bytes) -> None:
        """Act with these weights, from `pack_weights`, from now on."""
        self.agent.load_state_dict(safetensors.torch.load(weights))
        self.version = version

    def act(self, waited: float) -> Parcel:
        """Collect the next rollout; `waited` is the time in seconds spent waiting for the request.

        Raises:
          Diverged: if the core's state becomes NaN.
        """
        began = time.perf_counter()
        rollout = self.collector.collect()
        if is_lost(self.collector.state, self.agent):
            raise diverged("in an actor (the core's state is NaN)")
        sequence, self.sequence = self.sequence, self.sequence + 1
        acted = time.perf_counter() - began
        episodes = self.lanes.take_episodes()
        return Parcel(self.index, sequence, self.version, acted, waited, rollout, episodes, self.get_state())

    def get_state(self) -> dict[str, Any]:
        """The state from which another actor with this index continues."""
        return {"sequence": self.sequence, "collector": self.collector.get_state()}

    def expected_state(self) -> dict[str, Any]:
        """The structure of a saved state (see `tree_checks`)."""
        return {"sequence": 0, "collector": self.collector.expected_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from a state of `get_state`; with new episodes if the environment cannot be saved."""
        self.sequence = state["sequence"]
        if state["collector"]["lanes"] is None:
            self.lanes.reset(seed_after(self._seed, self.sequence * self._frames))
        self.collector.set_state(state["collector"])

    def close(self) -> None:
        """Close the environments."""
        self.lanes.env.close()


MakeActor = Callable[[int], Actor]
"""Creates an actor from its index."""


def packed(make_actor: MakeActor) -> bytes:
    """It for other processes. Raises ValueError if it cannot be sent to them."""
    return pickled(make_actor, "algo: expected another than impala for this environment")


def pack_weights(agent: torch.nn.Module) -> bytes:
    """Serialise an agent's weights for the actors; the size depends only on the architecture.

    Raises:
      ValueError: for extra state of a custom module (`get_extra_state`).
    """
    state = agent.state_dict()
    if other := [name for name, value in state.items() if not isinstance(value, torch.Tensor)]:
        raise ValueError(f"algo impala: expected only tensors in the agent's state, got {other[0]}; use algo ppo")
    weights = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in state.items()}
    return safetensors.torch.save(weights)


class UnfitParcel(ValueError):
    """An actor sent something other than a rollout of this run; the message says what."""


class ParcelReader:
    """Opens parcels and rejects any that an actor of this run would not send.

    Args:
      example: a rollout from an actor of this run.
      spec: the environment's spaces.
    """

    def __init__(self, example: Rollout, spec: SpaceSpec) -> None:
        self.spec = spec
        self._most_episodes = example.value.numel()
        self._state = example.initial_state
        self._expected = _packed(example._replace(initial_state=unbounded(self._state)))

    def open(self, content: bytes, actor: int) -> Parcel:
        """The parcel that `Parcel.to_bytes` packed.

        Args:
          content: the bytes from an actor.
          actor: the actor's index.

        Raises:
          UnfitParcel: for damaged bytes, a wrong shape or dtype, or numbers that are not finite or out of range.
        """
        try:
            tree = checkpoint.from_bytes(content, "the parcel")
            rollout = self._rollout(tree["rollout"])
            parcel = Parcel(**tree)._replace(rollout=rollout, episodes=self._episodes(tree["episodes"]))
            next_sequence = parcel.snapshot["sequence"]
        except ValueError as error:
            raise UnfitParcel(str(error)) from error
        except Exception as error:  # invalid content can fail in any way
            raise UnfitParcel(f"{type(error).__name__}: {error}") from error
        counts = (parcel.actor, parcel.sequence, parcel.version)
        if parcel.actor != actor or any(type(count) is not int or count < 0 for count in counts):
            raise UnfitParcel(f"expected a parcel of actor {actor}, got actor, sequence and version {counts}")
        if type(next_sequence) is not int or next_sequence != parcel.sequence + 1:
            raise UnfitParcel(f"snapshot: expected one after rollout {parcel.sequence}, got one before {next_sequence}")
        for seconds in (parcel.acted, parcel.waited):
            if type(seconds) is not float or not 0.0 <= seconds < math.inf:
                raise UnfitParcel(f"acted, waited: expected seconds, got {seconds}")
        return parcel

    def _rollout(self, parts: dict[str, Any]) -> Rollout:
        check_like(parts, self._expected, "rollout")
        state = map_leaves(lambda _, leaf: leaf, self._state, tuple(parts["initial_state"]))  # of the core's own type
        own = {"steps": TimeStep(**parts["steps"]), "initial_state": state, "distribution": self.spec.distribution}
        rollout = Rollout(**parts | own)
        check_ranges(rollout.steps, self.spec)
        _check_boundaries(rollout.steps)
        return rollout

    def _episodes(self, rows: np.ndarray) -> list[Episode]:
        check_like(rows, np.zeros((min(len(rows), self._most_episodes), len(Episode._fields))), "episodes")
        return from_rows(rows)


def _check_boundaries(steps: TimeStep) -> None:
    is_last = steps.terminated | steps.truncated
    if (steps.is_first[1:] != is_last[:-1]).any():
        raise UnfitParcel("is_first: expected it after the last step of an episode, and nowhere else")


def _packed(rollout: Rollout) -> dict[str, Any]:
    """The rollout as part of a tree (see `checkpoint`), without the distribution, which follows from the spaces."""
    parts = {"steps": rollout.steps._asdict(), "initial_state": list(rollout.initial_state), "distribution": None}
    return rollout._asdict() | parts
