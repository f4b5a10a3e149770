"""rmc-evaluate and rmc-watch as Python functions."""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from numbers import Real
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import gymnasium as gym
from gymnasium.vector import VectorEnv
from torch import nn

from rmc_agents.agent import ActorCritic
from rmc_agents.envs.checks import checked_int
from rmc_agents.envs.making import EnvFactory, name_of, with_arguments
from rmc_agents.envs.names import evaluation_kwargs
from rmc_agents.kernels.modes import eval_mode, torch_threads
from rmc_agents.runs.saved import SavedAgent, given_env, saved_env
from rmc_agents.runs.texts import check_not_trained_on
from rmc_agents.types import Policy

from . import ablation, attention
from .episodes import PlaySettings, check_fits, play
from .parallel import Jobs
from .progress import OnProgress, ignore_progress
from .statistics import EVALUATION_SEED, MAX_STEPS, WINDOW, WINDOWS, Statistics
from .video import recording
from .video.file import MAX_VIDEO_STEPS, check_target

Agent = SavedAgent[Any] | Policy


def evaluate(
    agent: Agent,
    env: str | EnvFactory | None = None,
    episodes: int = 100,
    *,
    seed: int = EVALUATION_SEED,
    deterministic: bool = False,
    max_steps: int = MAX_STEPS,
    jobs: Jobs = 1,
) -> Statistics:
    """Play whole episodes and return the statistics of rmc-evaluate.

    Args:
      agent: the result of `rmc.load`, an `ActorCritic`, or any `Policy`.
      env: a name, or a class or function that creates the environment, as in `make_env`; None: the environment that a
        saved agent was trained in. A named text is read in its held-out part, a named program has maximal nesting and
        length, unless the name says otherwise.
      episodes: number of episodes; episode i starts from seed + i, in its own lane.
      seed: of the environments and of action sampling.
      deterministic: take the most likely action instead of sampling, as a saved agent of supervised learning always
        does, and an `ActorCritic` where the environment reports the right answers.
      max_steps: maximum steps of an episode; a longer one is cut off and counts with the return so far.
      jobs: number of processes, or 'auto'; the result is the same with any, unless a policy of your own draws random
        numbers itself. A script that uses several needs the usual `if __name__ == "__main__":`.

    Returns:
      Mean return (undiscounted, not scaled) with its 95 % interval, median, lengths in steps, success rate, ...

    Raises:
      ValueError: for an environment that is unknown or does not fit the agent, for numbers out of range, and if the
        text that a saved agent was trained on has changed.
      EnvError: if the environment's own code fails.
      WorkerError: if one of several processes fails.
    """
    policy, env = policy_and_env(agent, env)
    check_not_trained_on(agent, env)
    settings = PlaySettings.of(agent, seed, deterministic, max_steps)
    with evaluating(policy):
        return Statistics.of(play(policy, env, episodes, settings, jobs=jobs))


def ablate_memory(
    agent: Agent,
    env: str | EnvFactory | None = None,
    episodes: int = 100,
    *,
    windows: Iterable[int] = WINDOWS,
    seed: int = EVALUATION_SEED,
    deterministic: bool = False,
    max_steps: int = MAX_STEPS,
    jobs: Jobs = 1,
) -> dict[str, Statistics]:
    """What is the memory worth? Plays the same episodes with and without it, like rmc-evaluate --ablate-memory.

    Args:
      agent: an `ActorCritic`, or the result of `rmc.load` with one.
      env: as in `evaluate`.
      episodes: number of episodes of each variant.
      windows: the memory of the last 4, 16, ... steps alone; 1 equals a reset at every step.
      seed: as in `evaluate`, also of the permutations.
      deterministic: as in `evaluate`.
      max_steps: as in `evaluate`.
      jobs: as in `evaluate`.

    Returns:
      The statistics by variant: 'intact', 'reset at every step', 'shuffled between lanes', 'last 4 steps', ...

    Raises:
      ValueError: for an agent without memory, and as `evaluate`.
      EnvError: if the environment's own code fails.
      WorkerError: if one of several processes fails.
    """
    policy, env = policy_and_env(agent, env)
    if not isinstance(policy, ActorCritic):
        raise ValueError(f"agent: expected an ActorCritic, whose memory is known, got {type(policy).__name__}")
    check_not_trained_on(agent, env)
    settings = PlaySettings.of(agent, seed, deterministic, max_steps)
    with evaluating(policy):
        return ablation.ablate(policy, env, episodes, windows, settings, jobs=jobs)


