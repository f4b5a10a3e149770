"""MiniGrid's MemoryEnv as a native vector environment; the rules are in `memory_engine`."""

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.spaces import Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from minigrid.core.actions import Actions
from minigrid.core.grid import Grid
from minigrid.envs import MemoryEnv
from numpy.typing import ArrayLike, NDArray

from rmc_agents.envs.vector_checks import (
    as_autoreset_mode,
    checked_actions,
    checked_num_envs,
    checked_render_mode,
    checked_reset_mask,
    final_infos,
    lane_seeds,
    refuse_ended,
)

from .engine import observe_lanes, start_lanes, step_lanes
from .level import Level, grid_of, make_level, make_state, seed_lane, state_from_dict
from .memory import ROOM_END, checked_view_size, num_actions, view_space

METADATA: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": MemoryEnv.metadata["render_fps"]}


class MemoryVectorEnv(VectorEnv[NDArray[np.uint8], ArrayLike, NDArray[Any]]):
    """Many lanes of MiniGrid's `MemoryEnv` in one compiled loop, on one thread.

    It behaves to the bit like gymnasium's SyncVectorEnv of `MiniGridView`s of minigrid's own environment (3.2.0), lane
    by lane and seed by seed: observations, rewards (float64), both flags, infos. Every array it returns is new.

    Args:
        num_envs: number of lanes, N.
        size, random_length, max_steps: as for `MemoryEnv`.
        view_size, actions: as for `MiniGridView`.
        render_mode: "rgb_array": `render` returns minigrid's picture of each lane.
        autoreset_mode: an `AutoresetMode` or its name, "next_step", "same_step" or "disabled" in any spelling.

    Raises:
        ValueError: for a value that is not allowed.
    """

    metadata = METADATA

    def __init__(
        self,
        num_envs: int,
        size: int = 13,
        random_length: bool = False,
        max_steps: int | None = None,
        view_size: int = 7,
        actions: str = "all",
        render_mode: str | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    ) -> None:
        """See the class."""
        self.num_envs = checked_num_envs(num_envs)
        self.render_mode = checked_render_mode(render_mode, METADATA["render_modes"])
        self.autoreset_mode = as_autoreset_mode(autoreset_mode)
        self.metadata = {**METADATA, "autoreset_mode": self.autoreset_mode}
        self._level = make_level(size, random_length, max_steps, checked_view_size(view_size))
        self._state = make_state(self.num_envs)
        self._drawn: MemoryEnv | None = None
        self._actions = num_actions(actions, len(Actions))
        self.single_observation_space = view_space(self._level.view_size**2)
        self.single_action_space = Discrete(self._actions)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Starts episodes: (observations [N, E], infos).

        Args:
            seed: lane i gets seed + i, or the i-th of a sequence; None lets a lane's random numbers go on.
            options: with `reset_mask`, bool [N], only the lanes with True start anew; the others' observations are
                returned as they are. The dict is left as it is.

        Raises:
            ValueError: for seeds below 0 or seeds or a mask of another length, a mask that is not bool or has no True,
                or one that leaves out a lane that was never reset.
        """
        seeds = lane_seeds(seed, self.num_envs)
        was_reset = self._state.hallway_end > 0
        mask = checked_reset_mask(options, was_reset)
        super().reset(seed=int(seed) if isinstance(seed, int | np.integer) else None)
        for lane in np.flatnonzero(mask).tolist():
            lane_seed = seeds[lane]
            if lane_seed is None and not was_reset[lane]:
                lane_seed = int(self.np_random.integers(2**63))
            if lane_seed is not None:
                seed_lane(self._state, lane, lane_seed)
        start_lanes(self._state, self._level, mask)
        return self._observe(), {}

    def step(
        self, actions: ArrayLike
    ) -> tuple[NDArray[np.uint8], NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """One step of every lane: (observations, rewards, terminated, truncated, infos).

        Args:
            actions: ints in the action space, [N].

        Raises:
            ValueError: for actions of another shape, kind or range.
            ResetNeeded: before the first reset, and with autoreset disabled while a finished lane waits for a reset.
        """
        checked = checked_actions(actions, self.num_envs, self._actions)
        if not self._state.hallway_end.all():
            raise ResetNeeded("step was called before reset")
        if self.autoreset_mode == AutoresetMode.DISABLED:
            refuse_ended(self._state.needs_reset)
        observations, rewards = self._empty(), np.empty(self.num_envs)
        terminated, truncated = np.empty(self.num_envs, np.bool_), np.empty(self.num_envs, np.bool_)
        step_lanes(self._state, self._level, checked, observations, rewards, terminated, truncated)
        ended = terminated | truncated
        infos: dict[str, Any] = {}
        if ended.any():
            infos = {"is_success": terminated & (rewards > 0), "_is_success": ended.copy()}
            lengths = np.where(ended, self._state.hallway_end.astype(np.int64) - ROOM_END, 0)
            infos |= {"corridor_length": lengths, "_corridor_length": ended.copy()}
            if self.autoreset_mode == AutoresetMode.SAME_STEP:
                infos = final_infos(observations, infos, ended)
                start_lanes(self._state, self._level, ended)
                observations = self._observe()
        return observations, rewards, terminated, truncated, infos

    def render(self) -> tuple[NDArray[np.uint8], ...] | None:
        """Minigrid's picture of each lane, uint8 [32 * size, 32 * size, 3]; None without a render_mode."""
        if self.render_mode is None:
            gym.logger.warn("render was called without a render_mode: nothing is drawn")
            return None
        if not self._state.hallway_end.all():
            raise ResetNeeded("render was called before reset")
        return tuple(self._draw(lane) for lane in range(self.num_envs))

    def get_state(self) -> dict[str, NDArray[Any]]:
        """Copies of everything that decides how the lanes go on, as documented at `memory_level.State`."""
        return {name: array.copy() for name, array in self._state._asdict().items()}

    def set_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Takes over what `get_state` of any vector environment with the same settings returned.

        Raises:
            ValueError: naming the first field that does not fit.
        """
        self._state = state_from_dict(state, self._level, self.num_envs)

    @property
    def level(self) -> Level:
        """What all lanes share; not to be written to."""
        return self._level

    def _empty(self) -> NDArray[np.uint8]:
        assert self.single_observation_space.shape is not None
        return np.empty((self.num_envs, *self.single_observation_space.shape), np.uint8)

    def _observe(self) -> NDArray[np.uint8]:
        observations = self._empty()
        observe_lanes(self._state, self._level, observations)
        return observations

    def _draw(self, lane: int) -> NDArray[np.uint8]:
        """Minigrid's own environment, put into the lane's state, draws it."""
        level, state = self._level, self._state
        if self._drawn is None:
            self._drawn = MemoryEnv(level.size, agent_view_size=level.view_size, render_mode="rgb_array")
        self._drawn.grid, _ = Grid.decode(grid_of(state, level, lane))
        self._drawn.agent_pos = (int(state.column[lane]), int(state.row[lane]))
        self._drawn.agent_dir = int(state.direction[lane])
        return self._drawn.render()
