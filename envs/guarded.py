"""Wrappers that check what a user's environment returns, and report its errors as its own."""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from numpy.typing import ArrayLike, NDArray

from .blame import Blame
from .nested import Place, is_nested, name_of, numbers, pick
from .processes import EnvError

NUMBERS = frozenset({"level", "power", "is_success", "corridor_length", "solution_length", "num_distractors"})
"""Infos that are averaged or displayed as numbers."""

SAVABLE = ("get_state", "set_state")
"""Methods of an environment whose state can be saved (see `saving`)."""

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
            obs, info = self.env.reset(seed=seed, options=options)
            return self._checked(obs), self._usable(info)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """As the environment's. Raises EnvError."""
        with self._stepping:
            obs, reward, terminated, truncated, info = self.env.step(action)
            return self._checked(obs), _number(reward), bool(terminated), bool(truncated), self._usable(info)

    def render(self) -> Any:
        """As the environment's; with render mode rgb_array an image. Raises EnvError."""
        with self._rendering:
            frame = self.env.render()
            if self.render_mode == "rgb_array" and np.ndim(frame) != 3:  # type: ignore[arg-type]  # it may be anything
                raise ValueError(f"expected an image [height, width, 3], got {type(frame).__name__}")
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
            usable["action_mask"] = mask = np.asarray(usable["action_mask"])
            if mask.shape != (size,) or mask.dtype.kind not in "biuf":
                raise ValueError(f"infos['action_mask']: expected {size} flags, got {mask.dtype} {mask.shape}")
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
            obs, infos = self.env.reset(seed=seed, options=options)
            return self._checked(obs), _checked_infos(infos)

    def step(self, actions: Any) -> tuple[Any, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """As the environment's. Raises EnvError."""
        with self._stepping:
            obs, reward, terminated, truncated, infos = self.env.step(actions)
            rewards, ends = self._per_lane(reward, "rewards", np.float64), (terminated, truncated)
            terminations, truncations = (self._per_lane(end, "ends of episodes", np.bool_) for end in ends)
            return self._checked(obs), rewards, terminations, truncations, _checked_infos(infos)

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

    def _per_lane(self, values: Any, name: str, dtype: type[np.generic]) -> NDArray[Any]:
        array: NDArray[Any] = np.asarray(values, dtype)
        if array.shape != (self.num_envs,):
            raise ValueError(f"expected {name} ({self.num_envs},), got {array.shape}")
        return array


def _checked_array(part: Any, space: Space[Any], path: Place, lanes: tuple[int, ...] = ()) -> NDArray[Any]:
    """Check a part of an observation against its space: shape, kind of numbers and, for categories, range."""
    assert space.dtype is not None
    assert space.shape is not None
    name, array, shape = f"{name_of(path)!r} " if path else "", np.asarray(part), (*lanes, *space.shape)
    is_categorical = not isinstance(space, Box)
    fits = array.dtype.kind in "biu" if is_categorical else np.can_cast(array.dtype, space.dtype, "same_kind")
    if array.shape != shape or not fits:
        raise ValueError(f"expected an observation {name}{shape} of {space.dtype}, got {array.shape} of {array.dtype}")
    if is_categorical:
        low: Any = 0 if isinstance(space, MultiBinary) else space.start  # type: ignore[attr-defined]  # of the other two
        number: Any = 2 if isinstance(space, MultiBinary) else getattr(space, "nvec", getattr(space, "n", None))
        wrong = (array < low) | (array >= low + number)
        if wrong.any():
            raise ValueError(f"expected an observation {name}in {space}, got {array[wrong].tolist()[:8]}")
    return array


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


def _number(reward: Any) -> float:
    if np.ndim(reward) != 0 or np.asarray(reward).dtype.kind not in "biuf":
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
    array: NDArray[Any] = np.empty(0)
    with suppress(ValueError):  # of lists of lists
        array = np.asarray(value)
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
