"""Nth Farthest: which of the vectors shown is the n-th farthest from vector m?"""

from typing import Literal

import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from rmc_agents.envs.checks import check_range, checked_choice, checked_int
from rmc_agents.envs.task import Infos, StepArrays

from .base import NO_TARGET, Sequences
from .environment import SequenceEnv, SequenceVectorEnv
from .nth_farthest_drawing import draw_sequence
from .nth_farthest_engine import State, ask_lanes, observe_lanes, start_lanes

MAX_VECTORS, MAX_SIZE, MAX_THINKING = 64, 1024, 1000
ASK = ("last", "every")
ABSENT = ("nearest", "farthest")


class NthFarthest(Sequences):
    """The sequences of `NthFarthestEnv`, in N lanes.

    Args:
        lanes: N.
        vectors, size, fewest, most, active, thinking, ask, absent: as for `NthFarthestEnv`.

    Raises:
        ValueError: for a value that is not allowed.
    """

    state: State

    def __init__(
        self,
        lanes: int,
        vectors: int = 8,
        size: int = 16,
        fewest: int | None = None,
        most: int | None = None,
        active: int | None = None,
        thinking: int = 0,
        ask: Literal["last", "every"] = "last",
        absent: Literal["nearest", "farthest"] = "nearest",
    ) -> None:
        self.vectors = checked_int("vectors", vectors, 2, MAX_VECTORS)
        self.size = checked_int("size", size, 1, MAX_SIZE)
        self.most = self.vectors if most is None else checked_int("most", most, 2, self.vectors)
        self.fewest = self.most if fewest is None else checked_int("fewest", fewest, 2, self.most)
        self.active = self.size if active is None else checked_int("active", active, 1, self.size)
        self.thinking = checked_int("thinking", thinking, 0, MAX_THINKING)
        self.ask = checked_choice("ask", ask, ASK)
        self.absent_first = checked_choice("absent", absent, ABSENT) == "farthest"
        self.observation_space = Box(-1.0, 1.0, (self.size + 3 * self.vectors,), np.float32)
        self.action_space = Discrete(self.vectors)
        self.chance = self._guessing()
        self._distances = np.zeros(self.vectors, np.int64)
        self.state = State(
            key=np.zeros(lanes, np.uint64),
            counter=np.zeros(lanes, np.uint64),
            time=np.full(lanes, -1, np.int64),
            length=np.zeros(lanes, np.int64),
            all_right=np.ones(lanes, np.bool_),
            shown=np.zeros(lanes, np.int64),
            reference=np.zeros(lanes, np.int64),
            rank=np.zeros(lanes, np.int64),
            answer=np.zeros(lanes, np.int64),
            labels=np.zeros((lanes, self.vectors), np.int64),
            vectors=np.zeros((lanes, self.vectors, self.size), np.float32),
        )

    def start(self, mask: NDArray[np.bool_]) -> None:
        start_lanes(self.state, mask, self.fewest, self.most, self.active, self.thinking, self._distances)

    def _guessing(self) -> float:
        """The accuracy of guessing among the vectors shown so far."""
        right = asked = 0.0
        for count in range(self.fewest, self.most + 1):
            shown = np.arange(1, count + 1) if self.ask == "every" else np.array([count])
            shares = (shown / count) ** 2  # of sequences in which m and n are among the first `shown`
            right += float((shares / shown).sum())
            asked += float(shares.sum())
            if self.ask == "every" and self.thinking:  # the last answer is asked for twice
                right, asked = right + 1 / count, asked + 1
        return right / asked

    def observe(self) -> NDArray[np.float32]:
        """See `Sequences`: [N, D + 3 * V]."""
        observations = self.empty_observations()
        observe_lanes(self.state, self.absent_first, observations)
        return observations

    def targets(self) -> NDArray[np.int64]:
        targets = np.where(self.state.time == self.state.length - 1, self.state.answer, NO_TARGET)
        if self.ask == "every":
            ask_lanes(self.state, self.absent_first, self._distances, targets)
        return targets

    def step(self, actions: NDArray[np.int64]) -> StepArrays:
        """As `Sequences`; only the answer at the end is rewarded: earlier rewards would be hints."""
        is_last = self.state.time == self.state.length - 1
        observations, rewards, terminated, truncated = super().step(actions)
        return observations, rewards * is_last, terminated, truncated

    def infos(self) -> Infos:
        """As `Sequences`, and `cue`: whether the vector shown is vector m; `nth`: n."""
        state = self.state
        place = np.clip(state.time, 0, self.vectors - 1)
        label = np.take_along_axis(state.labels, place[:, None], axis=1)[:, 0]
        is_shown = (state.time >= 0) & (state.time < state.shown)
        absent = self.vectors - state.shown if self.absent_first else 0
        return super().infos() | {"cue": is_shown & (label == state.reference), "nth": state.rank + 1 + absent}

    def describe(self, lane: int) -> str:
        state = self.state
        time, count, target = int(state.time[lane]), int(state.shown[lane]), int(self.targets()[lane])
        rank, reference = int(state.rank[lane]) + 1, int(state.reference[lane]) + 1
        lines = [f"Which of {count} is number {rank} in distance from vector {reference}, the farthest first?"]
        if time < count:
            numbers = " ".join(f"{number:+.2f}" for number in state.vectors[lane, time])
            lines.append(f"Vector {state.labels[lane, time] + 1}: {numbers}")
        if target != NO_TARGET:
            lines.append(f"The answer is asked now: {target + 1}")
        return "\n\n".join(lines)

    def action_names(self) -> list[str]:
        return [f"vector {label}" for label in range(1, self.vectors + 1)]

    def draw(self, lane: int, render_mode: str) -> NDArray[np.uint8] | str:
        """See `Sequences`. The picture shows the vectors so far, and at the end whether the answers were right."""
        if render_mode == "ansi":
            return self.describe(lane)
        return draw_sequence(self.state, lane, int(self.targets()[lane]))

    def check_state(self, state: State) -> None:
        """See `Sequences`. The compiled rules use these values as indices without checking bounds."""
        super().check_state(state)
        check_range("shown", state.shown[state.time >= 0], self.fewest, self.most)
        if not (np.abs(state.vectors) <= 1).all() or state.vectors[..., self.active :].any():
            raise ValueError(f"state field 'vectors': expected {self.active} numbers from -1 to 1, then zeros")
        check_range("length", (state.length - state.shown)[state.time >= 0], self.thinking, self.thinking)
        for name in ("reference", "rank", "answer", "labels"):
            check_range(name, getattr(state, name), 0, self.vectors - 1)
        check_range("rank", (state.rank - state.shown)[state.time >= 0], -self.vectors, -1)


