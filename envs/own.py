"""Environments from users' classes and functions, which create one lane or, with an argument `num_envs`, all lanes."""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv

from .names import NAMESPACE

OURS = ("num_envs", "render_mode", "autoreset_mode")
"""Arguments that this package passes itself."""

_given: dict[str, Any] = {}  # by id
_given_twice: set[str] = set()


def own_id(name: str) -> str:
    """The id of an environment that was given in Python, from the name of its class or function."""
    plain = re.sub(r"\W", "", name)
    return f"{NAMESPACE}{plain}-v0"


def note_given(env_id: str, env: Any) -> None:
    """Note that a user gave an environment, a class or a function in Python, which is known by this id from now on."""
    if _given.setdefault(env_id, env) is not env:
        _given_twice.add(env_id)


def check_given_once(env_id: str) -> None:
    """Raises ValueError if the id stands for several environments that were given in Python."""
    if env_id in _given_twice:
        raise ValueError(
            f"environment {env_id!r} is ambiguous: several environments with this name were passed in this process; "
            "pass the right one, as rmc.evaluate(saved, env) or rmc.resume(run, env=...)"
        )


def register_own(env_id: str, make: Callable[..., Any]) -> None:
    """Register a class or function with gymnasium in this process, replacing any other one with the same id.

    A registration of the same one stays, which may have a time limit.
    """
    same = make, f"{getattr(make, '__module__', '')}:{getattr(make, '__qualname__', '')}"
    known = gym.registry.get(env_id)
    if known is not None and any(entry in same for entry in (known.entry_point, known.vector_entry_point)):
        return
    one, many = (None, make) if makes_all_lanes(make) else (make, None)
    gym.registry[env_id] = EnvSpec(env_id, entry_point=one, vector_entry_point=many)


@contextmanager
def registrations_kept() -> Iterator[None]:
    """Context that afterwards restores the environments given in Python that others of their names have replaced."""
    before = {env_id: spec for env_id, spec in gym.registry.items() if env_id.startswith(NAMESPACE)}
    try:
        yield
    finally:
        gym.registry.update(before)


def makes_all_lanes(make: Callable[..., Any]) -> bool:
    """Whether a class or function creates a vector environment."""
    if isinstance(make, type) and issubclass(make, gym.Env | VectorEnv):
        return issubclass(make, VectorEnv)
    return "num_envs" in (_parameters(make) or {})


def takes(make: Callable[..., Any], argument: str) -> bool:
    """Whether a class or a function has an argument of that name."""
    parameters = _parameters(make) or {}
    return argument in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def check_arguments(make: Callable[..., Any], given: Iterable[str], name: str, also: Iterable[str] = ()) -> None:
    """Raises ValueError if the environment `name`, made by `make`, does not take one of the given arguments; `also`:
    others that it takes.
    """
    if (parameters := _parameters(make)) is None:
        return
    known = [each for each in [*also, *parameters] if each not in OURS]
    for argument in given:
        is_ours = argument == "num_envs" and makes_all_lanes(make)
        if is_ours or (argument not in also and not takes(make, argument)):
            near = get_close_matches(str(argument), known, n=1)
            raise ValueError(
                f"env_kwargs: environment {name!r} takes no {argument!r}; "
                + (f"did you mean {near[0]!r}?" if near else f"expected {', '.join(known) or 'no arguments'}")
            )


def _parameters(make: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    """The arguments by name; None if there is no signature."""
    try:
        return inspect.signature(make).parameters
    except (TypeError, ValueError):  # of some built-in functions
        return None


def check_lanes(env: Any, name: str, num_envs: int) -> VectorEnv:
    """Check a user's vector environment. Raises ValueError unless it is one with `num_envs` lanes."""
    if not isinstance(env, VectorEnv):
        raise ValueError(f"environment {name}: expected a gymnasium VectorEnv, got {type(env).__name__}")
    for attribute in ("num_envs", "single_observation_space", "single_action_space"):
        if not hasattr(env, attribute):
            raise ValueError(f"environment {name}: expected a VectorEnv with the attribute {attribute}, got none")
    if env.num_envs != num_envs:
        raise ValueError(f"environment {name}: expected {num_envs} lanes, got {env.num_envs}")
    return env
