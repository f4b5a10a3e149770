"""How well a policy plays: whole episodes, and statistics with an interval."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium.spaces import Space
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space
from scipy.stats import bootstrap
from scipy.stats import t as student
from torch import Tensor

from rmc_agents.collect import Lanes, choose
from rmc_agents.config import RunConfig
from rmc_agents.envs.making import EnvFactory, make_env, name_of
from rmc_agents.types import AgentOutput, Policy, SpaceSpec, State, TimeStep

EVALUATION_SEED = 1_000_000  # far from the seeds that lanes train on
MAX_STEPS = RunConfig.eval_max_steps  # of an episode, which may have no end of its own
MOST_LANES = 256
MOST_RESAMPLED = 5_000_000  # numbers that the bootstrap holds at once


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


class Episodes(NamedTuple):
    """What is known of each of E finished episodes."""

    returns: np.ndarray  # [E]
    lengths: np.ndarray  # [E]
    levels: np.ndarray | None  # [E]: the level reached, where the environment tells it
    successes: np.ndarray | None  # [E] bool, where the environment tells it
    corridors: np.ndarray | None  # [E]: for how many cells a cue had to be remembered, where the environment tells it
    cut: np.ndarray  # [E] bool: the limit of steps came before the episode's end


@dataclass(frozen=True)
class Statistics:
    """Figures over episodes; `ci95` is the 95 % bootstrap interval (BCa) of the mean return."""

    mean_return: float
    ci95: tuple[float, float]
    median: float
    min: float
    max: float
    mean_length: float
    episodes: int
    mean_level: float | None
    success_rate: float | None
    success_by_corridor: dict[int, float] | None  # length of the corridor to the rate, where lengths vary
    episodes_cut: int  # by the limit of steps

    @classmethod
    def of(cls, episodes: Episodes) -> "Statistics":
        """The statistics of the given episodes."""
        returns = episodes.returns
        return cls(
            mean_return=float(returns.mean()),
            ci95=bootstrap_interval(returns),
            median=float(np.median(returns)),
            min=float(returns.min()),
            max=float(returns.max()),
            mean_length=float(episodes.lengths.mean()),
            episodes=len(returns),
            mean_level=None if episodes.levels is None else float(episodes.levels.mean()),
            success_rate=None if episodes.successes is None else float(episodes.successes.mean()),
            success_by_corridor=_success_by_corridor(episodes),
            episodes_cut=int(episodes.cut.sum()),
        )


def _success_by_corridor(episodes: Episodes) -> dict[int, float] | None:
    if episodes.successes is None or episodes.corridors is None or len(lengths := np.unique(episodes.corridors)) < 2:
        return None
    return {int(length): float(episodes.successes[episodes.corridors == length].mean()) for length in lengths}


def bootstrap_interval(samples: np.ndarray, seed: int = 0) -> tuple[float, float]:
    """The 95 % bias-corrected bootstrap interval of the mean (Efron, 1987); a point where nothing varies."""
    mean = float(samples.mean())
    if len(samples) < 2 or np.allclose(samples, mean, rtol=1e-12, atol=0):
        return mean, mean
    batch = max(1, MOST_RESAMPLED // len(samples))
    interval = bootstrap((samples,), np.mean, batch=batch, rng=np.random.default_rng(seed)).confidence_interval
    return float(interval.low), float(interval.high)


def student_interval(samples: Sequence[float]) -> tuple[float, float]:
    """Student's 95 % interval of the mean, of at least two samples; a point where nothing varies."""
    mean = float(np.mean(samples))
    half = student.ppf(0.975, len(samples) - 1) * float(np.std(samples, ddof=1)) / len(samples) ** 0.5
    return mean - half, mean + half


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
    }


def cut_note(result: dict[str, Any]) -> str:
    """What is to be said of the episodes that were cut in an evaluation; nothing if none were."""
    players = {"": result["episodes_cut"], " of random play": result.get("random_episodes_cut", 0)}
    limit = f"were cut after {result['max_steps']:,} steps"
    return "; ".join(
        f"{count} of {result['episodes']} episodes{player} {limit}" for player, count in players.items() if count
    )


def _uniform(env: str | EnvFactory) -> UniformPolicy:
    """Uniform random play of an environment."""
    with closing(make_env(env)) as one:
        spec = SpaceSpec.of(one)
        return UniformActions(spec, one.single_action_space) if spec.action_space else UniformPolicy(spec)


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
        _joined([part.corridors for part in parts]),
        np.concatenate([part.cut for part in parts]),
    )


def _joined(parts: list[np.ndarray | None]) -> np.ndarray | None:
    """One array, unless some part is not known."""
    known = [part for part in parts if part is not None]
    return np.concatenate(known) if len(known) == len(parts) else None


def _joined_successes(parts: list[Episodes]) -> np.ndarray | None:
    """As `_joined`, but where some are told the rest are failures: some environments tell of successes alone."""
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
    facts: dict[str, np.ndarray] = {}
    playing = np.ones(lanes.num_lanes, bool)
    for _ in range(max_steps):
        output, state = policy.step(lanes.steps, state)
        steps = lanes.step(choose(policy, output, generator, deterministic))
        returns += np.where(playing, steps.prev_reward.cpu().numpy(), 0.0)
        lengths += playing
        ended = playing & (steps.terminated | steps.truncated).cpu().numpy()
        for key in {"level", "is_success", "corridor_length"} & lanes.infos.keys():
            facts.setdefault(key, np.zeros(lanes.num_lanes))[ended] = lanes.infos[key][ended]
        playing &= ~ended
        if not playing.any():
            break
    levels, successes, corridors = map(facts.get, ("level", "is_success", "corridor_length"))
    return Episodes(returns, lengths, levels, successes, corridors, playing)