def record_video(
    agent: Agent,
    env: str | EnvFactory | None,
    path: str | PathLike[str],
    *,
    episodes: int | None = None,
    seed: int = EVALUATION_SEED,
    deterministic: bool = False,
    max_steps: int = MAX_VIDEO_STEPS,
    fps: int = recording.FRAMES_PER_SECOND,
    title: str = "",
    reward_scale: float | None = None,
    on_frame: OnProgress = ignore_progress,
) -> recording.RecordedVideo:
    """Play whole episodes and record a video of the agent's observations, values and actions, like rmc-watch.

    Args:
      agent: as in `evaluate`.
      env: as in `evaluate`; without the render mode rgb_array its observations are shown.
      path: a file name that ends in .mp4 or .gif, in an existing folder.
      episodes: number of episodes, in sequence; episode i starts from seed + i. None: as many as take ten seconds or
        more.
      seed: of the environment and of action sampling.
      deterministic: take the most likely action instead of sampling.
      max_steps: an episode is cut off after this many steps.
      fps: steps shown per second.
      title: the first line of every frame; empty: the environment's name.
      reward_scale: of the agent's training, removed from displayed values; None: a saved agent's own, else 1; a
        supervised agent's values are not displayed, because it learns none.
      on_frame: called with the number of frames so far, to show progress.

    Returns:
      The path, the number of frames, and the return of each episode.

    Raises:
      ValueError: for an invalid path or number, or an environment whose `render` fails or that does not fit the agent.
      OSError: if the file cannot be written; nothing is left behind.
      EnvError: if the environment's own code fails.
    """
    policy, env = policy_and_env(agent, env)
    settings = PlaySettings.of(agent, seed, deterministic, max_steps)
    if reward_scale is not None and not (isinstance(reward_scale, Real) and 0 < reward_scale < math.inf):
        raise ValueError(f"reward_scale: expected a number above 0, got {reward_scale!r}")
    with evaluating(policy):
        return recording.record(
            policy,
            env,
            path,
            settings,
            episodes=episodes,
            title=title,
            fps=fps,
            value_scale=_value_scale(agent) if reward_scale is None else reward_scale,
            on_frame=on_frame,
        )


def record_attention(
    agent: Agent,
    env: str | EnvFactory | None,
    path: str | PathLike[str],
    episodes: int = 1000,
    *,
    seed: int = EVALUATION_SEED,
    deterministic: bool = False,
    max_steps: int = MAX_VIDEO_STEPS,
    title: str = "",
) -> attention.MeanAttention:
    """Play episodes and write a figure of what each memory slot attends to before, at and after their cue.

        rmc.record_attention(rmc.load("nth-farthest-rmc"), None, "attention.png")

    Args:
      agent: the result of `rmc.load`, or an `ActorCritic`, with a core whose memory slots attend, such as an RMC.
      env: as in `evaluate`; it reports `info["cue"]`, whether an observation is the decisive one of its episode.
      path: ends in .png.
      episodes: whole episodes, each in its own lane; episode i starts from seed + i.
      seed: of the environments and of action sampling.
      deterministic: as in `evaluate`.
      max_steps: an episode is cut off after this many steps.
      title: the figure's title; '': the environment's name.

    Returns:
      The mean attention in the figure.

    Raises:
      ValueError: for an invalid path or number, a core without attention, an environment without a cue, or one that
        does not fit the agent.
      OSError: if the file cannot be written.
      EnvError: if the environment's own code fails.
    """
    from .plot import write_png

    check_target(path, (".png",))
    policy, env = policy_and_env(agent, env)
    if not isinstance(policy, ActorCritic):
        what = f"{agent.config.train.algo}'s" if isinstance(agent, SavedAgent) else type(policy).__name__
        raise ValueError(f"{path}: expected an agent of this project's own algorithms, got {what}")
    settings = PlaySettings.of(agent, seed, deterministic, max_steps)
    with evaluating(policy):
        mean = attention.mean_attention(policy, env, episodes, settings)
    write_png(attention.draw(mean, title or name_of(env)), Path(path))
    return mean


