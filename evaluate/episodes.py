"""How well a policy plays: whole episodes, and statistics with an interval."""

from contextlib import closing
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Space
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space
from torch import Tensor
from torch.nn import functional

from rmc_agents.collect import Lanes, choose
from rmc_agents.envs.making import EnvFactory, make_env, name_of
from rmc_agents.evaluate.statistics import GROUPS, MAX_STEPS, Episodes, Statistics
from rmc_agents.types import AgentOutput, Policy, SpaceSpec, State, TimeStep

MOST_LANES = 256


class UniformPolicy:
    """Every action equally likely: the score that needs no agent."""

    def __init__(self, spec: SpaceSpec) -> None:
        self.num_actions = spec.num_actions

    def initial_state(self, batch_size: int) -> State:
        """None is needed."""
        return ()

    def step(self, steps: TimeStep, state: State) -> tuple[AgentOutput, State]:
        """Equal logits."""
        lanes = len(steps.is_first)
        return AgentOutput(torch.zeros(lanes, self.num_actions), torch.zeros(lanes)), state


class UniformActions(UniformPolicy):
    """The same for actions of any space."""

    def __init__(self, spec: SpaceSpec, space: Space) -> None:
        super().__init__(spec)
        self.space = space

    def choose(self, parameters: Tensor, generator: torch.Generator, deterministic: bool) -> Tensor:
        """Actions `[B, ...]`."""
        actions = batch_space(self.space, len(parameters))
        actions.seed(int(torch.randint(2**31, (), generator=generator)))
        return torch.from_numpy(actions.sample())


def evaluate(
    policy: Policy,
    env: str | EnvFactory,
    episodes: int,
    seed: int,
    device: torch.device,
    deterministic: bool = False,
    max_steps: int = MAX_STEPS,
) -> dict[str, Any]:
    """Statistics of a policy, beside the uniform random policy's on the same seeds, as plain values for JSON.

    Args:
      policy: who plays.
      env: a name, or a class or function that makes the environment, as `make_env` takes it.
      episodes: how many whole episodes; episode i begins from seed + i.
      seed: of the environments and of the draws of actions.
      device: where the policy lives.
      deterministic: take the likeliest action instead of drawing one.
      max_steps: an episode is cut after so many steps, and counts with the return it has reached.
    """
    uniform, cpu = _uniform(env), torch.device("cpu")
    statistics = Statistics.of(play(policy, env, episodes, seed, device, deterministic, max_steps))
    random = Statistics.of(play(uniform, env, episodes, seed, cpu, max_steps=max_steps))
    return {
        "env": name_of(env),
        "seed": seed,
        "deterministic": deterministic,
        "max_steps": max_steps,
        **asdict(statistics),
        "random_mean_return": random.mean_return,
        "random_ci95": random.ci95,
        "random_success_rate": random.success_rate,
        "random_episodes_cut": random.episodes_cut,
        "chance": chance(env),
    }


def _uniform(env: str | EnvFactory) -> UniformPolicy:
    """Uniform random play of an environment."""
    with closing(make_env(env)) as one:
        spec = SpaceSpec.of(one)
        return UniformActions(spec, one.single_action_space) if spec.action_space else UniformPolicy(spec)


def chance(env: str | EnvFactory) -> float | None:
    """The share of right answers that guessing gets, where the environment reports it in its metadata."""
    with closing(make_env(env)) as one:
        return one.metadata.get("chance")


def env_spec(env: str | EnvFactory) -> SpaceSpec:
    """What an agent for the environment has to fit."""
    with closing(make_env(env)) as one:
        return SpaceSpec.of(one)


def check_fits(trained_on: SpaceSpec, env: str | EnvFactory) -> None:
    """Find out whether an agent can play an environment.

    Raises:
      ValueError: naming what the agent expects and what the environment has.
    """
    found = env_spec(env)
    if found != trained_on:
        raise ValueError(
            f"the agent does not fit environment {name_of(env)!r}: expected {_described(trained_on)}, "
            f"got {_described(found)}"
        )


