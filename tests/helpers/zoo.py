"""Small environments with all kinds of spaces; importing this registers them as `Zoo-KIND-v0`."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Sequence, Space, Text, Tuple

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
    "Mask": (Dict({"action_mask": MultiBinary(4), "x": PLAIN}), Discrete(4)),
    "MaskInfo": (PLAIN, Discrete(4, start=1)),
    "MaskMany": (PLAIN, MultiDiscrete([2, 3])),
    "Double": (Box(-1, 1, (2,), np.float64), TWO),
}
BAD: dict[str, tuple[Space, Space]] = {
    "Unbounded": (PLAIN, Box(-np.inf, 1, (2,))),
    "Sequence": (Dict({"a": PLAIN, "b": Tuple((TWO, Sequence(PLAIN)))}), TWO),
}


class Zoo(gym.Env):
    """Random observations determined by the seed and the time; an episode lasts 5 steps, rewards encode the action."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(self, kind: str, render_mode: str | None = None) -> None:
        self.observation_space, self.action_space = (SPACES | BAD)[kind]
        self.render_mode, self.time = render_mode, 0
        self.kind, self.is_masked = kind, kind.startswith("Mask")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time, self.begins = LENGTH * (seed or -(-self.time // LENGTH)), True
        return self._observe(), self._infos()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        if self.is_masked:
            sizes = np.atleast_1d(getattr(self.action_space, "nvec", 4))
            chosen = np.ravel(action - self.action_space.start) + np.cumsum(sizes) - sizes
            assert self._mask()[chosen].all(), (action, self._mask())
        self.time, self.begins = self.time + 1, False
        parts = action if isinstance(action, tuple) else (action,)
        reward = float(sum(np.sum(part) for part in parts))
        return self._observe(), reward, self.time % LENGTH == 0, False, self._infos()

    def render(self) -> np.ndarray:
        return np.zeros((8, 8, 3), np.uint8)

    def get_state(self) -> dict[str, Any]:
        return {"time": self.time, "begins": self.begins}

    def set_state(self, state: dict[str, Any]) -> None:
        self.time, self.begins = state["time"], state["begins"]

    def _observe(self) -> Any:
        self.observation_space.seed(self.time)
        obs = self.observation_space.sample()
        return obs | {"action_mask": self._mask()} if self.kind == "Mask" else obs

    def _infos(self) -> dict[str, Any]:
        return {"action_mask": self._mask()} if self.is_masked and self.kind != "Mask" else {}

    def _mask(self) -> np.ndarray:
        """The mask: one allowed value of each choice, by the time; none where an episode is over."""
        if self.time and self.time % LENGTH == 0 and not self.begins:
            return np.zeros(4 + (self.kind == "MaskMany"), np.int8)
        sizes = [2, 3] if self.kind == "MaskMany" else [4]
        flags = [np.arange(size) == self.time % size for size in sizes]
        return np.concatenate(flags).astype(np.int8)


for each in SPACES | BAD:
    if f"Zoo-{each}-v0" not in gym.registry:
        gym.register(f"Zoo-{each}-v0", Zoo, kwargs={"kind": each})
