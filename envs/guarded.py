"""Wrappers that check what a user's environment returns, and report its errors as its own."""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.wrappers import FlattenObservation
from numpy.typing import ArrayLike, NDArray

from .blame import Blame
from .nested import Place, is_nested, name_of, numbers, pick
from .processes import EnvError

NUMBERS = frozenset({"level", "power", "is_success", "corridor_length", "solution_length", "num_distractors"})
"""Infos that are averaged or displayed as numbers."""

SAVABLE = ("get_state", "set_state")
"""Methods of an environment whose state can be saved (see `saving`)."""

STEP_VALUES = "obs, reward, terminated, truncated, info"
RESET_VALUES = "obs, info"

logger = logging.getLogger(__name__)


class GuardedEnv(gym.Wrapper):
    """An environment with array observations that raises its errors as `EnvError`, naming the environment.

    Its return values are checked as far as a vector environment relies on them. Infos that should be numbers
    (`NUMBERS`) but are not are dropped, and so is None.

    Args:
      env: the environment.
      name: the user's name for it.
    """

    def __init__(self, env: gym.Env, name: str) -> None:
        super().__init__(env)
        self._leaves = numbers(env.observation_space)
        self._resetting, self._stepping = Blame(name, "reset()"), Blame(name, "step()")
        self._rendering, self._closing = Blame(name, "render()"), Blame(name, "close()")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """As the environment's. Raises EnvError."""
        with self._resetting:
            obs, info = _values(self.env.reset(seed=seed, options=options), RESET_VALUES)
            return self._checked(obs), self._usable(info)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """As the environment's. Raises EnvError."""
        with self._stepping:
            obs, reward, terminated, truncated, info = _values(self.env.step(action), STEP_VALUES)
            ends = _flag(terminated, "terminated"), _flag(truncated, "truncated")
            return self._checked(obs), _number(reward), *ends, self._usable(info)

    def render(self) -> Any:
        """As the environment's; with render mode rgb_array an image. Raises EnvError."""
        with self._rendering:
            frame = self.env.render()
            if self.render_mode == "rgb_array" and np.ndim(frame) != 3:  # type: ignore[arg-type]  # it may be anything
                shape = np.shape(frame)
                got = f"an array {list(shape)}" if shape else type(frame).__name__
                raise ValueError(f"expected an image [height, width, 3], got {got}")
            return frame

    def close(self) -> None:
        """Close the environment; errors are logged, not raised."""
        try:
            with self._closing:
                self.env.close()
        except EnvError as error:
            logger.warning("%s", " ".join(str(error).split()))

    def _usable(self, info: Any) -> dict[str, Any]:
        """The function `_usable`, and the action mask as an array, if there is one."""
        usable, size = _usable(info), _mask_size(self.action_space)
        if size and "action_mask" in usable:
            usable["action_mask"] = mask = _array(usable["action_mask"])
            if mask.shape != (size,) or mask.dtype.kind not in "biuf":
                raise ValueError(f"infos['action_mask']: expected {size} flags, got {mask.dtype} {mask.shape}")
            if not np.isfinite(mask).all():
                raise ValueError(f"infos['action_mask']: expected {size} flags, got {mask.tolist()}")
        return usable

    def _checked(self, obs: Any) -> Any:
        """The observation, as an array unless it is nested. Raises ValueError if it does not fit the space."""
        arrays = {path: _checked_array(pick(obs, path), leaf, path) for path, leaf in self._leaves.items()}
        return obs if is_nested(self.observation_space) else arrays[()]


