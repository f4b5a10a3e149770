"""MiniGrid's MemoryEnv as a native vector environment; the rules are in `engine`."""

from typing import Any

import numpy as np
from gymnasium.spaces import Discrete
from minigrid.core.actions import Actions
from minigrid.core.grid import Grid
from minigrid.envs import MemoryEnv
from numpy.typing import NDArray

from rmc_agents.envs.native import NativeVectorEnv
from rmc_agents.envs.task import Infos, StepArrays, Task

from .engine import observe_lanes, start_lanes, step_lanes
from .level import State, check_state, grid_of, make_level, make_state, seed_lane
from .view import ROOM_END, checked_view_size, num_actions, view_space

METADATA: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": MemoryEnv.metadata["render_fps"]}


class MemoryLanes(Task):
    """N lanes of MemoryEnv.

    Args:
        lanes: N.
        size, random_length, max_steps: as for `MemoryEnv`.
        view_size, actions: as for `MiniGridView`.
    """

    def __init__(
        self,
        lanes: int,
        size: int = 13,
        random_length: bool = False,
        max_steps: int | None = None,
        view_size: int = 7,
        actions: str = "all",
    ) -> None:
        self.level = make_level(size, random_length, max_steps, checked_view_size(view_size))
        """The data that all lanes share, read-only."""
        self.observation_space = view_space(self.level.view_size**2)
        self.action_space = Discrete(num_actions(actions, len(Actions)))
        self.state = make_state(lanes)
        self._drawn: MemoryEnv | None = None

    @property
    def was_reset(self) -> NDArray[np.bool_]:
        return self.state.hallway_end > 0

    def seed(self, lane: int, seed: int) -> None:
        """Begin a lane's random numbers where gymnasium's generator of that seed begins."""
        seed_lane(self.state, lane, seed)

    def start(self, mask: NDArray[np.bool_]) -> None:
        start_lanes(self.state, self.level, mask)

    def observe(self) -> NDArray[np.uint8]:
        """[N, E]."""
        observations = self.empty_observations()
        observe_lanes(self.state, self.level, observations)
        return observations

    def step(self, actions: NDArray[np.int64]) -> StepArrays:
        """See `Task`; rewards are float64."""
        results = self.empty_step(np.float64)
        step_lanes(self.state, self.level, actions, *results)
        return results

    def outcome(self, rewards: NDArray[Any]) -> Infos:
        """As `MiniGridView`: an episode that ends with a reward was solved."""
        return {"is_success": rewards > 0}

    def infos(self) -> Infos:
        """As `MiniGridView`: the length of the corridor."""
        return {"corridor_length": self.state.hallway_end.astype(np.int64) - ROOM_END}

    def check_state(self, state: State) -> None:
        check_state(state, self.level)

    def draw(self, lane: int, render_mode: str) -> NDArray[np.uint8]:
        """MiniGrid's image, uint8 [32 * size, 32 * size, 3], drawn by its own environment in the lane's state."""
        level, state = self.level, self.state
        if self._drawn is None:
            self._drawn = MemoryEnv(level.size, agent_view_size=level.view_size, render_mode=render_mode)
        self._drawn.grid, _ = Grid.decode(grid_of(state, level, lane))
        self._drawn.agent_pos = (int(state.column[lane]), int(state.row[lane]))
        self._drawn.agent_dir = int(state.direction[lane])
        return self._drawn.render()


class MemoryVectorEnv(NativeVectorEnv):
    """Many lanes of MiniGrid's `MemoryEnv` in one compiled loop, on one thread; `MemoryLanes` has the arguments.

    It is bitwise equal to gymnasium's SyncVectorEnv of `MiniGridView`s of minigrid's own environment (3.2.0), lane
    by lane and seed by seed: observations [N, E], rewards (float64), both flags, infos.
    """

    metadata = METADATA
    task = MemoryLanes
    lanes: MemoryLanes
