"""Games of Mini PacMan with their settings."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from rmc_agents.envs.checks import checked_choice, checked_int
from rmc_agents.envs.task import Infos, StepArrays, Task

from .drawing import draw_frame, draw_text
from .engine import observe_lanes, start_lanes, step_lanes
from .map import make_maze, make_view, view_shape
from .state import MODES, State, check_state, make_state, state_from_dict, with_room_for_ghosts

ACTIONS = 5


class Games(Task):
    """N games of one mode, seen through one viewport.

    Raises:
        ValueError: for a mode, viewport or frame_cap that is not allowed.
    """

    def __init__(self, lanes: int, mode: str, viewport: int | None, frame_cap: int) -> None:
        cap = checked_int("frame_cap", frame_cap, 1, 2**31 - 1)
        self.observation_space, self.action_space = Box(0, 255, view_shape(viewport), np.uint8), Discrete(ACTIONS)
        self.viewport = viewport
        self.rules = MODES[checked_choice("mode", mode, MODES)]._replace(frame_cap=cap)
        self.view = make_view(viewport)
        self.maze = make_maze()
        self.state = make_state(lanes)

    @property
    def was_reset(self) -> NDArray[np.bool_]:
        return self.state.level > 0

    def start(self, mask: NDArray[np.bool_]) -> None:
        start_lanes(self.state, self.maze, mask)

    def observe(self) -> NDArray[np.uint8]:
        """[N, height, width, 3]."""
        observations = self.empty_observations()
        observe_lanes(self.state, self.view, observations.reshape(len(observations), -1))
        return observations

    def step(self, actions: NDArray[np.int64]) -> StepArrays:
        """See `Task`; rewards are float32."""
        self.state = with_room_for_ghosts(self.state)
        results = self.empty_step(np.float32)
        pixels = results[0].reshape(len(actions), -1)
        step_lanes(self.state, self.maze, self.view, self.rules, actions, pixels, *results[1:])
        return results

    def infos(self) -> Infos:
        return {"level": self.state.level.astype(np.int64), "power": self.state.power.astype(np.int64)}

    def check_state(self, state: State) -> None:
        check_state(state, self.rules.frame_cap)

    def set_state(self, fields: Mapping[str, NDArray[Any]]) -> None:
        """See `Task`; the ghost capacity is that of the fields."""
        state = state_from_dict(fields, len(self.state.key))
        self.check_state(state)
        self.state = state

    def draw(self, lane: int, render_mode: str) -> NDArray[np.uint8] | str:
        """The whole maze with the window marked, uint8 [360, 456, 3], or its text map."""
        if render_mode == "ansi":
            return draw_text(self.state, lane)
        return draw_frame(self.state, lane, self.viewport)
