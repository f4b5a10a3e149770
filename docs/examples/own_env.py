"""Your own environment, and an agent trained in it: a sign at the start says where to turn at the end."""

import sys
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete

import rmc_agents as rmc


class Corridor(gym.Env):
    """The first observation shows on which side the reward is; after `length` steps ahead, turn to that side.

    Actions: 0 ahead, 1 left, 2 right. Observations: the sign (-1, 0 or 1), and whether this is the end.
    """

    observation_space = Box(-1, 1, (2,), np.float32)
    action_space = Discrete(3)

    def __init__(self, length: int = 4) -> None:
        self.length = length

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """A new sign."""
        super().reset(seed=seed)
        self.side, self.position = int(self.np_random.choice([-1, 1])), 0
        return np.float32([self.side, 0]), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Step ahead, or turn to a side, which ends the episode: reward 1 for the right side."""
        if action == 0 and self.position < self.length:
            self.position += 1
            return np.float32([0, self.position == self.length]), 0.0, False, False, {}
        is_right = self.position == self.length and action == (1 if self.side < 0 else 2)
        return np.zeros(2, np.float32), float(is_right), True, False, {"is_success": is_right}


def main(frames: int = 200_000) -> None:
    """Train in it, and evaluate."""
    settings = {
        "core": "lstm",
        "hidden_size": 32,
        "num_envs": 32,
        "total_frames": frames,
        "eval_episodes": 0,
        "video": False,
    }
    run = rmc.train(settings, env=Corridor)
    statistics = rmc.evaluate(rmc.load(run.path), Corridor, episodes=100)
    print(f"{statistics.success_rate:.0%} turned to the right side, by chance at most 50 %")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
