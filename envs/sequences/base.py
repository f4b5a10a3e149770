"""Sequences as environments: a lane shows one sequence after the other, step by step, and asks for an answer at some.

A sequence of `length` steps has `length + 1` observations: one for each step, and a last one at which nothing is asked.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.spaces import Discrete, Space
from numpy.typing import NDArray

from rmc_agents.envs.vector_checks import check_field_names, check_range, copied_like

NOTHING_ASKED = -1
"""The target where nothing is asked."""

Observations = NDArray[Any]


class Sequences(ABC):
    """Sequences of one kind in N lanes: how one begins, what it shows and what it asks.

    Attributes:
        state: a NamedTuple of arrays whose first axis is the lanes. The rules here use these fields, others are the
            kind's own:

            time        int64 [N]   steps since the sequence's beginning; -1 before the first reset
            length      int64 [N]   steps of the sequence
            all_right   bool [N]    whether every answer so far was right
        chance: the share of right answers that guessing gets.
        is_answer_whole: whether a sequence's answers are one answer together, so that `is_success` means something.
    """

    observation_space: Space[Any]
    action_space: Discrete
    chance: float
    state: Any
    is_answer_whole: ClassVar[bool] = True

    @abstractmethod
    def seed(self, lane: int, seed: int) -> None:
        """Lets what follows in a lane depend on `seed` alone."""

    @abstractmethod
    def start(self, mask: NDArray[np.bool_]) -> None:
        """Starts a sequence in the lanes of `mask` [N]; `time`, `length` and `all_right` are set too."""

    @abstractmethod
    def observe(self) -> Observations:
        """The current observations [N, ...], a new array."""

    @abstractmethod
    def targets(self) -> NDArray[np.int64]:
        """The right actions of the current observations [N], `NOTHING_ASKED` where there is none; a new array."""

    @abstractmethod
    def describe(self, lane: int) -> str:
        """A lane's current observation in words."""

    def check_state(self, state: Any) -> None:
        """Raises ValueError, naming the first field that holds what no lane can reach."""
        check_range("length", state.length[state.time >= 0], 1, None)
        check_range("time", state.time, -1, None)
        check_range("time", state.time - state.length, -np.iinfo(np.int64).max, 0)

    def check_unroll(self, unroll_length: int) -> None:  # noqa: B027  # most kinds are generated, and never end
        """Raises ValueError if there is less to learn from than one rollout of so many steps in all lanes takes."""

    def begin(self, mask: NDArray[np.bool_], seeds: Sequence[int | None], entropy: np.random.Generator) -> None:
        """Starts a sequence in the lanes of `mask` [N]; one without a seed goes on with its random numbers.

        A lane that was never started has none yet and takes a seed from `entropy`.
        """
        for lane in np.flatnonzero(mask).tolist():
            seed = seeds[lane]
            if seed is None and self.state.time[lane] < 0:
                seed = int(entropy.integers(2**63))
            if seed is not None:
                self.seed(lane, seed)
        self.start(mask)

    def step(self, actions: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Answers [N] to the current observations: (rewards, ended), both [N].

        A lane whose sequence has ended starts the next one and ignores its action.
        """
        state, targets = self.state, self.targets()
        if (state.time < 0).any():
            raise ResetNeeded("step was called before reset")
        right = actions == targets
        np.logical_and(state.all_right, right | (targets == NOTHING_ASKED), out=state.all_right)
        waiting = state.time == state.length
        np.add(state.time, 1, out=state.time)
        if waiting.any():
            self.start(waiting)
        return right.astype(np.float32), state.time == state.length

    def get_state(self) -> dict[str, NDArray[Any]]:
        """Copies of all fields by name."""
        return {name: array.copy() for name, array in self.state._asdict().items()}

    def set_state(self, fields: Mapping[str, NDArray[Any]]) -> None:
        """Takes over copies of the fields. Raises ValueError, naming the first that does not fit."""
        check_field_names(fields, self.state._fields)
        state = self.state._replace(**copied_like(fields, self.state._asdict()))
        self.check_state(state)
        self.state = state


def checked_int(name: str, value: Any, low: int, high: int) -> int:
    """An option. Raises ValueError if it is no int in low..high."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or not low <= value <= high:
        raise ValueError(f"{name}: expected an int from {low} to {high}, received {value!r}")
    return int(value)
