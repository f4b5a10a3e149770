"""Environments of any origin as vector environments: names, classes, functions, objects."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import gymnasium as gym
from gymnasium.vector import AutoresetMode, VectorEnv

from .guarded import Blame, GuardedEnv
from .own import check_lanes, makes_all_lanes, takes
from .registry import Backend, as_numbers, make_vector_env
from .saving import sync_lanes
from .workers import WorkerVectorEnv

Wrapper = Callable[[gym.Env], gym.Env]
EnvFactory = Callable[..., gym.Env] | Callable[..., VectorEnv]


def make_env(
    env: str | EnvFactory | gym.Env | VectorEnv,
    num_envs: int = 1,
    *,
    render_mode: str | None = None,
    num_workers: int = 0,
    backend: Backend = "auto",
    autoreset_mode: AutoresetMode = AutoresetMode.NEXT_STEP,
    env_kwargs: Mapping[str, Any] | None = None,
    wrapper: Wrapper | None = None,
) -> VectorEnv:
    """A gymnasium vector environment that agents can play: observations are arrays of numbers.

        make_env("minipacman", 128)
        make_env("recall", env_kwargs={"delay": 20})
        make_env(MyEnv, 16, env_kwargs={"size": 9})
        make_env(lambda: TimeLimit(MyEnv(), 100), 16)

    Args:
      env: a short name or a registered gymnasium id (see `registry.make_vector_env`); a class or a function that makes
        the environment of one lane; one with an argument `num_envs`, which makes the vector environment of all lanes;
        an environment object, which is one lane; or a vector environment, which is returned as it is.
      num_envs: lanes, B. Of a vector environment object, its own number, or 1.
      render_mode: as in gymnasium; functions are given it where they have such an argument.
      num_workers: processes that share the lanes of environments without a native engine; 0: this one steps them all.
      backend: of names; see `registry.make_vector_env`.
      autoreset_mode: NEXT_STEP is what agents learn from (`Collector`), and all that workers know; what makes all lanes
        has its own.
      env_kwargs: arguments of the environment's constructor or function.
      wrapper: what the environment of every lane is wrapped in.

    Returns:
      The vector environment; lane i starts from seed + i when it is reset with a seed.

    Raises:
      ValueError: for a name that is not known (with the nearest that is), for options that do not fit, for what makes
        no environment, and for spaces that cannot be arrays of numbers.
      EnvError: if the environment's own code fails, now or when it is reset, stepped or drawn.
    """
    if isinstance(env, str):
        return make_vector_env(env, num_envs, render_mode, num_workers, backend, autoreset_mode, env_kwargs, wrapper)
    if backend != "auto":
        raise ValueError(f"backend: expected auto for {name_of(env)}, which is no environment's name, got {backend}")
    if isinstance(env, gym.Env | VectorEnv):
        if env_kwargs or num_workers or render_mode not in (None, env.render_mode):
            raise ValueError(
                f"environment {name_of(env)}: env_kwargs, num_workers and render_mode are for what is made here, not "
                "for an environment object; give its class, or a function that makes it"
            )
        return _from_object(env, num_envs, autoreset_mode, wrapper)
    if not callable(env):
        raise ValueError(f"environment: expected a name, a class, a function or an object, got {type(env).__name__}")
    wanted = {"render_mode": render_mode} if render_mode is not None and takes(env, "render_mode") else {}
    return _from_callable(env, num_envs, {**wanted, **(env_kwargs or {})}, num_workers, autoreset_mode, wrapper)


def with_arguments(env: str, env_kwargs: Mapping[str, Any]) -> str | EnvFactory:
    """The environment of a name with arguments, for those who take a name or what makes an environment."""
    if not env_kwargs:
        return env

    def make(num_envs: int, render_mode: str | None = None) -> VectorEnv:
        return make_vector_env(env, num_envs, render_mode, env_kwargs=env_kwargs)

    make.__name__ = env
    return make


def _from_callable(
    make: Callable[..., Any],
    num_envs: int,
    arguments: Mapping[str, Any],
    num_workers: int,
    autoreset_mode: AutoresetMode,
    wrapper: Wrapper | None,
) -> VectorEnv:
    if not makes_all_lanes(make):
        make_lanes = partial(_make_lanes, partial(_make_lane, make, arguments, wrapper), autoreset_mode)
        return WorkerVectorEnv(make_lanes, num_envs, num_workers) if num_workers else make_lanes(num_envs)
    name = name_of(make)
    if num_workers:
        raise ValueError(f"num_workers: expected 0 for {name}, which makes all lanes, got {num_workers}")
    _check_unwrapped(wrapper, name)
    with Blame(name, "its constructor"):
        lanes = make(num_envs=num_envs, **arguments)
    return check_lanes(lanes, name, num_envs)


def _check_unwrapped(wrapper: Wrapper | None, name: str) -> None:
    if wrapper is not None:
        raise ValueError(f"wrapper: expected none for the vector environment {name}, whose lanes are not made here")


def _from_object(
    env: gym.Env | VectorEnv, num_envs: int, autoreset_mode: AutoresetMode, wrapper: Wrapper | None
) -> VectorEnv:
    name = name_of(env)
    if isinstance(env, VectorEnv):
        _check_unwrapped(wrapper, name)
        return check_lanes(env, name, num_envs if num_envs > 1 else env.num_envs)
    if num_envs != 1:
        raise ValueError(
            f"environment {name}: expected num_envs 1 for one environment object, got {num_envs}; give its class, or a "
            "function that makes it"
        )
    return _make_lanes(partial(_as_lane, env, name, wrapper), autoreset_mode, 1)


def name_of(env: str | EnvFactory | gym.Env | VectorEnv) -> str:
    """What an environment is called in messages."""
    if isinstance(env, str):
        return env
    if isinstance(env, gym.Env):
        env = env.unwrapped
    return str(getattr(env, "__name__", type(env).__name__))


def _make_lanes(make_lane: Callable[[], gym.Env], autoreset_mode: AutoresetMode, num_envs: int) -> VectorEnv:
    return sync_lanes(make_lane, num_envs, autoreset_mode)


def _make_lane(make: Callable[..., Any], arguments: Mapping[str, Any], wrapper: Wrapper | None) -> gym.Env:
    with Blame(name_of(make), "its constructor"):
        env = make(**arguments)
    return _as_lane(env, name_of(make), wrapper)


def _as_lane(env: Any, name: str, wrapper: Wrapper | None) -> gym.Env:
    if not isinstance(env, gym.Env):
        hint = "; what makes a vector environment takes an argument num_envs" if isinstance(env, VectorEnv) else ""
        raise ValueError(f"environment {name}: expected a gymnasium.Env to be made, got {type(env).__name__}{hint}")
    return GuardedEnv(as_numbers(env, wrapper), name)
