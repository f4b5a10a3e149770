"""Vector environments from names, classes, functions or objects."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import gymnasium as gym
from gymnasium.vector import AutoresetMode, VectorEnv

from .blame import Blame
from .checks import as_autoreset_mode, checked_int
from .guarded import GuardedEnv
from .own import check_arguments, check_lanes, makes_all_lanes, takes
from .registry import Backend, as_numbers, make_vector_env, register_named
from .saving import guarded, sync_lanes
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
      env: a short name, a registered gymnasium id (see `registry.make_vector_env`) or 'module:NAME' of a class or
        function, whose module is imported; a class or function that creates the environment of one lane, or, if it has
        an argument `num_envs`, the vector environment of all lanes; an environment object, which is one lane; or a
        vector environment, which is returned unchanged.
      num_envs: number of lanes, B; for a vector environment object, its own number or 1.
      render_mode: as in gymnasium; passed to functions that have such an argument.
      num_workers: processes that share the lanes of environments without a native engine; 0: this one steps them all.
      backend: for names; see `registry.make_vector_env`.
      autoreset_mode: `Collector` and workers need NEXT_STEP; ignored if `env` creates all lanes itself.
      env_kwargs: arguments of the environment's constructor or function.
      wrapper: wraps the environment of every lane.

    Returns:
      The vector environment; when reset with a seed, lane i starts from seed + i.

    Raises:
      ValueError: for an unknown name (the message suggests the nearest), options that do not fit, an `env` that does
        not create an environment, or spaces that cannot be arrays of numbers.
      EnvError: if the environment's own code fails, now or later in reset, step or render.
    """
    num_workers, autoreset_mode = checked_int("num_workers", num_workers, 0), as_autoreset_mode(autoreset_mode)
    if not isinstance(env_kwargs, Mapping | None):
        raise ValueError(f"env_kwargs: expected a mapping, such as {{'delay': 20}}, got {env_kwargs!r}")
    if isinstance(env, _Named):
        env_kwargs = {**env.env_kwargs, **(env_kwargs or {})}
        env = env.name
    if isinstance(env, str):
        register_named(env)
        return make_vector_env(env, num_envs, render_mode, num_workers, backend, autoreset_mode, env_kwargs, wrapper)
    if backend != "auto":
        raise ValueError(f"backend: expected auto for {name_of(env)}, which is not a name, got {backend}")
    if isinstance(env, gym.Env | VectorEnv):
        if env_kwargs or num_workers or render_mode not in (None, env.render_mode):
            raise ValueError(
                f"environment {name_of(env)}: env_kwargs, num_workers and render_mode do not apply to an environment "
                "object; pass its class, or a function that creates it"
            )
        return _from_object(env, num_envs, autoreset_mode, wrapper)
    if not callable(env):
        raise ValueError(f"environment: expected a name, a class, a function or an object, got {type(env).__name__}")
    check_arguments(env, env_kwargs or {}, name_of(env))
    wanted = {"render_mode": render_mode} if render_mode is not None and takes(env, "render_mode") else {}
    return _from_callable(env, num_envs, {**wanted, **(env_kwargs or {})}, num_workers, autoreset_mode, wrapper)


def with_arguments(env: str, env_kwargs: Mapping[str, Any]) -> str | EnvFactory:
    """A named environment with arguments, in a form that `make_env` takes."""
    return _Named(env, env_kwargs) if env_kwargs else env  # type: ignore[return-value]  # it is never called


class _Named:
    """A name and arguments, which `make_env` reads."""

    def __init__(self, name: str, env_kwargs: Mapping[str, Any]) -> None:
        self.name, self.env_kwargs = name, env_kwargs
        self.__name__ = f"{name} ({', '.join(f'{key}={value}' for key, value in sorted(env_kwargs.items()))})"


def _from_callable(
    make: Callable[..., Any],
    num_envs: int,
    arguments: Mapping[str, Any],
    num_workers: int,
    autoreset_mode: AutoresetMode,
    wrapper: Wrapper | None,
) -> VectorEnv:
    if not makes_all_lanes(make):
        make_lanes = partial(sync_lanes, partial(_make_lane, make, arguments, wrapper), autoreset_mode)
        return WorkerVectorEnv(make_lanes, num_envs, num_workers) if num_workers else make_lanes(num_envs)
    name = name_of(make)
    if num_workers:
        raise ValueError(f"num_workers: expected 0 for {name}, which creates all lanes itself, got {num_workers}")
    _check_unwrapped(wrapper, name)
    with Blame(name, "its constructor"):
        lanes = make(num_envs=num_envs, **arguments)
    return guarded(check_lanes(lanes, name, num_envs), name)


def _check_unwrapped(wrapper: Wrapper | None, name: str) -> None:
    if wrapper is not None:
        raise ValueError(f"wrapper: expected none for {name}, which is a vector environment; wrap its lanes yourself")


def _from_object(
    env: gym.Env | VectorEnv, num_envs: int, autoreset_mode: AutoresetMode, wrapper: Wrapper | None
) -> VectorEnv:
    name = name_of(env)
    if isinstance(env, VectorEnv):
        _check_unwrapped(wrapper, name)
        return check_lanes(env, name, num_envs if num_envs > 1 else getattr(env, "num_envs", 1))
    if num_envs != 1:
        raise ValueError(
            f"environment {name}: expected num_envs 1 for one environment object, got {num_envs}; pass its class, or a "
            "function that creates it"
        )
    return sync_lanes(partial(_as_lane, env, name, wrapper), autoreset_mode, 1)


def name_of(env: str | EnvFactory | gym.Env | VectorEnv) -> str:
    """An environment's name for messages; a partial is named after what it calls."""
    if isinstance(env, str):
        return env
    if isinstance(env, partial) and not hasattr(env, "__name__"):
        return name_of(env.func)
    if isinstance(env, gym.Env):
        env = env.unwrapped
    return str(getattr(env, "__name__", type(env).__name__))


def _make_lane(make: Callable[..., Any], arguments: Mapping[str, Any], wrapper: Wrapper | None) -> gym.Env:
    with Blame(name_of(make), "its constructor"):
        env = make(**arguments)
    return _as_lane(env, name_of(make), wrapper)


def _as_lane(env: Any, name: str, wrapper: Wrapper | None) -> gym.Env:
    if not isinstance(env, gym.Env):
        hint = "; for a vector environment, add an argument num_envs" if isinstance(env, VectorEnv) else ""
        raise ValueError(f"environment {name}: expected a gymnasium.Env, got {type(env).__name__}{hint}")
    return GuardedEnv(as_numbers(env, wrapper), name)