def _described(spec: SpaceSpec) -> str:
    numbers = f"{sum(spec.obs_categories)} categories" if spec.obs_categories else f"times {spec.obs_scale:.3g}"
    actions = spec.action_space or f"{spec.num_actions} actions"
    return f"observations {spec.obs_shape} of {spec.obs_dtype} ({numbers}) and {actions}"


@torch.no_grad()
def play(
    policy: Policy,
    env: str | EnvFactory,
    episodes: int,
    seed: int,
    device: torch.device,
    deterministic: bool = False,
    max_steps: int = MAX_STEPS,
) -> Episodes:
    """Play whole episodes, each lane one, so that short episodes are not counted more often than long ones.

    Args: as `evaluate`.

    Raises:
      ValueError: for less than one episode.
    """
    if episodes < 1:
        raise ValueError(f"episodes: expected at least 1, got {episodes}")
    parts = []
    for first in range(0, episodes, MOST_LANES):
        with closing(make_env(env, min(MOST_LANES, episodes - first))) as lanes:
            parts.append(_play_each_once(policy, lanes, seed + first, device, deterministic, max_steps))
    return Episodes(
        np.concatenate([part.returns for part in parts]),
        np.concatenate([part.lengths for part in parts]),
        _joined([part.levels for part in parts]),
        _joined_successes(parts),
        np.concatenate([part.cut for part in parts]),
        _joined([part.asked for part in parts]),
        _joined([part.right for part in parts]),
        _joined([part.nats for part in parts]),
        {name: np.concatenate([part.groups[name] for part in parts]) for name in parts[0].groups},
    )


def surprise(policy_logits: Tensor, targets: Tensor) -> Tensor:
    """-log probability of the right actions `[B]`, in nats; something finite where nothing is asked."""
    return functional.cross_entropy(policy_logits, targets.clamp(min=0), reduction="none")


def _joined(parts: list[np.ndarray | None]) -> np.ndarray | None:
    """One array, unless some part is not known."""
    known = [part for part in parts if part is not None]
    return np.concatenate(known) if len(known) == len(parts) else None


def _joined_successes(parts: list[Episodes]) -> np.ndarray | None:
    """As `_joined`, but where some are told the rest are failures: some environments report successes only."""
    if all(part.successes is None for part in parts):
        return None
    return np.concatenate([np.zeros(len(part.returns)) if part.successes is None else part.successes for part in parts])


def _play_each_once(
    policy: Policy, env: VectorEnv, seed: int, device: torch.device, deterministic: bool, max_steps: int
) -> Episodes:
    lanes = Lanes(env, seed, device)
    generator = torch.Generator(device).manual_seed(seed)
    state = policy.initial_state(lanes.num_lanes)
    returns, lengths = np.zeros(lanes.num_lanes), np.zeros(lanes.num_lanes, np.int64)
    asked, right = np.zeros(lanes.num_lanes, np.int64), np.zeros(lanes.num_lanes, np.int64)
    nats = np.zeros(lanes.num_lanes)
    facts: dict[str, np.ndarray] = {}
    playing = np.ones(lanes.num_lanes, bool)
    for _ in range(max_steps):
        output, state = policy.step(lanes.steps, state)
        action = choose(policy, output, generator, deterministic)
        if lanes.targets is not None:
            counts = playing & (lanes.targets >= 0).cpu().numpy()
            asked += counts
            right += counts & (lanes.targets == action).cpu().numpy()
            nats += np.where(counts, surprise(output.policy_logits, lanes.targets).cpu().numpy(), 0.0)
        steps = lanes.step(action)
        returns += np.where(playing, steps.prev_reward.cpu().numpy(), 0.0)
        lengths += playing
        ended = playing & (steps.terminated | steps.truncated).cpu().numpy()
        for key in {"level", "is_success", *GROUPS} & lanes.infos.keys():
            facts.setdefault(key, np.zeros(lanes.num_lanes))[ended] = lanes.infos[key][ended]
        playing &= ~ended
        if not playing.any():
            break
    groups = {name: facts[name] for name in GROUPS if name in facts}
    episodes = Episodes(returns, lengths, facts.get("level"), facts.get("is_success"), playing, groups=groups)
    return episodes if lanes.targets is None else episodes._replace(asked=asked, right=right, nats=nats)
