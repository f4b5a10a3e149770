"""Playing whole episodes with a policy, and their statistics."""

import math
from collections.abc import Iterator
from contextlib import closing
from copy import copy
from dataclasses import asdict
from functools import partial
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from torch import Tensor

from rmc_agents import __version__
from rmc_agents.agent import ActorCritic
from rmc_agents.collect import acting, choose
from rmc_agents.distributions import forbid
from rmc_agents.envs.checks import checked_int
from rmc_agents.envs.making import EnvFactory, make_env, name_of
from rmc_agents.envs.returned_values import name_of_env
from rmc_agents.formatting import as_printable
from rmc_agents.player import device_of
from rmc_agents.runs.saved import Provenance, SavedAgent
from rmc_agents.spaces import SpaceSpec
from rmc_agents.stream import Lanes
from rmc_agents.types import AgentOutput, Policy, State, TimeStep, at

from .parallel import Jobs, Part, play_all
from .progress import OnProgress, ignore_progress
from .statistics import GROUPS, MAX_STEPS, Episodes, Statistics

MAX_LANES = 256
EXACT = 30.0
"""Negative log of a negligible standard deviation."""


class PlaySettings(NamedTuple):
    """How episodes are played."""

    seed: int  # of the environments and of action sampling; episode i starts from seed + i
    device: torch.device  # the policy's
    deterministic: bool = False  # take the most likely action instead of sampling
    max_steps: int = MAX_STEPS  # of an episode; a longer one is cut off and counts with the return so far
    answers: bool = False  # take the most likely action in environments that report targets
    needs_targets: bool = False  # targets that are not actions are errors

    @classmethod
    def of(cls, agent: SavedAgent[Any] | Policy, seed: int, deterministic: bool, max_steps: int) -> "PlaySettings":
        """The settings for an agent. Raises ValueError for numbers out of range.

        A saved agent of supervised learning takes the most likely actions. How a bare `ActorCritic` was trained is not
        known: it takes the most likely actions in environments that report targets, and samples in others.
        """
        seed, max_steps = checked_int("seed", seed, 0), checked_int("max_steps", max_steps, 1)
        if not isinstance(agent, SavedAgent):
            return cls(seed, device_of(agent), deterministic, max_steps, isinstance(agent, ActorCritic))
        supervised = agent.config.train.is_supervised
        return cls(seed, device_of(agent.agent), deterministic or supervised, max_steps, needs_targets=supervised)

    def is_greedy(self, lanes: Lanes) -> bool:
        """Whether the most likely actions are taken in this environment, and none sampled."""
        return self.deterministic or (self.answers and lanes.targets is not None)


class UniformPolicy:
    """The uniform random policy, the baseline for scores.

    Args:
      spec: of the observations and actions.
      seed: of continuous actions; evaluations use their own.
    """

    def __init__(self, spec: SpaceSpec, seed: int = 0) -> None:
        self.spec, self.generator = spec, torch.Generator().manual_seed(seed)

    def initial_state(self, batch_size: int) -> State:
        """`()`: there is no state."""
        return ()

    def step(self, steps: TimeStep, state: State) -> tuple[AgentOutput, State]:
        """Equal logits. Continuous actions are sampled here, as means of a Gaussian with negligible deviation."""
        lanes, scales = len(steps.is_first), self.spec.num_scales
        outputs, log_std = torch.zeros(lanes, self.spec.num_outputs), torch.full((lanes, scales), -EXACT)
        if scales:
            outputs[:, self.spec.is_mean] = 2 * torch.rand(lanes, scales, generator=self.generator) - 1
        parameters = forbid(torch.cat([outputs, log_std], dim=-1), steps.action_mask)
        return AgentOutput(parameters, torch.zeros(lanes)), state


def evaluate_beside_random(
    policy: Policy,
    env: str | EnvFactory,
    episodes: int,
    settings: PlaySettings,
    on_progress: OnProgress = ignore_progress,
    jobs: Jobs = 1,
) -> dict[str, Any]:
    """Statistics of a policy and of the uniform random policy on the same seeds, as plain values for JSON.

    Args:
      policy: the policy.
      env: a name, or a class or function that creates the environment, as in `make_env`.
      episodes: number of whole episodes.
      settings: of the policy; random play has the same seed and step limit.
      on_progress: called with the number of episodes that have just ended, of 2 * episodes, and first with the number
        of those that are not played.
      jobs: number of processes; the result is the same with any, unless the policy draws random numbers itself.
    """
    with closing(make_env(env)) as one:
        uniform, chance = UniformPolicy(SpaceSpec.of(one)), one.metadata.get("chance")
        chance = float(chance) if isinstance(chance, Real) and math.isfinite(chance) else None
        asked, episodes = episodes, episodes_to_play(one, episodes)
    if episodes < asked:
        on_progress(2 * (asked - episodes))
    parts = parts_of(policy, env, episodes, settings)
    at_random = settings._replace(device=torch.device("cpu"), deterministic=False, answers=False)
    played = play_all([*parts, *parts_of(uniform, env, episodes, at_random)], env, jobs, settings.device, on_progress)
    sets = [concatenated(each) for each in (played[: len(parts)], played[len(parts) :])]
    statistics, random = Statistics.of_each(sets)
    return {
        "env": name_of(env),
        "seed": settings.seed,
        "deterministic": settings.deterministic,
        "max_steps": settings.max_steps,
        **asdict(statistics),
        "random_mean_return": random.mean_return,
        "random_ci95": random.ci95,
        "random_success_rate": random.success_rate,
        "random_episodes_cut": random.episodes_cut,
        "chance": chance,
    }


