"""Environments given in Python: registered with gymnasium, so training, evaluation and video can create them."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
from gymnasium.vector import VectorEnv

from rmc_agents import plugins
from rmc_agents.config import Config
from rmc_agents.envs.making import name_of
from rmc_agents.envs.own import OURS, note_given, own_id, register_own

OwnEnv = str | gym.Env | VectorEnv | Callable[..., gym.Env] | Callable[..., VectorEnv]


def settle_env(config: Config, env: OwnEnv) -> tuple[Config, VectorEnv | None]:
    """The settings of a run in a custom environment, and its lanes if it is a vector environment.

    A class, function or single environment is registered with gymnasium as own/NAME in this process, replacing any
    other with that name; then evaluation and resume need the environment too (`check_given_once`).

    Args:
      config: all settings; `env_kwargs` are the arguments of a class or function. Those of a `functools.partial` join
        them, if they are keywords with plain values: a run keeps them.
      env: a name, as in the settings (its module is imported); a class or function, called once for each lane or, if it
        takes `num_envs`, once for all lanes; an environment, which is copied for each lane (or created again from its
        gymnasium spec if it cannot be copied); or a vector environment, which is used directly. It cannot be copied, so
        the run ends without evaluation and video.

    Raises:
      ValueError: for anything else, an environment that cannot be copied, an argument with another value in
        `env_kwargs` than in the partial, or an algorithm with environments in other processes.
    """
    if isinstance(env, str):
        if ":" in env:
            plugins.add([], env=env)
        return config.updated({"env": env}, "env"), None
    if config.train.algo == "impala":
        raise ValueError(
            "env: expected algo ppo, a2c or supervised, got impala, whose actors make the environment in other "
            "processes: pass its name, 'module:Class' of a file or the id of gymnasium.register"
        )
    if isinstance(env, VectorEnv):
        if config.run.learners not in (1, "auto"):
            raise ValueError(f"learners: expected 1 for a vector environment object, got {config.run.learners}")
        unused = {"env_kwargs": {}, "env_workers": 0, "env_backend": "auto"}
        for name, default in unused.items():
            if (given := getattr(config.env, name)) != default:
                raise ValueError(f"{name}: expected none for a vector environment object, got {given}")
        note_given(name := own_id(name_of(type(env.unwrapped))), None)  # it cannot be created again
        own = {"env": name, "num_envs": env.num_envs, "eval_episodes": 0, "video": False, "learners": 1}
        return config.updated(own, "env"), env
    if not isinstance(env, gym.Env) and not callable(env):
        raise ValueError(
            f"env: expected a name, a gymnasium environment, a function that returns one or a VectorEnv, got {env}"
        )
    name = own_id(name_of(env))
    if isinstance(env, partial):
        config, env = _with_arguments_kept(config, env)
    register_own(name, _recreator(env) if isinstance(env, gym.Env) else env)
    note_given(name, env)
    return config.updated({"env": name}, "env"), None


def _with_arguments_kept(config: Config, env: partial[Any]) -> tuple[Config, Callable[..., Any]]:
    """The partial's arguments in `env_kwargs`, and its function; both unchanged if files cannot hold the arguments."""
    arguments, given = env.keywords, config.env.env_kwargs
    if env.args or not arguments.keys().isdisjoint(OURS):
        return config, env
    try:
        kept = config.updated({"env_kwargs": given | arguments}, "env")
    except ValueError:  # an argument is an object
        return config, env
    if kept.env.env_kwargs != given | arguments:  # a tuple, which would be a list
        return config, env
    for name in given.keys() & arguments.keys():
        if given[name] != arguments[name]:
            raise ValueError(
                f"env_kwargs: {name}: expected {arguments[name]!r}, as in the functools.partial, got {given[name]!r}"
            )
    return kept, env.func


def _recreator(env: gym.Env) -> Callable[..., gym.Env]:
    """A function that creates the environment again: by copying it, or from its gymnasium spec.

    Raises:
      ValueError: if it can neither be copied nor has a spec.
    """
    try:
        copy.deepcopy(env)
    except Exception as error:  # it holds a window, a file, a lock, ...
        if env.spec is None:
            raise ValueError(
                f"env: expected an environment that can be copied, but {type(env.unwrapped).__name__} cannot be "
                f"({error}); pass its class, or a function that creates it"
            ) from error
        return partial(gym.make, env.spec)
    return partial(_copied, env)


def _copied(env: gym.Env, render_mode: str | None = None) -> gym.Env:
    copied = copy.deepcopy(env)
    if render_mode is not None:
        copied.unwrapped.render_mode = render_mode
    return copied
