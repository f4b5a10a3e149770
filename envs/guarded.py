"""Wrappers that check what a user's environment returns (see `returned_values`), and report its errors as its own."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from functools import cached_property
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Discrete, MultiDiscrete, Space
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.wrappers import FlattenObservation
from numpy.typing import NDArray

from .blame import Blame
from .checks import lane_seeds
from .nested import KeyPath, is_nested, numeric_leaves, pick
from .processes import EnvError
from .returned_values import (
    RESET_VALUES,
    STEP_VALUES,
    PartCheck,
    as_array,
    checked_flag,
    checked_infos,
    checked_number,
    checked_values,
    usable_infos,
)

SAVABLE = ("get_state", "set_state")
"""Methods of an environment whose state can be saved (see `saving`)."""

logger = logging.getLogger(__name__)


class GuardedEnv(gym.Wrapper):
    """An environment with array observations that raises its errors as `EnvError`, naming the environment.

    Its return values are checked as far as a vector environment relies on them. Infos that should be numbers
    (`returned_values.NUMBERS`) but are not are dropped, and so is None.

    Args:
      env: the environment.
      name: the user's name for it.

    Attributes:
      warns_of_bounds: whether it warns of floats outside their Box; else `GuardedLanes` does so for all lanes together.
    """

    def __init__(self, env: gym.Env, name: str) -> None:
        super().__init__(env)
        self.metadata = {**env.metadata}  # gymnasium before 1.4 writes the autoreset mode into it, else the class's
        self._is_nested, self._mask_size = is_nested(env.observation_space), _mask_size(env.action_space)
        self._resetting, self._stepping = Blame(name, "reset()"), Blame(name, "step()")
        self._rendering, self._closing = Blame(name, "render()"), Blame(name, "close()")
        self.warns_of_bounds = True

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """As the environment's. Raises EnvError."""
        with self._resetting:
            obs, info = checked_values(self.env.reset(seed=seed, options=options), RESET_VALUES)
            return self._checked(obs), self._usable(info)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """As the environment's. Raises EnvError."""
        with self._stepping:
            obs, reward, terminated, truncated, info = checked_values(self.env.step(action), STEP_VALUES)
            ends = checked_flag(terminated, "terminated"), checked_flag(truncated, "truncated")
            seen = self._checked(obs)
            if any(ends):  # with SAME_STEP, the reset that follows may write into the same array
                seen = deepcopy(seen)
            return seen, checked_number(reward), *ends, self._usable(info)

    def render(self) -> Any:
        """As the environment's; with render mode rgb_array an image. Raises EnvError."""
        with self._rendering:
            frame = self.env.render()
            shape = np.shape(frame)  # type: ignore[arg-type]  # it may be anything
            if self.render_mode == "rgb_array" and (len(shape) != 3 or 0 in shape):
                got = f"an array {list(shape)}" if shape else type(frame).__name__
                raise ValueError(f"expected an image [height, width, 3], got {got}")
            return frame

    def close(self) -> None:
        """Close the environment; errors are logged, not raised."""
        with _logging_errors(), self._closing:
            self.env.close()

    @cached_property
    def _checks(self) -> dict[KeyPath, PartCheck]:
        """One check per leaf, by path. Created at the first reset, after unsupported spaces have been rejected."""
        return {path: PartCheck(leaf, path) for path, leaf in numeric_leaves(self.observation_space).items()}

    def _usable(self, info: Any) -> dict[str, Any]:
        """`usable_infos`, with the action mask as an array, if there is one."""
        usable, size = usable_infos(info), self._mask_size
        if size and "action_mask" in usable:
            usable["action_mask"] = mask = as_array(usable["action_mask"])
            if mask.shape != (size,) or mask.dtype.kind not in "biuf":
                raise ValueError(f"infos['action_mask']: expected {size} flags, got {mask.dtype} {mask.shape}")
            if (mask != mask.astype(bool)).any():
                raise ValueError(f"infos['action_mask']: expected {size} flags, 0 or 1, got {mask.tolist()}")
        return usable

    def _checked(self, obs: Any) -> Any:
        """The observation, as an array unless it is nested. Raises ValueError if it does not fit the space."""
        arrays = {path: check(pick(obs, path)) for path, check in self._checks.items()}
        if self.warns_of_bounds:
            _warn_of_bounds(self._checks, arrays)
        return obs if self._is_nested else arrays[()]


