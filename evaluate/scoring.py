"""In Python what rmc-evaluate and rmc-watch do on the command line."""

from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from typing import Any

import gymnasium as gym
from gymnasium.vector import VectorEnv
from torch import nn

from rmc_agents.envs.making import EnvFactory, name_of
from rmc_agents.evaluate import video
from rmc_agents.evaluate.episodes import check_fits, play
from rmc_agents.evaluate.statistics import EVALUATION_SEED, MAX_STEPS, Statistics
from rmc_agents.player import device_of
from rmc_agents.runs.saved import SavedAgent, saved_env
from rmc_agents.types import Policy

Agent = SavedAgent[Any] | Policy


def evaluate(
    agent: Agent,
    env: str | EnvFactory | None = None,
    episodes: int = 100,
    *,
    seed: int = EVALUATION_SEED,
    deterministic: bool = False,
    max_steps: int = MAX_STEPS,
) -> Statistics:
    """Play whole episodes and report how well it went: the figures of rmc-evaluate.

    Args:
      agent: what `rmc.load` gives, an `ActorCritic`, or any `Policy`.
      env: a name, or a class or function that makes the environment, as `make_env` takes it; None: the environment
        that a saved agent was trained in.
      episodes: how many; episode i begins from seed + i, and each has a lane of its own.
      seed: of the environments and of the draws of actions.
      deterministic: take the likeliest action instead of drawing one.
      max_steps: an episode is cut after so many steps, and counts with the return it has reached.

    Returns:
      Mean return (undiscounted, not scaled) with its 95 % interval, median, lengths in steps, success rate, ...

    Raises:
      ValueError: for an environment that is not known or that the agent does not fit, and for less than one episode.
      EnvError: if the environment's own code fails.
    """
    policy, env = _policy_and_env(agent, env)
    deterministic |= isinstance(agent, SavedAgent) and agent.config.train.answers_likeliest
    with _evaluating(policy):
        return Statistics.of(play(policy, env, episodes, seed, device_of(policy), deterministic, max_steps))


def record_video(
    agent: Agent,
    env: str | EnvFactory | None,
    path: str | PathLike[str],
    *,
    episodes: int = 1,
    seed: int = EVALUATION_SEED,
    deterministic: bool = False,
    max_steps: int = video.MOST_STEPS,
    fps: int = video.FRAMES_PER_SECOND,
    title: str = "",
    reward_scale: float | None = None,
) -> video.RecordedVideo:
    """Play whole episodes and write a video of what the agent sees, expects and does, as rmc-watch.

    Args:
      agent: as `evaluate`.
      env: as `evaluate`; its render modes must have rgb_array.
      path: a name that ends in .mp4 or .gif, in a folder that exists.
      episodes: how many, one after the other; episode i begins from seed + i.
      seed: of the environment and of the draws of actions.
      deterministic: take the likeliest action instead of drawing one.
      max_steps: an episode is cut after so many steps.
      fps: steps shown per second.
      title: the first line of every picture; the environment's name if empty.
      reward_scale: that the agent learned with: values are shown without it; None: a saved agent's own, else 1.

    Returns:
      The path, the number of frames, and the return of each episode.

    Raises:
      ValueError: for a path, number or environment that allows no video, or an environment that the agent does not fit.
      OSError: if the file cannot be written; nothing is left behind.
      EnvError: if the environment's own code fails.
    """
    policy, env = _policy_and_env(agent, env)
    if reward_scale is None:
        reward_scale = agent.config.train.reward_scale if isinstance(agent, SavedAgent) else 1.0
    deterministic |= isinstance(agent, SavedAgent) and agent.config.train.answers_likeliest
    with _evaluating(policy):
        return video.record(
            policy,
            env,
            path,
            episodes=episodes,
            seed=seed,
            device=device_of(policy),
            deterministic=deterministic,
            title=title,
            max_steps=max_steps,
            fps=fps,
            reward_scale=reward_scale,
        )


def _policy_and_env(agent: Agent, env: str | EnvFactory | None) -> tuple[Policy, str | EnvFactory]:
    """Who plays and where, once they are found to fit."""
    if isinstance(env, gym.Env | VectorEnv):
        raise ValueError(
            f"env: expected a name, or a class or function that makes the environment, got an object, {name_of(env)}: "
            "every episode has an environment of its own"
        )
    if env is None:
        if not isinstance(agent, SavedAgent):
            raise ValueError("env: expected an environment: only a saved agent knows the one it was trained in")
        env = saved_env(agent)
    policy = agent.agent if isinstance(agent, SavedAgent) else agent
    if not hasattr(policy, "step"):
        raise ValueError(
            f"agent: expected an ActorCritic, a Policy or the result of rmc.load, got {type(agent).__name__}"
        )
    if (spec := getattr(agent, "spec", None)) is not None:
        check_fits(spec, env)
    return policy, env


@contextmanager
def _evaluating(policy: Policy) -> Iterator[None]:
    """In eval mode in here, and afterwards in the mode it was in."""
    if not isinstance(policy, nn.Module):
        yield
        return
    was_training = policy.training
    policy.eval()
    try:
        yield
    finally:
        policy.train(was_training)
