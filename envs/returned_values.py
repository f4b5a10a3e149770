"""Checks of what a user's environment returns."""

import logging
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
from gymnasium.spaces import Box, MultiBinary, Space
from gymnasium.vector import SyncVectorEnv, VectorEnv
from numpy.typing import ArrayLike, NDArray

from .nested import Place, name_of
from .processes import EnvError

NUMBERS = frozenset({"level", "power", "is_success", "corridor_length", "solution_length", "num_distractors", "nth"})
"""Infos that are averaged or displayed as numbers."""

STEP_VALUES = "obs, reward, terminated, truncated, info"
RESET_VALUES = "obs, info"

logger = logging.getLogger(__name__)


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
    array = as_array(value)
    if array.ndim != 0 or array.dtype.kind not in "biu":
        raise TypeError(f"expected True or False as {name}, got {value!r}")
    return bool(value)


def checked_number(reward: Any) -> float:
    """The reward of one lane. Raises TypeError for anything but a number."""
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
    """One lane's infos without None and without values that should be numbers but are not.

    Raises:
      TypeError: for anything but a dict.
    """
    return {
        key: value
        for key, value in checked_infos(info).items()
        if value is not None and (key not in NUMBERS or _is_number(value))
    }


def _is_number(value: Any) -> bool:
    array = as_array(value)
    return array.ndim == 0 and array.dtype.kind in "biuf" and bool(np.isfinite(array))


def checked_array(part: Any, space: Space[Any], path: Place, lanes: tuple[int, ...] = ()) -> NDArray[Any]:
    """A part of an observation as an array `[*lanes, ...]`; shape, kind and range of its numbers are checked.

    Args:
      part: what the environment returned.
      space: the part's, of one lane.
      path: its place in a nested observation, for the message.
      lanes: `(N,)` for N lanes, `()` for one environment.

    Raises:
      ValueError: if it does not fit. Floats outside a Box are used as they are, with one warning.
    """
    assert space.dtype is not None
    assert space.shape is not None
    name, array, shape = f"{name_of(path)!r} " if path else "", np.asarray(part), (*lanes, *space.shape)
    is_categorical = not isinstance(space, Box)
    fits = array.dtype.kind in "biu" if is_categorical else np.can_cast(array.dtype, space.dtype, "same_kind")
    if array.shape != shape or not fits:
        raise ValueError(f"expected an observation {name}{shape} of {space.dtype}, got {array.shape} of {array.dtype}")
    if not is_categorical:
        _check_bounds(array, space, name)
    else:
        low: Any = 0 if isinstance(space, MultiBinary) else space.start  # type: ignore[attr-defined]  # of the other two
        number: Any = 2 if isinstance(space, MultiBinary) else getattr(space, "nvec", getattr(space, "n", None))
        wrong = (array < low) | (array >= low + number)
        if wrong.any():
            raise ValueError(f"expected an observation {name}in {space}, got {array[wrong].tolist()[:8]}")
    return array


def _check_bounds(array: NDArray[Any], space: Any, name: str) -> None:
    """Raises ValueError for integers outside a Box; for floats, whose bounds are often rough, it warns once."""
    if space.dtype == np.bool_:
        return
    is_float = space.dtype.kind == "f"
    array = array.astype(space.dtype, copy=False) if is_float else array
    wrong = (array < space.low) | (array > space.high)
    if wrong.any():
        if not is_float:
            raise ValueError(f"expected an observation {name}in {space}, got {array[wrong].tolist()[:8]}")
        _warn_of_bounds(name, str(space))


@cache
def _warn_of_bounds(name: str, space: str) -> None:
    logger.warning("an observation %sis outside its space %s; it is used as it is", name, space)


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
