"""Environments with actions of every space that sb3-contrib takes, for workers too: nothing heavy is imported."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, MultiBinary, MultiDiscrete

ACTION_SPACES = {
    "Box": Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, 0.25], np.float32)),
    "Fixed": Box(np.array([-1.0, 10.0], np.float32), np.array([1.0, 10.0], np.float32)),
    "Matrix": Box(-9.0, 9.0, (2, 3)),
    "MultiDiscrete": MultiDiscrete([2, 4]),
    "MultiBinary": MultiBinary(3),
    "ManyChoices": MultiDiscrete([[2, 3], [4, 2]]),
    "ManyBits": MultiBinary((2, 2)),
}


class ActionsEnv(gym.Env):
    """Accepts only actions of its space; an episode lasts 3 steps."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012
    observation_space = Box(-1, 1, (2,), np.float32)

    def __init__(self, kind: str, render_mode: str | None = None) -> None:
        self.action_space, self.render_mode = ACTION_SPACES[kind], render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.left = 3
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        assert np.shape(action) == self.action_space.shape
        assert self.action_space.contains(np.asarray(action, self.action_space.dtype))
        self.left -= 1
        return np.zeros(2, np.float32), float(np.sum(action)), self.left == 0, False, {}

    def render(self) -> np.ndarray:
        return np.zeros((8, 8, 3), np.uint8)


for kind in ACTION_SPACES:
    if f"Actions{kind}-v0" not in gym.registry:
        gym.register(f"Actions{kind}-v0", entry_point=ActionsEnv, kwargs={"kind": kind})