class NthFarthestEnv(SequenceEnv):
    """
    ## Description

    Vectors are shown one at a time, each with a label. Which is the n-th farthest from vector m? The answer is asked
    at the last step, so that all vectors have to be remembered and compared. The task is that of "Relational recurrent
    neural networks" (Santoro et al., 2018, arXiv 1806.01822). n and m are shown at every step; numbers are uniform in
    (-1, 1), distances are Euclidean, and no two of them are equal. The last in that order is vector m itself: an agent
    that knows only this and guesses among the others is right in 2 of `vectors` sequences.

    ## Action space

    `Discrete(vectors)`: the answer's label. Where none is asked, the action has no effect.

    ## Observation

    `Box(-1, 1, (size + 3 * vectors,), float32)`: the vector, its label one-hot, n one-hot, m one-hot. While thinking,
    vector and label are zeros; the terminal observation is all zeros.

    ## Rewards

    1 for the right answer at the end, else 0. Other answers are not rewarded: an agent that sees its reward
    would learn from it whether it was right.

    ## Termination

    After the answer. `info["target"]` is the right action where one is asked, else -1; `info["cue"]` says whether
    vector m is shown; `info["nth"]` is n; `info["is_success"]` says at the end whether all answers
    were right.

    ## Arguments

    - `vectors`: how many (default 8), 2 to 64
    - `size`: numbers in a vector (default 16), 1 to 1024
    - `fewest`, `most`: the number of vectors shown is uniform between these, drawn for each sequence; k vectors have
      the labels 1 to k; None (default): `most` is `vectors`, and `fewest` is `most`
    - `active`: how many numbers of a vector are drawn, the rest are 0; None (default): all
    - `thinking`: steps after the last vector (default 0); the answer is asked at the last one
    - `ask`: "last" (default), or "every": also after each vector, among those shown so far, once vector m and one that
      is the n-th farthest have been shown
    - `absent`: where vectors that are not shown, or not yet, come in the order: "nearest" (default), so that n = 1
      always asks for the farthest of those shown; or "farthest", so that n = `vectors` always asks for m itself
    - `render_mode`: "rgb_array" or "ansi"

    ## Registered configurations

    - `NthFarthest-v0`, also by `gymnasium.make("rmc_agents.envs:NthFarthest-v0", vectors=4, thinking=2)`
    """

    def __init__(
        self,
        vectors: int = 8,
        size: int = 16,
        fewest: int | None = None,
        most: int | None = None,
        active: int | None = None,
        thinking: int = 0,
        ask: Literal["last", "every"] = "last",
        absent: Literal["nearest", "farthest"] = "nearest",
        render_mode: str | None = None,
    ) -> None:
        """See the class; raises ValueError for a value that is not allowed."""
        super().__init__(NthFarthest(1, vectors, size, fewest, most, active, thinking, ask, absent), render_mode)


class NthFarthestVectorEnv(SequenceVectorEnv):
    """Many lanes of `NthFarthestEnv`, with the same arguments."""

    task = NthFarthest
