"""Sequences as environments: a lane shows sequences step by step and asks for an answer at some of the steps.

A sequence of `length` steps has `length + 1` observations: one for each step, and a last one that asks nothing.
"""

from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from rmc_agents.envs.checks import check_range
from rmc_agents.envs.task import Infos, StepArrays, Task

from .drawing import draw_text

NO_TARGET = -1
"""The target where nothing is asked."""


class Sequences(Task):
    """Sequences of one kind in N lanes: how they start, what they show and what they ask.

    The reward is 1 for the right action where one is asked, else 0. An episode terminates with its sequence.

    Attributes:
        state: a NamedTuple of arrays whose first axis is the lanes. The rules here use these fields, which a
            subclass's `start` sets; it may have more:

            time        int64 [N]   steps since the beginning of the sequence; -1 before the first reset
            length      int64 [N]   steps of the sequence
            all_right   bool [N]    whether every answer so far was right
        chance: the accuracy of guessing.
        is_answer_whole: whether the answers of a sequence form one answer together, so that `is_success` is meaningful.
    """

    chance: float
    is_answer_whole: ClassVar[bool] = True

    @property
    def was_reset(self) -> NDArray[np.bool_]:
        return self.state.time >= 0

    @property
    def needs_reset(self) -> NDArray[np.bool_]:
        return self.state.time == self.state.length

    @abstractmethod
    def targets(self) -> NDArray[np.int64]:
        """The right actions of the current observations [N], `NO_TARGET` where there is none; a new array."""

    @abstractmethod
    def describe(self, lane: int) -> str:
        """A lane's current observation in words."""

    def action_names(self) -> list[str]:
        """Readable names of the answers, in the order of the actions."""
        return [str(action) for action in range(int(self.action_space.n))]

    def vocabulary_fingerprint(self) -> str:
        """A text that distinguishes vocabularies of the same size; '' if there are none."""
        return ""

    def num_episodes(self) -> int | None:
        """The number of different episodes, which as many consecutive seeds give once each; None: unlimited."""
        return None

    def check_state(self, state: Any) -> None:
        """Raises ValueError, naming the first field with a value that no lane can reach."""
        check_range("length", state.length[state.time >= 0], 1, None)
        check_range("time", state.time, -1, None)
        check_range("time", state.time - state.length, -np.iinfo(np.int64).max, 0)

    def check_unroll(self, unroll_length: int, lanes: int) -> None:
        """Raises ValueError if there is too little data for one rollout of `unroll_length` steps in `lanes` lanes."""

    def step(self, actions: NDArray[np.int64]) -> StepArrays:
        """Answers [N] to the current observations; rewards are float32, nothing is truncated."""
        state, targets = self.state, self.targets()
        right = actions == targets
        np.logical_and(state.all_right, right | (targets == NO_TARGET), out=state.all_right)
        waiting = self.needs_reset
        np.add(state.time, 1, out=state.time)
        if waiting.any():
            self.start(waiting)
        return self.observe(), right.astype(np.float32), self.needs_reset, np.zeros(len(right), np.bool_)

    def infos(self) -> Infos:
        """`target`: the right action, -1 where none is asked."""
        return {"target": self.targets()}

    def outcome(self, rewards: NDArray[Any]) -> Infos:
        """`is_success`: whether every answer was right, if they form one answer together."""
        return {"is_success": self.state.all_right.copy()} if self.is_answer_whole else {}

    def draw(self, lane: int, render_mode: str) -> NDArray[np.uint8] | str:
        """The observation in words, as a picture or as text."""
        text = self.describe(lane)
        return text if render_mode == "ansi" else draw_text(text)
