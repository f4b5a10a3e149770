"""Mini PacMan at the cost of an environment without a compiled engine: 'benchmarks.speed.slow_env:SlowMiniPacman-v0'.

Observations and actions are those of 'minipacman', so only the environment's cost differs.
"""

import time
from typing import Any

import gymnasium as gym

from rmc_agents.envs.minipacman.env import MiniPacmanEnv

SECONDS = 100e-6


class SlowMiniPacman(gym.Wrapper):
    """Mini PacMan through the 5x5 window; a step takes `seconds` of CPU time, one lane at a time.

    CPU time, not wall time: if processes share a core, waiting must not make the environment cheaper.
    """

    def __init__(self, render_mode: str | None = None, seconds: float = SECONDS) -> None:
        super().__init__(MiniPacmanEnv(render_mode=render_mode))
        self._seconds = seconds

    def step(self, action: Any) -> Any:
        """As Mini PacMan's."""
        end = time.thread_time() + self._seconds
        result = self.env.step(action)
        while time.thread_time() < end:
            pass
        return result


gym.register("SlowMiniPacman-v0", entry_point=f"{__name__}:{SlowMiniPacman.__name__}", disable_env_checker=True)
