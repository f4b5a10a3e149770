"""`Task` as gymnasium environments, with one lane or N.

Checks, seeds, autoreset, infos, rendering and saved states are the same for all tasks.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import ArrayLike, NDArray

from .checks import (
    as_autoreset_mode,
    checked_actions,
    checked_int,
    checked_render_mode,
    checked_reset_mask,
    lane_seeds,
)
from .task import Infos, Task


class NativeEnv(gym.Env[NDArray[Any], Any]):
    """One lane as a gymnasium environment.

    Args:
        lanes: the rules, N = 1.
        render_mode: one of `metadata["render_modes"]` or None. For "human", which gymnasium shows in a window, use
            `gymnasium.make` or `gymnasium.wrappers.HumanRendering`.

    Raises:
        ValueError: for another render mode.
    """

    def __init__(self, lanes: Task, render_mode: str | None) -> None:
        self.render_mode = checked_render_mode(render_mode, self.metadata["render_modes"])
        self.lanes = lanes
        self.observation_space, self.action_space = lanes.observation_space, lanes.action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        """Start an episode: (observation, info). Without a seed the random stream continues; `options` is not used."""
        super().reset(seed=seed)
        self.lanes.reset(np.ones(1, np.bool_), [seed], self.np_random)
        return self.lanes.observe()[0], _of_one_lane(self.lanes.infos())

    def step(self, action: int) -> tuple[NDArray[Any], float, bool, bool, dict[str, Any]]:
        """One step: (observation, reward, terminated, truncated, info).

        Raises:
            ValueError: for an action outside the action space.
            ResetNeeded: before the first reset, and after the end of an episode.
        """
        lanes = self.lanes
        if not lanes.action_space.contains(action):
            raise ValueError(f"action: expected an int in 0..{lanes.action_space.n - 1}, got {action!r}")
        if not lanes.was_reset[0]:
            raise ResetNeeded("step was called before reset")
        if lanes.needs_reset[0]:
            raise ResetNeeded("step was called after the episode's end: call reset first")
        observations, rewards, terminated, truncated = lanes.step(np.array([action], np.int64))
        info = _of_one_lane(lanes.infos())
        if terminated[0] or truncated[0]:
            info |= _of_one_lane(lanes.outcome(rewards))
        reward = float(str(rewards[0]))  # shortest decimal of the float32: 0.1, not 0.10000000149
        return observations[0], reward, bool(terminated[0]), bool(truncated[0]), info

    def render(self) -> NDArray[np.uint8] | str | None:
        """The image, uint8 [height, width, 3] ("rgb_array"), or the text ("ansi"); None without a render_mode."""
        if self.render_mode is None:
            _warn_of_no_render_mode()
            return None
        return self.lanes.picture(0, self.render_mode)

    def get_state(self) -> dict[str, NDArray[Any]]:
        """The complete state of the episode, copied."""
        return self.lanes.get_state()

    def set_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore a state from `get_state` of any environment with the same settings.

        Raises:
            ValueError: naming the first field that does not fit.
        """
        self.lanes.set_state(state)


