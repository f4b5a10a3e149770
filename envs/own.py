"""Environments from users' classes and functions, which create one lane or, with an argument `num_envs`, all lanes."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv


def register_own(env_id: str, make: Callable[..., Any]) -> None:
    """Register a class or function with gymnasium in this process, replacing any with the same id."""
    all_lanes = makes_all_lanes(make)
    one, many = (None, make) if all_lanes else (make, None)
    gym.registry[env_id] = EnvSpec(env_id, entry_point=one, vector_entry_point=many)


def makes_all_lanes(make: Callable[..., Any]) -> bool:
    """Whether a class or function creates a vector environment."""
    if isinstance(make, type) and issubclass(make, gym.Env | VectorEnv):
        return issubclass(make, VectorEnv)
    return "num_envs" in _parameters(make)


def takes(make: Callable[..., Any], argument: str) -> bool:
    """Whether a class or a function has an argument of that name."""
    parameters = _parameters(make)
    return argument in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _parameters(make: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(make).parameters
    except (TypeError, ValueError):  # some built-in functions have no signature
        return {}


def check_lanes(env: Any, name: str, num_envs: int) -> VectorEnv:
    """Check a user's vector environment. Raises ValueError unless it is one with `num_envs` lanes."""
    if not isinstance(env, VectorEnv):
        raise ValueError(f"environment {name}: expected a gymnasium VectorEnv, got {type(env).__name__}")
    if env.num_envs != num_envs:
        raise ValueError(f"environment {name}: expected {num_envs} lanes, got {env.num_envs}")
    return env
