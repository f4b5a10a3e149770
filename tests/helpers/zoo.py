"""Small environments with all kinds of spaces; importing this registers them as `Zoo-KIND-v0`."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Sequence, Space, Text, Tuple
from gymnasium.vector import SyncVectorEnv

LENGTH = 5
PLAIN, TWO = Box(-1, 1, (2,), np.float32), Discrete(2)
PICTURE = Box(0, 255, (36, 40, 3), np.uint8)
SPACES: dict[str, tuple[Space, Space]] = {
    "Start": (PLAIN, Discrete(3, start=5)),
    "MultiDiscrete": (PLAIN, MultiDiscrete([[3, 2]], start=[[0, 4]])),
    "MultiBinary": (PLAIN, MultiBinary(3)),
    "Box": (PLAIN, Box(np.float32([[-2, 0]]), np.float32([[1, 10]]))),
    "TupleActions": (PLAIN, Tuple((Discrete(2, start=1), Box(-3, 3, (2,), np.float64), MultiBinary(2)))),
    "Picture": (Dict({"camera": PICTURE, "speed": Box(-9, np.inf, (), np.float64)}), TWO),
    "Tuple": (Tuple((Discrete(3), Discrete(4, start=-2))), TWO),
    "Nested": (
        Dict(
            {
                "a/b": Tuple((MultiDiscrete([2, 3], start=[1, 0]), MultiBinary((2, 2)))),
                "note": Text(5),
                "count": Box(0, 9, (2,), np.int16),
            }
        ),
        TWO,
    ),
    "Double": (Box(-1, 1, (2,), np.float64), TWO),
}
BAD: dict[str, tuple[Space, Space]] = {
    "Unbounded": (PLAIN, Box(-np.inf, 1, (2,))),
    "Sequence": (Dict({"a": PLAIN, "b": Tuple((TWO, Sequence(PLAIN)))}), TWO),
}


class Zoo(gym.Env):
    """Random observations that follow from the seed and the time; an episode lasts 5 steps, rewards tell the action."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(self, kind: str, render_mode: str | None = None) -> None:
        self.observation_space, self.action_space = (SPACES | BAD)[kind]
        self.render_mode, self.time = render_mode, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = LENGTH * (seed or -(-self.time // LENGTH))
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self.time += 1
        parts = action if isinstance(action, tuple) else (action,)
        reward = float(sum(np.sum(part) for part in parts))
        return self._observe(), reward, self.time % LENGTH == 0, False, {}

    def render(self) -> np.ndarray:
        return np.zeros((8, 8, 3), np.uint8)

    def _observe(self) -> Any:
        self.observation_space.seed(self.time)
        return self.observation_space.sample()


class SavableZoo(SyncVectorEnv):
    """Lanes of the same, whose state can be saved."""

    def __init__(self, kind: str, num_envs: int) -> None:
        super().__init__([lambda: Zoo(kind)] * num_envs)

    def get_state(self) -> dict[str, Any]:
        return {"time": np.array([env.time for env in self.envs]), "ended": self._autoreset_envs.copy()}  # type: ignore[attr-defined]

    def set_state(self, state: dict[str, Any]) -> None:
        for env, time in zip(self.envs, state["time"], strict=True):
            env.time = int(time)  # type: ignore[attr-defined]
        self._autoreset_envs = state["ended"].copy()


for each in SPACES | BAD:
    if f"Zoo-{each}-v0" not in gym.registry:
        gym.register(f"Zoo-{each}-v0", Zoo, kwargs={"kind": each})
