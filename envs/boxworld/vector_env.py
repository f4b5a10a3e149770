"""BoxWorld as a vector environment."""

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
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

from .env import ACTIONS, INFOS, METADATA, spaces_of
from .rooms import Rooms
from .state import checked_rules, state_from_dict, state_to_dict


class BoxWorldVectorEnv(VectorEnv[NDArray[np.uint8], ArrayLike, NDArray[Any]]):
    """Many rooms of BoxWorld (`BoxWorldEnv` describes them) in one compiled loop, on one thread.

    It behaves like gymnasium's SyncVectorEnv of the same rooms, lane by lane and seed by seed. Every array it returns
    is new. Rewards are float32; `infos` are arrays [N], int64 and for `is_success` bool.

    Args:
        num_envs: number of lanes, N.
        room_size, viewport, max_solution_length, max_distractors, max_steps: as for `BoxWorldEnv`.
        render_mode: "rgb_array" or "ansi": `render` returns one frame a lane.
        autoreset_mode: an `AutoresetMode` or its name, "next_step", "same_step" or "disabled" in any spelling.

    Raises:
        ValueError: for a value that is not allowed.
    """

    metadata = METADATA

    def __init__(
        self,
        num_envs: int,
        room_size: int = 14,
        viewport: int | None = 5,
        max_solution_length: int = 5,
        max_distractors: int = 5,
        max_steps: int | None = None,
        render_mode: str | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    ) -> None:
        """See the class."""
        self.num_envs = checked_num_envs(num_envs)
        self.render_mode = checked_render_mode(render_mode, ("rgb_array", "ansi"))
        self.autoreset_mode = as_autoreset_mode(autoreset_mode)
        self.metadata = {**METADATA, "render_modes": ["rgb_array", "ansi"], "autoreset_mode": self.autoreset_mode}
        self.rules = checked_rules(room_size, viewport, max_solution_length, max_distractors, max_steps)
        self._rooms = Rooms(self.num_envs, self.rules)
        self.single_observation_space, self.single_action_space = spaces_of(self.rules)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Starts episodes: (observations [N, height, width, 3], infos).

        Args:
            seed: lane i gets seed + i, or the i-th of a sequence; None lets a lane's random stream go on.
            options: with `reset_mask`, bool [N], only the lanes with True start anew; the others' observations are
                returned as they are, and `infos` covers the lanes that started. The dict is left as it is.

        Raises:
            ValueError: for seeds or a mask of another length, a mask that is not bool or has no True, or one that
                leaves out a lane that was never reset.
        """
        seeds = lane_seeds(seed, self.num_envs)
        mask = checked_reset_mask(options, self._rooms.was_reset)
        super().reset(seed=int(seed) if isinstance(seed, int | np.integer) else None)
        needs_entropy = bool((mask & ~self._rooms.was_reset).any())
        self._rooms.start(mask, seeds, self.np_random if needs_entropy else None)
        return self._rooms.observe(), self._infos(mask)

    def step(
        self, actions: ArrayLike
    ) -> tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """One step of every lane: (observations, rewards, terminated, truncated, infos).

        Args:
            actions: ints in 0..3, [N].

        Raises:
            ValueError: for actions of another shape, kind or range.
            ResetNeeded: before the first reset, and with autoreset disabled while a finished lane waits for a reset.
        """
        checked = checked_actions(actions, self.num_envs, ACTIONS)
        if self.autoreset_mode == AutoresetMode.DISABLED:
            refuse_ended(self._rooms.state.needs_reset)
        observations, rewards, terminated, truncated = self._rooms.step(checked)
        infos: dict[str, Any] = {}
        ended = terminated | truncated
        if self.autoreset_mode == AutoresetMode.SAME_STEP and ended.any():
            infos = final_infos(observations, self._infos(ended), ended)
            self._rooms.start(ended, [None] * self.num_envs, None)
            observations = self._rooms.observe()
        return observations, rewards, terminated, truncated, {**infos, **self._infos(np.ones_like(ended))}

    def render(self) -> tuple[NDArray[np.uint8] | str, ...] | None:
        """One frame or text map a lane, as `BoxWorldEnv.render`; None without a render_mode."""
        if self.render_mode is None:
            gym.logger.warn("render was called without a render_mode: nothing is drawn")
            return None
        return tuple(self._rooms.draw(lane, self.render_mode) for lane in range(self.num_envs))

    def get_state(self) -> dict[str, NDArray[Any]]:
        """Copies of everything that decides how the episodes go on, as documented at `state.State`."""
        return state_to_dict(self._rooms.state)

    def set_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Takes over what `get_state` of any vector environment with the same settings returned.

        Raises:
            ValueError: naming the first field that does not fit.
        """
        self._rooms.state = state_from_dict(state, self.num_envs, self.rules)

    def _infos(self, mask: NDArray[np.bool_]) -> dict[str, Any]:
        """Infos of the lanes of `mask` [N], in the form of gymnasium's vector environments."""
        infos: dict[str, Any] = {}
        for name in INFOS:
            values = np.where(mask, getattr(self._rooms.state, name), 0)
            infos[name] = values.astype(np.bool_ if name == "is_success" else np.int64)
            infos[f"_{name}"] = mask.copy()
        return infos