def provenance_of(statistics: Statistics, seed: int, env: str | EnvFactory) -> Provenance:
    """What a saved agent's file says of its evaluation."""
    found = statistics.mean_return, statistics.ci95, statistics.episodes
    return Provenance(__version__, *found, seed, as_printable(name_of(env)), statistics.accuracy)


def env_spec(env: str | EnvFactory) -> SpaceSpec:
    """The spec of an environment."""
    with closing(make_env(env)) as one:
        return SpaceSpec.of(one)


def check_fits(trained_on: SpaceSpec, env: str | EnvFactory) -> None:
    """Check that an agent fits an environment.

    Raises:
      ValueError: if not, with the spaces of both.
    """
    check_spec_fits(trained_on, env_spec(env), name_of(env))


def check_spec_fits(trained_on: SpaceSpec, found: SpaceSpec, env: str) -> None:
    """Check that an agent fits the spaces of an environment with this name. Raises ValueError as `check_fits`."""
    if not trained_on.fits(found):
        hint = ""
        if trained_on.vocabulary and found.vocabulary and trained_on.vocabulary != found.vocabulary:
            hint = "; give --env-kwargs vocabulary=RUN/vocabulary.json, of the agent's run"
        elif (
            _has_categories(trained_on)
            and not _has_categories(found)  # of a space that make_env would encode
            and trained_on.num_actions == found.num_actions
        ):
            hint = "; agents are built for the spaces of rmc.make_env's environments"
        raise ValueError(
            f"the agent does not fit environment {env!r}: expected {trained_on.described()}, got {found.described()}"
            + hint
        )


def _has_categories(spec: SpaceSpec) -> bool:
    return any(array.categories for array in spec.arrays.values())


def play(
    policy: Policy,
    env: str | EnvFactory,
    episodes: int,
    settings: PlaySettings,
    on_progress: OnProgress = ignore_progress,
    jobs: Jobs = 1,
) -> Episodes:
    """Play whole episodes, one per lane, so that short episodes are not over-represented.

    Args: as in `evaluate_beside_random`; the numbers that `on_progress` is called with add up to the episodes played.

    Raises:
      ValueError: for fewer than one episode.
    """
    with closing(make_env(env)) as one:
        episodes = episodes_to_play(one, episodes)
    return concatenated(play_all(parts_of(policy, env, episodes, settings), env, jobs, settings.device, on_progress))


def parts_of(policy: Policy, env: str | EnvFactory, episodes: int, settings: PlaySettings) -> list[Part]:
    """Calls with at most `MAX_LANES` episodes each; their `concatenated` results are those of `play`.

    Args: as in `play`; `episodes` as `episodes_to_play` gives it.
    """
    return [
        partial(
            _play_part, policy, env, min(MAX_LANES, episodes - first), settings._replace(seed=settings.seed + first)
        )
        for first in range(0, episodes, MAX_LANES)
    ]


def episodes_to_play(env: VectorEnv, episodes: int) -> int:
    """`episodes`, or the number of different ones if the environment has fewer, such as a text in passages.

    Raises:
      ValueError: for fewer than one episode.
    """
    episodes, known = checked_int("episodes", episodes, 1), env.metadata.get("num_episodes")
    return episodes if known is None else min(episodes, checked_int("metadata['num_episodes']", known, 1))


def concatenated(parts: list[Episodes]) -> Episodes:
    """The episodes of all parts as one."""
    lengths = [len(part.returns) for part in parts]
    arrays: dict[str, Any] = {
        name: _joined([getattr(part, name) for part in parts], lengths, np.nan if name == "levels" else 0.0)
        for name in Episodes._fields[:-1]  # all but the groups
    }
    groups = {name: _joined([part.groups.get(name) for part in parts], lengths, np.nan) for name in GROUPS}
    return Episodes(**arrays, groups={name: group for name, group in groups.items() if group is not None})


def _joined(parts: list[np.ndarray | None], lengths: list[int], missing: float) -> np.ndarray | None:
    """Concatenate the parts, with `missing` for those that are None; None if all are.

    Some environments report only successes, and an episode that was cut off reports nothing.
    """
    if all(part is None for part in parts):
        return None
    return np.concatenate(
        [np.full(length, missing) if part is None else part for part, length in zip(parts, lengths, strict=True)]
    )