def record_replay(
    agents: Mapping[str, Agent],
    env: str | EnvFactory | None,
    path: str | PathLike[str],
    *,
    seed: int = EVALUATION_SEED,
    deterministic: bool = False,
    max_steps: int = MAX_VIDEO_STEPS,
    window: int = WINDOW,
) -> None:
    """Write a page on which an episode of one or several agents can be stepped through, like rmc-watch --out page.html.

        rmc.record_replay({"rmc": rmc.load("minipacman-rmc")}, None, "replay.html")

    Args:
      agents: the agents by the names that the page shows; each as in `evaluate`.
      env: as in `evaluate`, the same for all; without the render mode rgb_array its observations are shown.
      path: a file name that ends in .html, in an existing folder.
      seed: of the environment and of action sampling.
      deterministic: take the most likely action instead of sampling.
      max_steps: an episode is cut off after this many steps.
      window: compare each agent with one that only knows this many last steps.

    Raises:
      ValueError: for an invalid path or number, agents of different environments, or an environment whose
        `render` fails.
      OSError: if the file cannot be written; nothing is left behind.
      EnvError: if the environment's own code fails.
    """
    from .replay import page, recorder

    check_target(path, (".html",))
    checked_int("window", window, 1)
    if not isinstance(agents, Mapping):
        raise ValueError(f"agents: expected agents by name, such as {{'rmc': agent}}, got {type(agents).__name__}")
    found = {name: policy_and_env(agent, env) for name, agent in agents.items()}
    if len(envs := {name_of(one) for _, one in found.values()}) != 1:
        raise ValueError(f"agents: expected agents of one environment, got {', '.join(sorted(envs)) or 'none'}")
    runs = []
    for name, (policy, one) in found.items():
        settings, scale = PlaySettings.of(agents[name], seed, deterministic, max_steps), _value_scale(agents[name])
        with evaluating(policy):
            runs.append(recorder.record(policy, one, settings, name=name, window=window, value_scale=scale))
    page.write(Path(path), runs)


def _value_scale(agent: Agent) -> float | None:
    return agent.config.train.value_scale if isinstance(agent, SavedAgent) else 1.0


def policy_and_env(agent: Agent, env: str | EnvFactory | None) -> tuple[Policy, str | EnvFactory]:
    """The policy and the environment, after checking that they fit."""
    if isinstance(env, gym.Env | VectorEnv):
        raise ValueError(
            f"env: expected a name, or a class or function that creates the environment, got an object, "
            f"{name_of(env)}: every episode needs its own environment"
        )
    policy = agent.agent if isinstance(agent, SavedAgent) else agent
    if isinstance(policy, type) or not (hasattr(policy, "step") and hasattr(policy, "initial_state")):
        got = type(agent).__name__
        if isinstance(agent, type):
            got = f"the class {agent.__name__}; pass an object of it"
        elif isinstance(agent, str | PathLike):
            got += f"; pass rmc.load({fspath(agent)!r})"
        elif hasattr(agent, "agent"):
            got += "; pass its .agent, or rmc.load(run.path)"
        raise ValueError(f"agent: expected an ActorCritic, a Policy or the result of rmc.load, got {got}")
    if env is None:
        if not isinstance(agent, SavedAgent):
            raise ValueError("env: expected an environment, because only a saved agent has a default one")
        env = saved_env(agent)
    elif isinstance(agent, SavedAgent):
        env = given_env(agent, env)
    elif isinstance(env, str):
        env = with_arguments(env, evaluation_kwargs(env, {}))
    if (spec := getattr(agent, "spec", None)) is not None:
        check_fits(spec, env)
    return policy, env


@contextmanager
def evaluating(policy: Policy) -> Iterator[None]:
    """Context in which the policy is in eval mode and torch has one thread; restores both afterwards."""
    with torch_threads(1), eval_mode(policy if isinstance(policy, nn.Module) else nn.Module()):
        yield  # see docs/decisions/threads.md
