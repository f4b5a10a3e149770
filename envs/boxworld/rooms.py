"""Rooms of BoxWorld with their settings."""

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from rmc_agents.envs.task import Infos, StepArrays, Task

from .drawing import draw_frame, draw_text
from .engine import observe_lanes, start_lanes, step_lanes
from .state import State, check_state, checked_rules, make_state

ACTIONS = 4


class Rooms(Task):
    """N rooms.

    Args:
        lanes: N.
        settings: of `checked_rules`.
    """

    def __init__(self, lanes: int, *args: Any, **settings: Any) -> None:
        self.rules = rules = checked_rules(*args, **settings)
        self.observation_space, self.action_space = Box(0, 255, rules.observation_shape, np.uint8), Discrete(ACTIONS)
        self.state = make_state(lanes, rules)

    @property
    def was_reset(self) -> NDArray[np.bool_]:
        return self.state.solution_length > 0

    def start(self, mask: NDArray[np.bool_]) -> None:
        start_lanes(self.state, self.rules, mask)

    def observe(self) -> NDArray[np.uint8]:
        """[N, side + 1, side, 3]."""
        observations = self.empty_observations()
        observe_lanes(self.state, self.rules, observations)
        return observations

    def step(self, actions: NDArray[np.int64]) -> StepArrays:
        """See `Task`; rewards are float32."""
        results = self.empty_step(np.float32)
        step_lanes(self.state, self.rules, actions, *results)
        return results

    def infos(self) -> Infos:
        """`is_success`, and the numbers of boxes."""
        state = self.state
        numbers = {name: getattr(state, name) for name in ("solution_length", "num_distractors", "boxes_opened")}
        return {"is_success": state.is_success.copy()} | {name: x.astype(np.int64) for name, x in numbers.items()}

    def check_state(self, state: State) -> None:
        check_state(state, self.rules)

    def draw(self, lane: int, render_mode: str) -> NDArray[np.uint8] | str:
        """The whole room with the window marked (uint8 [432, 384, 3] for 14 x 14 cells), or its text map."""
        if render_mode == "ansi":
            return draw_text(self.state, lane)
        return draw_frame(self.state, self.rules, lane)
