"""A core, an encoder and environments as users write them; commands find them as helpers.own_parts:NAME."""

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from torch import Tensor, nn

import rmc_agents as rmc


class Slots(rmc.Core):
    """A plain tuple as its state, gates, and attention to slots that are not its output."""

    def __init__(self, input_size: int, width: int = 3) -> None:
        super().__init__(input_size, output_size=width)
        self.inward = nn.Linear(input_size, width)

    def initial_leaves(self) -> tuple[Tensor, ...]:
        return (torch.zeros(1, self.output_size),)

    def cell(self, x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        trace = 0.5 * state[0] + self.inward(x).tanh()
        return trace, (trace,)

    def gate_values(self, inputs: Tensor, should_reset: Tensor, state: Any) -> dict[str, Tensor]:
        return {"open": torch.sigmoid(self.inward(inputs))}

    def attention_weights(self, inputs: Tensor, should_reset: Tensor, state: Any) -> Tensor:
        return inputs.new_full((len(inputs), 1, 1, 2, 3), 1 / 3)


class Flat(nn.Module):
    def __init__(self, spec: rmc.SpaceSpec, width: int = 8) -> None:
        super().__init__()
        self.layer, self.output_size = nn.Linear(spec.obs_shape[0], width), width

    def forward(self, steps: Any) -> Tensor:
        return self.layer(steps.obs).relu()


class Walk(gym.Env):
    """A walk that depends on chance and the action, from 0 to `length` steps away; it can be saved."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012
    observation_space = Box(-1, 1, (1,), np.float32)
    action_space = Discrete(2)

    def __init__(self, length: int = 4, render_mode: str | None = None) -> None:
        self.length, self.render_mode = length, render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.place = 0
        return self._observation(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.place += int(action) + int(self.np_random.integers(-1, 1))
        return self._observation(), float(self.place), abs(self.place) == self.length, False, {}

    def render(self) -> np.ndarray:
        return np.full((40, 40, 3), 60 * abs(self.place), np.uint8)

    def get_state(self) -> dict[str, Any]:
        return {"place": np.int64(self.place)}

    def set_state(self, state: dict[str, Any]) -> None:
        self.place = state["place"]

    def _observation(self) -> np.ndarray:
        return np.float32([self.place / self.length])


class Drawn(Walk):
    """A walk that is always drawn: its constructor takes no `render_mode`."""

    def __init__(self, length: int = 4) -> None:
        super().__init__(length, "rgb_array")


class Failing(Walk):
    """A walk that ends with an error at its eighth step."""

    steps = 0

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.steps += 1
        if self.steps == 8:
            raise OSError("no connection")
        return super().step(action)


class Unseen(Walk):
    """A walk that cannot be drawn."""

    metadata = {}  # noqa: RUF012


class ManyWalks(VectorEnv):
    """Such walks, all lanes together, with one generator for them."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, num_envs: int, length: int = 4) -> None:
        self.num_envs, self.length = num_envs, length
        self.single_observation_space, self.single_action_space = Walk.observation_space, Walk.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.place = np.zeros(self.num_envs, np.int64)
        return self._observation(), {}

    def step(self, actions: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict]:
        moved = self.place + actions + self.np_random.integers(-1, 1, self.num_envs)
        self.place = np.where(abs(self.place) == self.length, 0, moved)
        ends = abs(self.place) == self.length
        return self._observation(), actions.astype(float), ends, np.zeros_like(ends), {}

    def get_state(self) -> dict[str, Any]:
        return {"place": self.place}

    def set_state(self, state: dict[str, Any]) -> None:
        self.place = state["place"]

    def _observation(self) -> np.ndarray:
        return (self.place[:, None] / self.length).astype(np.float32)
