"""An environment that counts its steps and an agent with a counting memory: they reveal lost or duplicated state.

Importing this registers Counting-v0. Its observation is the number of steps in the episode, and its episodes are of
different lengths, which end by termination and truncation in turn.
"""

import multiprocessing
import os
import time
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor

from rmc_agents.config import Config
from rmc_agents.train.impala.actors import Actor
from rmc_agents.types import AgentOutput, TimeStep

FAULT = "COUNTING_FAULT"  # an environment variable: the fault in every process except the tests' own
FAILS_AT = 5  # the step at which it raises, exits or hangs


class Counting(gym.Env):
    """Counts."""

    observation_space = Box(0, 1000, (1,), np.float32)
    action_space = Discrete(3)

    def __init__(self, render_mode: str | None = None) -> None:
        self.steps, self.fault = 0, os.environ.get(FAULT) if multiprocessing.parent_process() else None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.count, self.length = 0, int(self.np_random.integers(2, 20))
        return self._observation(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.count, self.steps = self.count + 1, self.steps + 1
        if self.steps == FAILS_AT:
            self._fail()
        ends = self.count == self.length
        return self._observation(), 1.0, ends and self.length % 2 == 0, ends and self.length % 2 == 1, {}

    def _fail(self) -> None:
        if self.fault == "raise":
            raise RuntimeError("it lost count\nof everything")
        if self.fault == "exit":
            os._exit(7)
        if self.fault == "hang":
            time.sleep(3600)

    def _observation(self) -> np.ndarray:
        return np.array([self.count], np.float32)


if "Counting-v0" not in gym.registry:
    gym.register("Counting-v0", Counting)


class Count(NamedTuple):
    """The memory of the counting agent."""

    steps: Tensor  # [B, 1] float32: observations seen of the episode so far


class CountingAgent(torch.nn.Module):
    """Its value is the number of the episode's observations so far, counted by its memory alone."""

    def __init__(self, num_actions: int = 3) -> None:
        super().__init__()
        self.num_actions = num_actions
        self.offset = torch.nn.Parameter(torch.zeros(()))  # of the weights' version: shows that they came

    def initial_state(self, batch_size: int) -> Count:
        return Count(torch.zeros(batch_size, 1))

    def step(self, steps: TimeStep, state: Count) -> tuple[AgentOutput, Count]:
        before = torch.where(steps.is_first.unsqueeze(1), 0.0, state.steps)
        after = Count(before + 1.0)
        logits = torch.full((len(before), self.num_actions), self.offset.item())
        return AgentOutput(logits, after.steps.squeeze(1)), after


class CountingActor(Actor):
    """An actor of the environment of its settings, with the counting agent."""

    def __init__(self, config: Config, index: int) -> None:
        super().__init__(config, index)
        self.agent = self.collector.agent = CountingAgent(self.lanes.spec.num_actions)  # type: ignore[assignment]
        self.collector.state = self.agent.initial_state(config.actors.lanes_per_actor)
