"""MiniGrid's observations as a vector that an agent can take."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box
from minigrid.core.constants import COLOR_TO_IDX, OBJECT_TO_IDX, STATE_TO_IDX

NUM_OBJECTS, NUM_COLORS, NUM_STATES = len(OBJECT_TO_IDX), len(COLOR_TO_IDX), len(STATE_TO_IDX)
NUM_DIRECTIONS = 4


class MiniGridView(gym.Wrapper):
    """The agent's symbolic view and direction, one-hot, as one `uint8` vector of zeros and ones.

    A cell of MiniGrid's view is three numbers that name an object, a colour and a state. They are names, not amounts,
    so each becomes a one-hot vector: scaling them would tell the agent that a ball lies between a key and a box.
    The mission is left out: it never changes in the memory tasks. `info["is_success"]` tells at an episode's end
    whether it was solved, which in MiniGrid is when it ends on a positive reward.

    Args:
      env: a MiniGrid environment with a dictionary observation.
    """

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        image = env.observation_space["image"]  # type: ignore[index]
        cells = int(np.prod(image.shape[:2]))
        size = cells * (NUM_OBJECTS + NUM_COLORS + NUM_STATES) + NUM_DIRECTIONS
        self.observation_space = Box(0, 1, (size,), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """As gymnasium's."""
        obs, info = self.env.reset(seed=seed, options=options)
        return self._view(obs), info

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """As gymnasium's, with `is_success` in the info of an episode's last step."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        if terminated or truncated:
            info = {**info, "is_success": bool(terminated and float(reward) > 0)}
        return self._view(obs), float(reward), terminated, truncated, info

    def _view(self, obs: dict[str, Any]) -> np.ndarray:
        objects, colors, states = (obs["image"][..., i].ravel() for i in range(3))
        parts = (
            np.eye(NUM_OBJECTS, dtype=np.uint8)[objects],
            np.eye(NUM_COLORS, dtype=np.uint8)[colors],
            np.eye(NUM_STATES, dtype=np.uint8)[states],
            np.eye(NUM_DIRECTIONS, dtype=np.uint8)[obs["direction"]],
        )
        return np.concatenate([part.ravel() for part in parts])
