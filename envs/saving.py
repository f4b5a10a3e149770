"""Exact resuming for Python environments: lanes that save the state of their environments.

An environment supports this with two methods, `get_state()` and `set_state(state)`. The state is plain data: dicts with
string keys, lists, arrays, numbers, strings, None. The generator `self.np_random` and the step count of gymnasium's
TimeLimit are saved as well.
"""

from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import wrappers
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.wrappers import TimeLimit

from .blame import Blame
from .checks import checked_int
from .guarded import SAVABLE, GuardedEnv, GuardedLanes, GuardedVectorEnv, OneHotObservation

STATELESS = (
    GuardedEnv,
    OneHotObservation,
    wrappers.ClipAction,
    wrappers.ClipReward,
    wrappers.DtypeObservation,
    wrappers.FilterObservation,
    wrappers.FlattenObservation,
    wrappers.GrayscaleObservation,
    wrappers.OrderEnforcing,
    wrappers.PassiveEnvChecker,
    wrappers.RescaleAction,
    wrappers.RescaleObservation,
    wrappers.ReshapeObservation,
    wrappers.ResizeObservation,
)
EACH_LANE = "each lane"
"""The only key of a dict that holds a list with one state per lane."""
ALL_LANES = "all lanes"
"""The key of a vector environment's own state, next to its generator."""


class SavableLanes(GuardedLanes):
    """Lanes with environments that all have `get_state` and `set_state`."""

    def get_state(self) -> dict[str, Any]:
        """The state of every lane, and which lanes reset at the next step. Raises EnvError."""
        return {"lanes": {EACH_LANE: [_get_state(env) for env in self.envs]}, "ended": self._autoreset_envs.copy()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state from `get_state`, after a reset.

        Raises:
          ValueError: for a different number of lanes or other wrappers.
          EnvError: if an environment rejects its state.
        """
        lanes, ended = state["lanes"][EACH_LANE], np.asarray(state["ended"])
        if len(lanes) != self.num_envs or ended.shape != (self.num_envs,) or ended.dtype != np.bool_:
            raise ValueError(f"state: expected {self.num_envs} lanes, got {len(lanes)}")
        for env, saved in zip(self.envs, lanes, strict=True):
            _set_state(env, saved)
        self._autoreset_envs = ended.copy()


class SavableVectorEnv(GuardedVectorEnv):
    """A user's vector environment that has `get_state` and `set_state`."""

    def get_state(self) -> Any:
        """The environment's state, as plain data, with its generator if it has one. Raises EnvError."""
        with Blame(self.name, "get_state()"):
            state = _plain(self.env.get_state())  # type: ignore[attr-defined]
        generator = self.env.unwrapped._np_random  # `np_random` would create one
        return state if generator is None else {ALL_LANES: state, "np_random": generator.bit_generator.state}

    def set_state(self, state: Any) -> None:
        """Restore a state from `get_state`. Raises EnvError."""
        if isinstance(state, dict) and state.keys() == {ALL_LANES, "np_random"}:
            self.env.unwrapped.np_random.bit_generator.state = state["np_random"]
            state = state[ALL_LANES]
        with Blame(self.name, "set_state()"):
            self.env.set_state(state)  # type: ignore[attr-defined]


def guarded(env: VectorEnv, name: str) -> VectorEnv:
    """A user's vector environment or wrapper, guarded; this package's own, and guarded ones, as they are."""
    if isinstance(env, GuardedVectorEnv) or all(type(x).__module__.startswith("rmc_agents.") for x in layers(env)):
        return env
    return (SavableVectorEnv if _is_savable(env) else GuardedVectorEnv)(env, name)


def sync_lanes(make_lane: Callable[[], gym.Env], autoreset_mode: AutoresetMode, num_envs: int) -> GuardedLanes:
    """Lanes that this process steps one by one; savable if their environments are.

    Raises:
      ValueError: for fewer than one lane, if their spaces differ, and if two lanes are the same object.
      EnvError: if their own code fails.
    """
    num_envs = checked_int("num_envs", num_envs, 1)
    first = make_lane()
    kind = SavableLanes if all(_is_savable(layer) for layer in layers(first)) else GuardedLanes
    lanes = kind([lambda: first, *[make_lane] * (num_envs - 1)], autoreset_mode)
    if len({id(env.unwrapped) for env in lanes.envs}) < num_envs:
        raise ValueError(
            f"environment {type(first.unwrapped).__name__}: expected a new object for each lane, got the same one again"
        )
    return lanes


def layers(env: Any) -> Iterator[Any]:
    """The wrappers around an environment or vector environment, outermost first, and the environment itself."""
    while isinstance(env, gym.Wrapper | VectorWrapper):
        yield env
        env = env.env
    yield env


def _is_savable(layer: gym.Env | VectorEnv) -> bool:
    return type(layer) in (*STATELESS, TimeLimit) or all(callable(getattr(layer, name, None)) for name in SAVABLE)


def _get_state(env: gym.Env) -> list[Any]:
    with Blame(_name_of(env), "get_state()"):
        states = [_plain(_layer_state(layer)) for layer in _stateful(env)]
    return [*states, env.unwrapped.np_random.bit_generator.state]


def _stateful(env: gym.Env) -> list[gym.Env]:
    return [layer for layer in layers(env) if type(layer) not in STATELESS]


def _layer_state(layer: gym.Env) -> Any:
    if type(layer) is TimeLimit:
        return layer._elapsed_steps
    if (state := layer.get_state()) is None:  # type: ignore[attr-defined]
        raise TypeError(f"expected a state from {type(layer).__name__}.get_state(), got None")
    return state


def _set_state(env: gym.Env, state: list[Any]) -> None:
    states = [each for each in state[:-1] if each is not None]  # older files have None for layers without state
    wrapped = _stateful(env)
    if len(states) != len(wrapped):
        names = ", ".join(type(layer).__name__ for layer in wrapped)
        raise ValueError(f"state: expected one for each of {names}, got {len(states)}: have the wrappers changed?")
    for layer, saved in zip(wrapped, states, strict=True):
        if type(layer) is TimeLimit:
            if type(saved) is not int or saved < 0:
                raise ValueError(f"state: expected a number of steps, got {saved!r}")
            layer._elapsed_steps = saved  # type: ignore[assignment]
        else:
            with Blame(_name_of(env), "set_state()"):
                layer.set_state(saved)  # type: ignore[attr-defined]
    env.unwrapped.np_random.bit_generator.state = state[-1]


def _name_of(env: gym.Env) -> str:
    return type(env.unwrapped).__name__


def _plain(tree: Any) -> Any:
    """The state in a form that a checkpoint can hold. Raises TypeError unless it is plain data."""
    if isinstance(tree, dict) and all(isinstance(key, str) for key in tree):
        return {key: _plain(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_plain(value) for value in tree]
    if isinstance(tree, np.generic):
        tree = tree.item()
    if isinstance(tree, np.ndarray) and (
        (tree.dtype.kind in "biuf" and tree.itemsize <= 8) or tree.dtype == np.complex64
    ):
        return tree.astype(tree.dtype.newbyteorder("="))  # a copy
    if tree is None or isinstance(tree, str | bool | int | float):
        return tree
    got = f"a dict with keys {list(tree)[:3]}" if isinstance(tree, dict) else type(tree).__name__
    got = f"an array of {tree.dtype}" if isinstance(tree, np.ndarray) else got
    raise TypeError(f"expected dicts with string keys, lists, arrays of numbers, numbers, strings and None, got {got}")
