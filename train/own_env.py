"""Environments that are handed over in Python: they get a name, by which training, evaluation and films make them."""

import copy
import re
from collections.abc import Callable
from functools import partial
from typing import cast

import gymnasium as gym
from gymnasium.envs.registration import EnvCreator
from gymnasium.vector import VectorEnv

from rmc_agents.config import Config

NAMESPACE = "own/"
OwnEnv = gym.Env | VectorEnv | Callable[[], gym.Env]


def settle_env(config: Config, env: OwnEnv) -> tuple[Config, VectorEnv | None]:
    """The settings of a run in a user's own environment, and its lanes if they are given as such.

    A function or class is called for each lane, an environment is made anew from its gymnasium spec or, without one,
    copied. It is registered with gymnasium as own/NAME in this process; another of that name takes its place.

    Args:
      config: all settings.
      env: an environment, a function or class that makes one, or a vector environment. A vector environment is played
        as it is, and there is no evaluation and no video at the end, since no other one can be made.

    Raises:
      ValueError: for anything else, and where training does not happen in this process.
    """
    if config.train.algo == "impala":
        raise ValueError("env: expected algo a2c or ppo, got impala, whose actors are other processes")
    if isinstance(env, VectorEnv):
        if config.run.learners not in (1, "auto"):
            raise ValueError(f"learners: expected 1 for a vector environment that is given, got {config.run.learners}")
        own = {"env": _name(type(env.unwrapped)), "num_envs": env.num_envs, "eval_episodes": 0, "video": False}
        own["learners"] = 1
        return config.updated(own, "env"), env
    make: Callable[..., gym.Env]
    if isinstance(env, gym.Env):
        name = _name(type(env.unwrapped))
        make = partial(copy.deepcopy, env) if env.spec is None else partial(gym.make, env.spec)
    elif callable(env):
        name, make = _name(env), env
    else:
        raise ValueError(f"env: expected a gymnasium environment, a function that makes one or a VectorEnv, got {env}")
    gym.registry.pop(name, None)
    gym.register(name, entry_point=cast(EnvCreator, make))
    return config.updated({"env": name}, "env"), None


def _name(made_by: object) -> str:
    plain = re.sub(r"\W", "", getattr(made_by, "__name__", type(made_by).__name__))
    return f"{NAMESPACE}{plain}-v0"