def _play_part(
    policy: Policy,
    env: str | EnvFactory,
    episodes: int,
    settings: PlaySettings,
    on_progress: OnProgress = ignore_progress,
) -> Episodes:
    if isinstance(policy, UniformPolicy):
        policy = copy(policy)
        policy.generator = torch.Generator().manual_seed(settings.seed + 1)  # other numbers than the sampling's
    lanes = max(episodes, getattr(policy, "least_lanes", 1))
    with torch.no_grad(), closing(make_env(env, lanes)) as made:
        return _play_each_once(policy, lanes_for(policy, made, settings), episodes, settings, on_progress)


def lanes_for(policy: Policy, env: VectorEnv, settings: PlaySettings) -> Lanes:
    """The environment as a stream of time steps, for this policy.

    Raises:
      ValueError: for a policy trained with action masks, where the environment gives none.
    """
    lanes = Lanes(env, settings.seed, settings.device, settings.needs_targets)
    if (
        lanes.spec.mask_sizes
        and not lanes.spec.is_masked
        and getattr(getattr(policy, "spec", None), "is_masked", False)
    ):
        raise ValueError(
            f"environment {name_of_env(env)!r}: expected action masks, with which the agent was trained, got none at "
            "the reset (a mask of ones allows every action)"
        )
    return lanes


def _play_each_once(
    policy: Policy, lanes: Lanes, episodes: int, settings: PlaySettings, on_progress: OnProgress
) -> Episodes:
    """One episode in each of the first `episodes` lanes."""
    generator = torch.Generator(lanes.device).manual_seed(settings.seed)
    returns, lengths = np.zeros(lanes.num_lanes), np.zeros(lanes.num_lanes, np.int64)
    asked, right = np.zeros(lanes.num_lanes, np.int64), np.zeros(lanes.num_lanes, np.int64)
    nats = np.zeros(lanes.num_lanes)
    reports: dict[str, np.ndarray] = {}
    playing = np.arange(lanes.num_lanes) < episodes
    for _, policy_logits in zip(range(settings.max_steps), _decisions(policy, lanes, playing), strict=False):
        distribution = lanes.spec.distribution(policy_logits)
        action = choose(distribution, generator, settings.is_greedy(lanes))
        if lanes.targets is not None:
            counts = playing & (lanes.targets >= 0).cpu().numpy()
            asked += counts
            right += counts & (lanes.targets == action).cpu().numpy()
            nats -= np.where(counts, distribution.log_prob(lanes.targets.clamp(min=0)).cpu().numpy(), 0.0)
        steps = lanes.step(action)
        returns += np.where(playing, lanes.rewards, 0.0)
        lengths += playing
        ended = playing & (steps.terminated | steps.truncated).cpu().numpy()
        for key in {"level", "is_success", *GROUPS} & lanes.infos.keys():
            if (values := numbers_of(lanes.infos[key], lanes.num_lanes)) is None:
                continue
            if key not in reports:
                reports[key] = np.full(lanes.num_lanes, 0.0 if key == "is_success" else np.nan)
            reported = (ended if key == "is_success" else playing) & np.asarray(lanes.infos.get(f"_{key}", True))
            reports[key][reported] = values[reported]
        playing &= ~ended
        if ended.any():
            on_progress(int(ended.sum()))
    if playing.any():
        on_progress(int(playing.sum()))
    reports = {name: report[:episodes] for name, report in reports.items()}
    groups = {name: reports[name] for name in GROUPS if name in reports}
    played = Episodes(
        returns[:episodes],
        lengths[:episodes],
        reports.get("level"),
        reports.get("is_success"),
        playing[:episodes],
        groups=groups,
    )
    if lanes.targets is None:
        return played
    return played._replace(asked=asked[:episodes], right=right[:episodes], nats=nats[:episodes])


def numbers_of(info: Any, lanes: int) -> np.ndarray | None:
    """An info as numbers `[B]`; None if the name means something else in a user's own environment."""
    values = np.asarray(info)
    try:
        return values.astype(np.float64) if values.shape == (lanes,) else None  # gymnasium's np.bool_ are objects
    except (TypeError, ValueError):
        return None


def _decisions(policy: Policy, lanes: Lanes, playing: np.ndarray) -> Iterator[Tensor]:
    """Policy logits `[B, ...]` of all lanes, step by step while any plays; uniform in lanes left out.

    The caller updates `playing` `[B]`. Whenever an eighth of the policy's lanes no longer play, it continues without
    them, unless it `mixes_lanes`.
    """
    wanted = 0.0 if getattr(policy, "mixes_lanes", False) else 7 / 8
    state, kept = policy.initial_state(lanes.num_lanes), torch.arange(lanes.num_lanes, device=lanes.device)
    unset = torch.zeros(lanes.num_lanes, lanes.spec.num_outputs + lanes.spec.num_scales, device=lanes.device)
    while playing.any():
        with acting(policy, state, lanes.spec) as act:
            while playing.sum() > wanted * len(kept):
                output, state = act(at(lanes.steps, kept), state)
                yield forbid(unset, lanes.steps.action_mask).index_copy(0, kept, output.policy_logits.float())
        still = torch.as_tensor(playing, device=lanes.device)[kept]
        kept, state = kept[still], at(state, still)