class GuardedVectorEnv(VectorWrapper):
    """A user's vector environment that raises its errors as `EnvError`, and whose return values are checked.

    Args:
      env: the environment.
      name: the user's name for it.
    """

    def __init__(self, env: VectorEnv, name: str) -> None:
        super().__init__(env)
        self.name = name
        self._resetting, self._stepping = Blame(name, "reset()"), Blame(name, "step()")
        self._closing = Blame(name, "close()")
        self._is_closed = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """As the environment's. Raises EnvError."""
        with self._resetting:
            obs, infos = checked_values(self.env.reset(seed=seed, options=options), RESET_VALUES)
            return self._checked(obs), checked_infos(infos)

    def step(self, actions: Any) -> tuple[Any, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """As the environment's. Raises EnvError."""
        with self._stepping:
            obs, reward, terminated, truncated, infos = checked_values(self.env.step(actions), STEP_VALUES)
            rewards = self._per_lane(reward, "rewards", "biuf").astype(np.float64)
            ends = (("terminated", terminated), ("truncated", truncated))
            flags = (self._per_lane(values, name, "biu").astype(np.bool_) for name, values in ends)
            return self._checked(obs), rewards, *flags, checked_infos(infos)

    @cached_property
    def _checks(self) -> dict[KeyPath, PartCheck]:
        """As in `GuardedEnv`."""
        leaves = numeric_leaves(self.single_observation_space)
        return {path: PartCheck(leaf, path, (self.num_envs,)) for path, leaf in leaves.items()}

    def close(self, **kwargs: Any) -> None:
        """Close the environment, once; errors are logged, not raised."""
        if not self._is_closed:
            self._is_closed = True
            with _logging_errors(), self._closing:
                self.env.close(**kwargs)

    def __getattr__(self, name: str) -> Any:
        """The environment's; `get_state` and `set_state` are those of `SavableVectorEnv`."""
        if name.startswith("_") or name in SAVABLE:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(self.env, name)

    def _checked(self, obs: Any) -> Any:
        """The observations, as an array unless they are nested. Raises ValueError if they do not fit the space."""
        arrays = {path: check(pick(obs, path)) for path, check in self._checks.items()}
        _warn_of_bounds(self._checks, arrays)
        return obs if is_nested(self.single_observation_space) else arrays[()]

    def _per_lane(self, values: Any, name: str, kinds: str) -> NDArray[Any]:
        array = as_array(values)
        if array.shape != (self.num_envs,) or array.dtype.kind not in kinds:
            raise ValueError(f"expected {name} ({self.num_envs},), got {array.shape} of {array.dtype}")
        return array


@contextmanager
def _logging_errors() -> Iterator[None]:
    """Context that logs an EnvError in one line instead of raising it."""
    try:
        yield
    except EnvError as error:
        logger.warning("%s", " ".join(str(error).split()))


class OneHotObservation(FlattenObservation):
    """Categories or bits as a one-hot vector, after a check that they lie in their space."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self._check = PartCheck(env.observation_space)

    def observation(self, observation: Any) -> Any:
        return super().observation(self._check(observation))


def _warn_of_bounds(checks: dict[KeyPath, PartCheck], arrays: Mapping[KeyPath, NDArray[Any]]) -> None:
    """Warn once of floats outside their Box."""
    for path, check in checks.items():
        check.warn_of_bounds(arrays[path])


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

    envs: Any  # each a GuardedEnv

    def __init__(self, makers: Sequence[Callable[[], gym.Env]], autoreset_mode: AutoresetMode) -> None:
        try:
            super().__init__(makers, autoreset_mode=autoreset_mode)
        except RuntimeError as error:
            raise ValueError(f"expected lanes of equal spaces: {error}") from error
        # Comparing the floats of all lanes at once is faster; in SAME_STEP, last observations are only in the infos.
        for env in self.envs:
            env.warns_of_bounds = autoreset_mode == AutoresetMode.SAME_STEP

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """As gymnasium's. Raises EnvError."""
        obs, infos = super().reset(seed=list(lane_seeds(seed, self.num_envs)), options=options)
        self._warn_if_outside(obs)
        return obs, infos

    def step(self, actions: Any) -> tuple[Any, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """As gymnasium's. Raises EnvError."""
        obs, *others = super().step(actions)
        self._warn_if_outside(obs)
        return obs, *others

    def _warn_if_outside(self, obs: Any) -> None:
        first = self.envs[0]
        if not first.warns_of_bounds:
            _warn_of_bounds(first._checks, {path: pick(obs, path) for path in first._checks})
