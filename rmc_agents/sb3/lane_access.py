"""Attributes and methods of single lanes, as far as a vector environment gives access to them."""

import re
from collections.abc import Sequence
from typing import Any, Protocol

import gymnasium as gym
from gymnasium.vector import VectorEnv
from stable_baselines3.common.env_util import is_wrapped

STEPS_ALL = ("step", "reset")  # what a vector environment does itself, for all lanes


class LaneAccess(Protocol):
    """Access to the lanes of a `VecEnv`. Reading or calling an unknown name raises AttributeError."""

    def has(self, name: str) -> bool:
        """Whether the lanes have an attribute."""

    def get(self, name: str, lanes: Sequence[int]) -> list[Any]:
        """An attribute of each lane."""

    def set(self, name: str, value: Any, lanes: Sequence[int]) -> None:
        """Set an attribute. Raises ValueError if it cannot be set."""

    def call(self, name: str, lanes: Sequence[int], /, *args: Any, **kwargs: Any) -> list[Any]:
        """Call a method of each lane. Raises ValueError if it cannot be called for these lanes."""

    def is_wrapped(self, wrapper_class: type[gym.Wrapper], lanes: Sequence[int]) -> list[bool]:
        """Whether each lane has a wrapper of that class."""


def access_to(vector_env: VectorEnv) -> LaneAccess:
    base: Any = vector_env.unwrapped
    if hasattr(base, "envs"):
        return SeparateLanes(base.envs)
    return RemoteLanes(base) if hasattr(base, "call") else EngineLanes(base)


class SeparateLanes:
    """For gymnasium's SyncVectorEnv: every lane is an environment in this process."""

    def __init__(self, envs: Sequence[gym.Env]) -> None:
        self._envs = envs

    def has(self, name: str) -> bool:
        return all(env.has_wrapper_attr(name) for env in self._envs)

    def get(self, name: str, lanes: Sequence[int]) -> list[Any]:
        return [self._envs[lane].get_wrapper_attr(name) for lane in lanes]

    def set(self, name: str, value: Any, lanes: Sequence[int]) -> None:
        for lane in lanes:
            self._envs[lane].set_wrapper_attr(name, value)

    def call(self, name: str, lanes: Sequence[int], /, *args: Any, **kwargs: Any) -> list[Any]:
        return [method(*args, **kwargs) for method in self.get(name, lanes)]

    def is_wrapped(self, wrapper_class: type[gym.Wrapper], lanes: Sequence[int]) -> list[bool]:
        return [is_wrapped(self._envs[lane], wrapper_class) for lane in lanes]


class RemoteLanes:
    """For gymnasium's AsyncVectorEnv: every lane is an environment in another process, and all are called together.

    A process ends at its first exception, so attributes that may not exist are checked before use.
    """

    def __init__(self, base: Any) -> None:
        self._base = base

    def has(self, name: str) -> bool:
        return all(self._base.call("has_wrapper_attr", name))

    def get(self, name: str, lanes: Sequence[int]) -> list[Any]:
        self._check(name)
        values = self._base.call("get_wrapper_attr", name)
        return [values[lane] for lane in lanes]

    def set(self, name: str, value: Any, lanes: Sequence[int]) -> None:
        everyone = range(self._base.num_envs)
        old = self.get(name, everyone) if len(set(lanes)) < len(everyone) else [None] * len(everyone)
        self._base.set_attr(name, [value if lane in lanes else old[lane] for lane in everyone])

    def call(self, name: str, lanes: Sequence[int], /, *args: Any, **kwargs: Any) -> list[Any]:
        if name == "get_wrapper_attr":
            return self.get(_attribute(*args, **kwargs), lanes)
        _check_callable(self._base, name, lanes, reads=("render", "has_wrapper_attr"))
        self._check(name)
        results = self._base.call(name, *args, **kwargs)
        return [results[lane] for lane in lanes]

    def is_wrapped(self, wrapper_class: type[gym.Wrapper], lanes: Sequence[int]) -> list[bool]:
        """Compares class names, the only information available: `<Outer<Inner<Env<id>>>>`."""
        classes = self._base.call("__str__")
        return [wrapper_class.__name__ in re.findall(r"<(\w+)(?=<)", classes[lane]) for lane in lanes]

    def _check(self, name: str) -> None:
        if not self.has(name):
            raise AttributeError(f"the environments of {type(self._base).__name__} have no attribute {name!r}")


class EngineLanes:
    """For an engine that steps all lanes: its attributes apply to every lane, its methods are called once for all."""

    def __init__(self, base: Any) -> None:
        self._base = base

    def has(self, name: str) -> bool:
        return hasattr(self._base, name)

    def get(self, name: str, lanes: Sequence[int]) -> list[Any]:
        return [getattr(self._base, name)] * len(lanes)

    def set(self, name: str, value: Any, lanes: Sequence[int]) -> None:
        kind = type(self._base).__name__
        raise ValueError(f"{name}: cannot be set later; pass it when {kind} is created")

    def call(self, name: str, lanes: Sequence[int], /, *args: Any, **kwargs: Any) -> list[Any]:
        if name == "get_wrapper_attr":
            return self.get(_attribute(*args, **kwargs), lanes)
        if name == "has_wrapper_attr":
            return [self.has(*args, **kwargs)] * len(lanes)
        _check_callable(self._base, name, lanes, reads=("render",))
        result = getattr(self._base, name)(*args, **kwargs)
        is_each = isinstance(result, tuple) and len(result) == self._base.num_envs
        return [result[lane] if is_each else result for lane in lanes]

    def is_wrapped(self, wrapper_class: type[gym.Wrapper], lanes: Sequence[int]) -> list[bool]:
        return [False] * len(lanes)


def _attribute(name: str) -> str:
    """The name for `get_wrapper_attr`, given by position or keyword."""
    return name


def _check_callable(base: Any, name: str, lanes: Sequence[int], reads: Sequence[str]) -> None:
    """Raises ValueError for a method of the engine itself, or one that would also change other lanes."""
    if name in STEPS_ALL or (len(lanes) < base.num_envs and name not in reads):
        raise ValueError(f"env_method: {name!r} can only be called for all lanes of {type(base).__name__}")