class NativeVectorEnv(VectorEnv[NDArray[Any], ArrayLike, NDArray[Any]]):
    """All lanes as a vector environment, on one thread.

    It behaves like gymnasium's SyncVectorEnv of the same single environments, with the same seeds. Every array that it
    returns is new.

    A subclass sets `task`.

    Args:
        num_envs: number of lanes, N.
        task_args, task_settings: further arguments of `task`.
        render_mode: one of `metadata["render_modes"]`, or None: `render` returns one frame per lane.
        autoreset_mode: an `AutoresetMode` or its name, "next_step", "same_step" or "disabled" in any spelling.

    Raises:
        ValueError: for a value that is not allowed.
    """

    task: Callable[..., Task]
    """Takes the number of lanes, and the arguments of the single environment without its render mode."""

    def __init__(
        self,
        num_envs: int,
        *task_args: Any,
        render_mode: str | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        **task_settings: Any,
    ) -> None:
        lanes = self.task(checked_int("num_envs", num_envs, 1), *task_args, **task_settings)
        self.render_mode = checked_render_mode(render_mode, self.metadata["render_modes"])
        self.autoreset_mode = as_autoreset_mode(autoreset_mode)
        self.metadata = {**self.metadata, "autoreset_mode": self.autoreset_mode}
        self.lanes = lanes
        self.num_envs = len(lanes.was_reset)
        self.single_observation_space, self.single_action_space = lanes.observation_space, lanes.action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._was_reset = False  # all lanes

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        """Start episodes: (observations [N, ...], infos).

        Args:
            seed: lane i gets seed + i, or the i-th of a sequence; with None a lane's random stream continues.
            options: with `reset_mask`, bool [N], only the lanes with True are reset; the others return their current
                observations, and `infos` covers only the reset lanes. The dict is not changed.

        Raises:
            ValueError: for seeds below 0 or seeds or a mask of another length, a mask that is not bool or has no True,
                or one that leaves out a lane that was never reset.
        """
        seeds = lane_seeds(seed, self.num_envs)
        mask = checked_reset_mask(options, self.lanes.was_reset)
        super().reset(seed=int(seed) if isinstance(seed, int | np.integer) else None)
        self.lanes.reset(mask, seeds, self.np_random)
        self._was_reset = True
        return self.lanes.observe(), _as_infos(self.lanes.infos(), mask)

    def step(
        self, actions: ArrayLike
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """One step of every lane: (observations, rewards, terminated, truncated, infos).

        Args:
            actions: ints in the action space, [N].

        Raises:
            ValueError: for actions of another shape, kind or range.
            ResetNeeded: before the first reset, and with autoreset disabled while a finished lane waits for a reset.
        """
        lanes = self.lanes
        checked = checked_actions(actions, self.num_envs, int(lanes.action_space.n))
        if not self._was_reset:
            raise ResetNeeded("step was called before reset")
        if self.autoreset_mode == AutoresetMode.DISABLED:
            _refuse_ended(lanes.needs_reset)
        observations, rewards, terminated, truncated = lanes.step(checked)
        ended = terminated | truncated
        infos: dict[str, Any] = {}
        if ended.any():
            infos = _as_infos(lanes.outcome(rewards), ended)
            if self.autoreset_mode == AutoresetMode.SAME_STEP:
                infos = _final_infos(observations, infos | _as_infos(lanes.infos(), ended), ended)
                lanes.start(ended)
                observations = lanes.observe()
        return observations, rewards, terminated, truncated, infos | _as_infos(lanes.infos())

    def render(self) -> tuple[NDArray[np.uint8] | str, ...] | None:
        """One frame or text per lane, as from the single environment's `render`; None without a render_mode."""
        if self.render_mode is None:
            _warn_of_no_render_mode()
            return None
        return tuple(self.lanes.picture(lane, self.render_mode) for lane in range(self.num_envs))

    def get_state(self) -> dict[str, NDArray[Any]]:
        """The complete state of the episodes, copied."""
        return self.lanes.get_state()

    def set_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore a state from `get_state` of any vector environment with the same settings.

        Raises:
            ValueError: naming the first field that does not fit.
        """
        self.lanes.set_state(state)
        self._was_reset = bool(self.lanes.was_reset.all())


def _of_one_lane(infos: Infos) -> dict[str, Any]:
    return {name: values[0].item() for name, values in infos.items()}


def _refuse_ended(needs_reset: NDArray[np.bool_]) -> None:
    """Raises ResetNeeded, naming the lanes [N] that have ended: without autoreset the caller has to reset them."""
    if needs_reset.any():
        waiting = np.flatnonzero(needs_reset).tolist()
        raise ResetNeeded(f"the episodes in lanes {waiting} have ended: reset them with options['reset_mask']")


def _final_infos(
    observations: NDArray[Any], final_info: dict[str, Any], ended: NDArray[np.bool_]
) -> dict[str, NDArray[Any] | dict[str, Any]]:
    """The SAME_STEP infos about the episodes that ended in the lanes `ended` [N]."""
    final_obs = np.full(len(ended), None, dtype=object)
    for lane in np.flatnonzero(ended):
        final_obs[lane] = observations[lane].copy()
    return {
        "final_obs": final_obs,
        "_final_obs": ended.copy(),
        "final_info": final_info,
        "_final_info": ended.copy(),
    }


def _as_infos(columns: Infos, mask: NDArray[np.bool_] | None = None) -> dict[str, Any]:
    """Infos in gymnasium's vector form, for the lanes of `mask` [N] and 0 in the others; None: all lanes."""
    infos: dict[str, Any] = {}
    for name, values in columns.items():
        infos[name] = values if mask is None else values * mask
        infos[f"_{name}"] = np.ones(len(values), np.bool_) if mask is None else mask.copy()
    return infos


def _warn_of_no_render_mode() -> None:
    gym.logger.warn("render was called without a render_mode: nothing is drawn")
