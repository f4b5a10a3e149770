"""Environments without a native engine, for workers too: nothing heavy is imported. Importing this registers one."""

import multiprocessing
import os
import time
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete

FAULT = "WANDERER_FAULT"
FAILS_AT = 30


class Wanderer(gym.Env):
    """Goes left or right and is moved at random; an episode ends three places away or after a random time.

    In a worker process the environment variable WANDERER_FAULT makes it fail: 'make' in the constructor, 'raise',
    'exit' or 'hang' at the FAILS_AT-th step.
    """

    observation_space = Box(-np.inf, np.inf, (2,), np.float32)
    action_space = Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.steps = 0
        self.fault = os.environ.get(FAULT) if multiprocessing.parent_process() else None
        if self.fault == "make":
            raise OSError("no room for another")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.place = self.np_random.normal(size=2).astype(np.float32) + (options or {}).get("shift", 0)
        return self.place, {"level": 1}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        if self.steps == FAILS_AT and self.fault == "raise":
            raise RuntimeError("it fell off\nthe edge")
        if self.steps == FAILS_AT and self.fault == "exit":
            os._exit(7)
        if self.steps == FAILS_AT and self.fault == "hang":
            time.sleep(3600)
        push = self.np_random.normal(size=2).astype(np.float32)
        self.place = self.place + push + np.float32(0.5 * (2 * action - 1))
        terminated, truncated = bool(np.abs(self.place).max() > 3), bool(self.np_random.random() < 0.1)
        facts = {"is_success": np.bool_(terminated), "solved": terminated, "level": 2, "note": "so", "no": object()}
        info = facts | {"where": self.place, "more": {"reward": float(push[0])}}
        return self.place, float(push[0]), terminated, truncated, info


class Asking(gym.Env):
    """Reports the right action, or that there is none; a reset with an odd seed reports neither."""

    observation_space, action_space = Box(-1, 1, (1,), np.float32), Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.time = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {} if (seed or 0) % 2 else {"target": 1}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.time += 1
        return np.zeros(1, np.float32), 0.0, self.time % 4 == 0, False, {"target": self.time % 3 - 1}


if "Wanderer-v0" not in gym.registry:
    gym.register("Wanderer-v0", Wanderer)
