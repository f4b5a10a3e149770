"""Checks of what a user's environment returns."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.spaces import Box, MultiBinary, MultiDiscrete, Space
from gymnasium.vector import SyncVectorEnv, VectorEnv
from numpy.typing import ArrayLike, NDArray

from .nested import KeyPath, path_name
from .processes import EnvError
from .warn_once import warn_once

NUMBERS = frozenset({"level", "power", "is_success", "corridor_length", "solution_length", "num_distractors", "nth"})
"""Infos that are averaged or displayed as numbers."""

STEP_VALUES = "obs, reward, terminated, truncated, info"
RESET_VALUES = "obs, info"


def checked_values(returned: Any, expected: str) -> tuple[Any, ...]:
    """What `step` or `reset` returned. Raises TypeError unless it is a tuple with the expected values."""
    number = expected.count(",") + 1
    if not isinstance(returned, tuple) or len(returned) != number:
        got = f"a tuple of {len(returned)}" if isinstance(returned, tuple) else type(returned).__name__
        raise TypeError(f"expected ({expected}), got {got}")
    return returned


def as_array(values: Any) -> NDArray[Any]:
    """The values as an array; of objects if they are nested unevenly."""
    try:
        return np.asarray(values)
    except ValueError:
        return np.asarray(None)


def checked_flag(value: Any, name: str) -> bool:
    """`terminated` or `truncated` of one lane. Raises TypeError for anything but a flag."""
    if type(value) is not bool:  # most are, and need no array
        array = as_array(value)
        if array.ndim != 0 or array.dtype.kind not in "biu":
            raise TypeError(f"expected True or False as {name}, got {value!r}")
    return bool(value)


def checked_number(reward: Any) -> float:
    """The reward of one lane. Raises TypeError for anything but a number."""
    if type(reward) is not float:  # most are, and need no array
        array = as_array(reward)
        if array.ndim != 0 or array.dtype.kind not in "biuf":
            raise TypeError(f"expected a number as the reward, got {reward!r}")
    return float(reward)


def checked_infos(infos: Any) -> dict[str, Any]:
    """The infos. Raises TypeError for anything but a dict."""
    if not isinstance(infos, dict):
        raise TypeError(f"expected the infos in a dict, got {type(infos).__name__}")
    return infos


def usable_infos(info: Any) -> dict[str, Any]:
    """One lane's infos without None, and of `NUMBERS` only finite numbers; another value there is warned of once.

    Whole numbers become floats, and a target an int: gymnasium's arrays of all lanes have the type of the first lane's.

    Raises:
      TypeError: for anything but a dict.
    """
    usable = {
        key: float(value) if key in NUMBERS and not isinstance(value, bool | np.bool_) else value
        for key, value in checked_infos(info).items()
        if value is not None and (key not in NUMBERS or _is_usable(key, value))
    }
    if type(target := usable.get("target", 0)) is not int:  # most are, and need no array
        array = as_array(target)
        if array.ndim == 0 and array.dtype.kind in "biu":
            usable["target"] = int(array)
    return usable


def _is_usable(key: str, value: Any) -> bool:
    """Whether it is a finite number; warns of what is none."""
    array = as_array(value)
    if array.ndim or array.dtype.kind not in "biuf":
        got = f"{list(array.shape)} of {array.dtype}" if array.ndim else type(value).__name__
        warn_once("info[%r] is left out: expected a number, got %s", key, got)
        return False
    return bool(np.isfinite(array))


class PartCheck:
    """Checks a part of an observation: the shape, kind and range of its numbers.

    Everything that depends only on the space is computed once: a check is called at every step of every lane.

    Args:
      space: the part's, of one lane.
      path: its place in a nested observation, for the message.
      lanes: `(N,)` for N lanes, `()` for one environment.
    """

    def __init__(self, space: Space[Any], path: KeyPath = (), lanes: tuple[int, ...] = ()) -> None:
        assert space.dtype is not None
        assert space.shape is not None
        self._space, self._dtype, self._shape = space, np.dtype(space.dtype), (*lanes, *space.shape)
        self._name = f"{path_name(path)!r} " if path else ""
        self._is_box = isinstance(space, Box)
        self._low, self._high = _range(space)
        self._has_range = not _holds_all(self._dtype, self._low, self._high)

    def __call__(self, part: Any) -> NDArray[Any]:
        """The part as an array `[*lanes, ...]`; see `warn_of_bounds` for floats outside a Box.

        Raises:
          ValueError: if it does not fit.
        """
        array = np.asarray(part)
        if array.shape != self._shape or not (array.dtype == self._dtype or self._can_hold(array.dtype)):
            expected = f"{self._name}{self._shape} of {self._dtype}"
            raise ValueError(f"expected an observation {expected}, got {array.shape} of {array.dtype}")
        if self._dtype.kind != "f" and (self._has_range or array.dtype != self._dtype):
            self._check_range(array)
        return array

    def warn_of_bounds(self, array: NDArray[Any]) -> None:
        """Warn once of floats outside a Box, in one lane `[...]` or in all of them `[N, ...]`; they are used."""
        if self._dtype.kind == "f" and self._has_range:
            array = array.astype(self._dtype, copy=False)
            if ((array < self._low) | (array > self._high)).any():
                message = "an observation %sis outside its space %s; it is used as it is"
                warn_once(message, self._name, str(self._space))

    def _can_hold(self, dtype: np.dtype[Any]) -> bool:
        return np.can_cast(dtype, self._dtype, "same_kind") if self._is_box else dtype.kind in "biu"

    def _check_range(self, array: NDArray[Any]) -> None:
        if array.ndim == 0 and self._low <= array.item() <= self._high:  # faster than with arrays
            return
        wrong = (array < self._low) | (array > self._high)
        if wrong.any():
            raise ValueError(f"expected an observation {self._name}in {self._space}, got {array[wrong].tolist()[:8]}")


def _range(space: Any) -> tuple[Any, Any]:
    """The least and the greatest number of a space, or arrays of them."""
    if isinstance(space, Box):
        return (0, 1) if space.dtype == np.bool_ else (space.low, space.high)
    if isinstance(space, MultiBinary):
        return 0, 1
    if isinstance(space, MultiDiscrete):
        return space.start, space.start + space.nvec - 1
    return int(space.start), int(space.start + space.n - 1)


def _holds_all(dtype: np.dtype[Any], low: Any, high: Any) -> bool:
    """Whether a range holds every number of a dtype."""
    if dtype.kind == "b":
        return True
    least, greatest = (-np.inf, np.inf) if dtype.kind == "f" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return bool(np.all(low == least) and np.all(high == greatest))


def name_of_env(env: VectorEnv) -> str:
    """A vector environment's name for messages."""
    if env.spec is not None:
        return env.spec.id
    base = env.unwrapped
    return type(base.envs[0].unwrapped if isinstance(base, SyncVectorEnv) else base).__name__


def check_finite(env: VectorEnv, obs: Mapping[str, NDArray[Any]], rewards: NDArray[Any], lengths: ArrayLike) -> None:
    """Check observations and rewards before anything is learned from them.

    Args:
      env: the environment, for the message.
      obs: observations `[N, ...]` by name, '' if they are not nested.
      rewards: `[N]`.
      lengths: `[N]`, or a number: steps of the episodes so far, this one included.

    Raises:
      EnvError: for NaN, or a number that is infinite in float32; the message says which, where and when.
    """
    named = [(f"an observation {name!r}" if name else "an observation", values) for name, values in obs.items()]
    for kind, values in [*named, ("a reward", rewards)]:
        if values.dtype.kind != "f":
            continue
        is_number = np.abs(values) <= np.finfo(np.float32).max  # False for NaN
        if not is_number.all():
            place = tuple(np.argwhere(~is_number)[0].tolist())
            name = name_of_env(env)
            step = np.broadcast_to(lengths, len(values))[place[0]]
            raise EnvError(
                f"the environment {name!r} gave {kind} that is not finite in float32: {values[place]} in lane "
                f"{place[0]}"
                + (f", entry {list(place[1:])} of the observation" if len(place) > 1 else "")
                + f", at step {step} of its episode"
            )
