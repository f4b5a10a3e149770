"""An environment of random numbers: an agent's actions depend on everything that it has observed."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete


class Noise(gym.Env):
    """Observations and rewards are drawn; an episode ends with probability 0.2 a step, every second one truncated."""

    observation_space = Box(-1, 1, (3,), np.float32)
    action_space = Discrete(4)
    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        return self._observe(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        ends, is_cut = self.np_random.random(2) < (0.2, 0.5)
        return self._observe(), float(self.np_random.normal() + action), bool(ends & ~is_cut), bool(ends & is_cut), {}

    def render(self) -> np.ndarray:  # type: ignore[override]
        return np.zeros((8, 8, 3), np.uint8)

    def _observe(self) -> np.ndarray:
        return self.np_random.uniform(-1, 1, 3).astype(np.float32)