class GuardedVectorEnv(VectorWrapper):
    """A user's vector environment that raises its errors as `EnvError`, and whose return values are checked.

    Args:
      env: the environment.
      name: the user's name for it.
    """

    def __init__(self, env: VectorEnv, name: str) -> None:
        super().__init__(env)
        self.name, self._leaves = name, numbers(env.single_observation_space)
        self._resetting, self._stepping = Blame(name, "reset()"), Blame(name, "step()")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """As the environment's. Raises EnvError."""
        with self._resetting:
            obs, infos = _values(self.env.reset(seed=seed, options=options), RESET_VALUES)
            return self._checked(obs), _checked_infos(infos)

    def step(self, actions: Any) -> tuple[Any, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """As the environment's. Raises EnvError."""
        with self._stepping:
            obs, reward, terminated, truncated, infos = _values(self.env.step(actions), STEP_VALUES)
            rewards = self._per_lane(reward, "rewards", "biuf").astype(np.float64)
            ends = (("terminated", terminated), ("truncated", truncated))
            flags = (self._per_lane(values, name, "biu").astype(np.bool_) for name, values in ends)
            return self._checked(obs), rewards, *flags, _checked_infos(infos)

    def __getattr__(self, name: str) -> Any:
        """The environment's; `get_state` and `set_state` are those of `SavableVectorEnv`."""
        if name.startswith("_") or name in SAVABLE:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(self.env, name)

    def _checked(self, obs: Any) -> Any:
        """The observations, as an array unless they are nested. Raises ValueError if they do not fit the space."""
        lanes = (self.num_envs,)
        arrays = {path: _checked_array(pick(obs, path), leaf, path, lanes) for path, leaf in self._leaves.items()}
        return obs if is_nested(self.single_observation_space) else arrays[()]

    def _per_lane(self, values: Any, name: str, kinds: str) -> NDArray[Any]:
        array = _array(values)
        if array.shape != (self.num_envs,) or array.dtype.kind not in kinds:
            raise ValueError(f"expected {name} ({self.num_envs},), got {array.shape} of {array.dtype}")
        return array


class OneHotObservation(FlattenObservation):
    """Categories or bits as a one-hot vector, after a check that they lie in their space."""

    def observation(self, observation: Any) -> Any:
        """See `gymnasium.ObservationWrapper`."""
        return super().observation(_checked_array(observation, self.env.observation_space, ()))


def _checked_array(part: Any, space: Space[Any], path: Place, lanes: tuple[int, ...] = ()) -> NDArray[Any]:
    """Check a part of an observation against its space: shape, kind of numbers and, for categories, range."""
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


def _mask_size(space: Space[Any]) -> int:
    """Number of flags of an action mask; 0: these actions have no mask."""
    return int(
        np.sum(space.nvec if isinstance(space, MultiDiscrete) else space.n if isinstance(space, Discrete) else 0)
    )


class AnyInfos(VectorEnv):
    """A vector environment that accepts any infos: those that do not fit the other lanes' are dropped."""

    def _add_info(self, vector_infos: dict[str, Any], env_info: dict[str, Any], env_num: int) -> dict[str, Any]:
        try:
            return super()._add_info(vector_infos, env_info, env_num)
        except Exception:  # for example a number in one lane and a dict in another
            for key, value in env_info.items():
                with suppress(Exception):
                    super()._add_info(vector_infos, {key: value}, env_num)
            return vector_infos


class GuardedLanes(AnyInfos, SyncVectorEnv):
    """Lanes that are stepped sequentially, each a `GuardedEnv`.

    Args:
      makers: each creates one lane.
      autoreset_mode: as in gymnasium.

    Raises:
      ValueError: if their spaces differ.
    """

    def __init__(self, makers: Sequence[Callable[[], gym.Env]], autoreset_mode: AutoresetMode) -> None:
        try:
            super().__init__(makers, autoreset_mode=autoreset_mode)
        except RuntimeError as error:
            raise ValueError(f"expected lanes of equal spaces: {error}") from error


def _values(returned: Any, expected: str) -> tuple[Any, ...]:
    """What `step` or `reset` returned. Raises TypeError unless it is a tuple with the expected values."""
    number = expected.count(",") + 1
    if not isinstance(returned, tuple) or len(returned) != number:
        got = f"a tuple of {len(returned)}" if isinstance(returned, tuple) else type(returned).__name__
        raise TypeError(f"expected ({expected}), got {got}")
    return returned


def _array(values: Any) -> NDArray[Any]:
    """The values as an array; of objects if they are nested unevenly."""
    try:
        return np.asarray(values)
    except ValueError:
        return np.asarray(None)


def _flag(value: Any, name: str) -> bool:
    array = _array(value)
    if array.ndim != 0 or array.dtype.kind not in "biu":
        raise TypeError(f"expected True or False as {name}, got {value!r}")
    return bool(value)


def _number(reward: Any) -> float:
    array = _array(reward)
    if array.ndim != 0 or array.dtype.kind not in "biuf":
        raise TypeError(f"expected a number as the reward, got {reward!r}")
    return float(reward)


def _checked_infos(infos: Any) -> dict[str, Any]:
    if not isinstance(infos, dict):
        raise TypeError(f"expected the infos in a dict, got {type(infos).__name__}")
    return infos


def _usable(info: Any) -> dict[str, Any]:
    """The infos without None and without values that should be numbers but are not."""
    return {
        key: value
        for key, value in _checked_infos(info).items()
        if value is not None and (key not in NUMBERS or _is_number(value))
    }


def _is_number(value: Any) -> bool:
    array = _array(value)
    return array.ndim == 0 and array.dtype.kind in "biuf" and bool(np.isfinite(array))


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
