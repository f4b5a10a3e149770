"""Your own environment with all lanes together in NumPy, for many lanes at once."""

import sys
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

import rmc_agents as rmc


class Signs(VectorEnv):
    """The first observation is a sign, -1 or 1; `delay` steps later, action 0 or 1 says which it was."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012
    single_observation_space, single_action_space = Box(-1, 1, (2,), np.float32), Discrete(2)

    def __init__(self, num_envs: int, delay: int = 5) -> None:
        self.num_envs, self.delay = num_envs, delay
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """New episodes in all lanes."""
        super().reset(seed=seed)
        seeds = self.np_random.integers(2**63, size=self.num_envs) if seed is None else seed + np.arange(self.num_envs)
        self.generators = [np.random.default_rng(each) for each in seeds]  # lane i plays as one lane from seed + i
        self.time = np.zeros(self.num_envs, np.int64)
        self.answer = np.array([generator.integers(2) for generator in self.generators])
        return self._observe(), {}

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict]:
        """One step of all lanes. A lane whose episode has ended begins the next, whatever the action."""
        begins, ends = self.time > self.delay, self.time == self.delay
        right = ends & (actions == self.answer)
        self.time = np.where(begins, 0, self.time + 1)
        for lane in np.flatnonzero(begins):
            self.answer[lane] = self.generators[lane].integers(2)
        infos = {"is_success": right, "_is_success": ends}  # the second marks the lanes that have the first
        return self._observe(), right.astype(np.float64), ends, np.zeros_like(ends), infos

    def get_state(self) -> dict[str, Any]:
        """For an exact resume."""
        generators = [generator.bit_generator.state for generator in self.generators]
        return {"time": self.time, "answer": self.answer.copy(), "generators": generators}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from a state."""
        self.time, self.answer = state["time"], state["answer"].copy()
        for generator, saved in zip(self.generators, state["generators"], strict=True):
            generator.bit_generator.state = saved

    def _observe(self) -> np.ndarray:
        sign = np.where(self.time == 0, 2 * self.answer - 1, 0)
        return np.stack([sign, self.time == self.delay], axis=1).astype(np.float32)


def main(frames: int = 500_000) -> None:
    """Train in it, and evaluate."""
    settings = {"core": "lstm", "hidden_size": 32, "reward_scale": 1.0, "total_frames": frames}
    run = rmc.train(settings | {"eval_episodes": 0, "video": False}, env=Signs)
    statistics = rmc.evaluate(rmc.load(run.path), Signs, episodes=1000)
    print(f"{statistics.success_rate:.0%} right, by chance 50 %")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
