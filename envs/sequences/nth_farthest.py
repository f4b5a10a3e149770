"""Nth Farthest: which of the vectors shown is the n-th farthest from vector m?

The order of a sequence's random draws (see `random_stream`): integer() for the number of vectors, if that is
random; for the labels, shuffled from the last place to the second; for the place of vector m; for n; then for the
numbers of one vector after the other, all drawn again if two vectors are equally far from vector m.
"""

from typing import Any, NamedTuple

import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from rmc_agents.envs.lanes import StepArrays
from rmc_agents.envs.random_stream import compiled, inlined, integer, key_of_seed
from rmc_agents.envs.vector_checks import check_range, checked_num_envs

from .base import NOTHING_ASKED, Sequences, checked_int
from .environment import SequenceEnv, SequenceVectorEnv

MOST_VECTORS, LARGEST_SIZE, MOST_THINKING = 64, 1024, 1000
MASTERED, RECENCY = 0.85, 0.02
"""A growing lane has one vector more once its accuracy, a mean in which an answer weighs RECENCY, is MASTERED."""
GRID = 2**23
"""A number is an odd multiple of 1 / GRID in (-1, 1): a float32, and distances are whole numbers, exactly compared."""


class State(NamedTuple):
    """Everything about N lanes with V labels and vectors of D numbers.

    key, counter    uint64 [N]          the lane's random stream, and the numbers drawn from it so far
    time, length    int64 [N]           see `Sequences`
    all_right       bool [N]            likewise
    level           int64 [N]           how many vectors a growing lane has come to
    accuracy        float64 [N]         of its recent answers at this level
    shown           int64 [N]           how many vectors this sequence has
    reference       int64 [N]           m, the label of the vector from which distances are measured
    rank            int64 [N]           n - 1: 0 asks for the farthest
    answer          int64 [N]           the label that is asked for
    labels          int64 [N, V]        the label of each vector, and of those that are not shown
    vectors         float32 [N, V, D]   in the order they are shown
    """

    key: NDArray[np.uint64]
    counter: NDArray[np.uint64]
    time: NDArray[np.int64]
    length: NDArray[np.int64]
    all_right: NDArray[np.bool_]
    level: NDArray[np.int64]
    accuracy: NDArray[np.float64]
    shown: NDArray[np.int64]
    reference: NDArray[np.int64]
    rank: NDArray[np.int64]
    answer: NDArray[np.int64]
    labels: NDArray[np.int64]
    vectors: NDArray[np.float32]


@inlined
def _draw_vectors(state: State, lane: int, place: int, distances: NDArray[np.int64]) -> bool:
    """Draws the vectors and their squared distances from that in `place`; whether no two distances are equal."""
    count, size = state.shown[lane], state.vectors.shape[2]
    for i in range(count):
        for j in range(size):
            state.vectors[lane, i, j] = np.float32(2 * integer(state, lane, GRID) + 1 - GRID) / np.float32(GRID)
    for i in range(count):
        distances[i] = 0
        for j in range(size):
            apart = np.float64(state.vectors[lane, i, j]) - np.float64(state.vectors[lane, place, j])
            steps = np.int64(apart * (GRID // 2))
            distances[i] += steps * steps
        for other in range(i):
            if distances[other] == distances[i]:
                return False
    return True


@compiled
def start_lanes(
    state: State,
    mask: NDArray[np.bool_],
    fewest: int,
    thinking: int,
    growing: bool,
    distances: NDArray[np.int64],
) -> None:
    """Starts a sequence in every lane of `mask` [N]; `distances` [V] is working space."""
    for lane in range(len(mask)):
        if not mask[lane]:
            continue
        labels = state.labels.shape[1]
        if growing:
            count = state.level[lane]
        else:
            count = fewest + integer(state, lane, labels - fewest + 1) if fewest < labels else labels
        for i in range(labels):
            state.labels[lane, i] = i
        for i in range(labels - 1, 0, -1):
            other, label = integer(state, lane, i + 1), state.labels[lane, i]
            state.labels[lane, i], state.labels[lane, other] = state.labels[lane, other], label
        place, rank = integer(state, lane, count), integer(state, lane, count)
        state.shown[lane], state.reference[lane], state.rank[lane] = count, state.labels[lane, place], rank
        while not _draw_vectors(state, lane, place, distances):
            pass
        for i in range(count):
            farther = 0
            for other in range(count):
                farther += distances[other] > distances[i]
            if farther == rank:
                state.answer[lane] = state.labels[lane, i]
        state.time[lane], state.length[lane], state.all_right[lane] = 0, count + thinking, True


@compiled
def observe_lanes(state: State, observations: NDArray[np.float32]) -> None:
    """Writes all observations, [N, D + 3 * V]."""
    labels, size = state.vectors.shape[1:]
    observations[:] = 0.0
    for lane in range(len(observations)):
        time = state.time[lane]
        if time < state.shown[lane]:
            for i in range(size):
                observations[lane, i] = state.vectors[lane, time, i]
            observations[lane, size + state.labels[lane, time]] = 1.0
        if time < state.length[lane]:
            observations[lane, size + labels + state.rank[lane]] = 1.0
            observations[lane, size + 2 * labels + state.reference[lane]] = 1.0


class NthFarthest(Sequences):
    """The sequences of `NthFarthestEnv`, in N lanes.

    Args:
        num_envs: number of lanes, N.
        vectors, size, fewest, thinking, growing: as for `NthFarthestEnv`.

    Raises:
        ValueError: for a value that is not allowed.
    """

    state: State

    def __init__(
        self,
        num_envs: int,
        vectors: int = 8,
        size: int = 16,
        fewest: int | None = None,
        thinking: int = 0,
        growing: bool = False,
    ) -> None:
        """See the class."""
        lanes = checked_num_envs(num_envs)
        self.vectors = checked_int("vectors", vectors, 2, MOST_VECTORS)
        self.size = checked_int("size", size, 1, LARGEST_SIZE)
        self.growing = bool(growing)
        self.fewest = (2 if growing else vectors) if fewest is None else checked_int("fewest", fewest, 2, self.vectors)
        self.thinking = checked_int("thinking", thinking, 0, MOST_THINKING)
        self.observation_space = Box(-1.0, 1.0, (self.size + 3 * self.vectors,), np.float32)
        self.action_space = Discrete(self.vectors)
        self.chance = float(np.mean(1 / np.arange(self.vectors if self.growing else self.fewest, self.vectors + 1)))
        self._distances = np.zeros(self.vectors, np.int64)
        self.state = State(
            key=np.zeros(lanes, np.uint64),
            counter=np.zeros(lanes, np.uint64),
            time=np.full(lanes, -1, np.int64),
            length=np.zeros(lanes, np.int64),
            all_right=np.ones(lanes, np.bool_),
            level=np.full(lanes, self.fewest, np.int64),
            accuracy=np.zeros(lanes, np.float64),
            shown=np.zeros(lanes, np.int64),
            reference=np.zeros(lanes, np.int64),
            rank=np.zeros(lanes, np.int64),
            answer=np.zeros(lanes, np.int64),
            labels=np.zeros((lanes, self.vectors), np.int64),
            vectors=np.zeros((lanes, self.vectors, self.size), np.float32),
        )

    def seed(self, lane: int, seed: int) -> None:
        """See `Sequences`."""
        self.state.key[lane], self.state.counter[lane] = key_of_seed(seed), 0

    def start(self, mask: NDArray[np.bool_]) -> None:
        """See `Sequences`."""
        start_lanes(self.state, mask, self.fewest, self.thinking, self.growing, self._distances)

    def step(self, actions: NDArray[np.int64]) -> StepArrays:
        """See `Sequences`. A growing lane counts its answer, which is what ends a sequence."""
        observations, rewards, ended, truncated = super().step(actions)
        if self.growing:
            level, accuracy = self.state.level, self.state.accuracy
            accuracy[ended] += RECENCY * (rewards[ended] - accuracy[ended])
            mastered = ended & (accuracy >= MASTERED) & (level < self.vectors)
            level[mastered] += 1
            accuracy[mastered] = 0.0
        return observations, rewards, ended, truncated

    def observe(self) -> NDArray[np.float32]:
        """See `Sequences`: [N, D + 3 * V]."""
        observations = np.empty((len(self.state.time), self.size + 3 * self.vectors), np.float32)
        observe_lanes(self.state, observations)
        return observations

    def targets(self) -> NDArray[np.int64]:
        """See `Sequences`."""
        return np.where(self.state.time == self.state.length - 1, self.state.answer, NOTHING_ASKED)

    def describe(self, lane: int) -> str:
        """See `Sequences`."""
        state = self.state
        time, count = int(state.time[lane]), int(state.shown[lane])
        rank, reference = int(state.rank[lane]) + 1, int(state.reference[lane])
        lines = [f"Which of {count} is number {rank} in distance from vector {reference}, the farthest first?"]
        if time < count:
            numbers = " ".join(f"{number:+.2f}" for number in state.vectors[lane, time])
            lines.append(f"Vector {state.labels[lane, time]}: {numbers}")
        if time == state.length[lane] - 1:
            lines.append(f"The answer is asked now: {state.answer[lane]}")
        return "\n\n".join(lines)

    def check_state(self, state: State) -> None:
        """See `Sequences`. The compiled rules index arrays with these values without looking at bounds."""
        super().check_state(state)
        check_range("shown", state.shown[state.time >= 0], self.fewest, self.vectors)
        check_range("level", state.level, self.fewest, self.vectors)
        if not ((state.accuracy >= 0) & (state.accuracy <= 1)).all():
            raise ValueError("state field 'accuracy': expected shares of answers, 0 to 1")
        if not (np.abs(state.vectors) <= 1).all():
            raise ValueError("state field 'vectors': expected numbers from -1 to 1")
        check_range("length", (state.length - state.shown)[state.time >= 0], self.thinking, self.thinking)
        for name in ("reference", "rank", "answer", "labels"):
            check_range(name, getattr(state, name), 0, self.vectors - 1)


class NthFarthestEnv(SequenceEnv):
    """
    ## Description

    Vectors are shown one at a time, each with a label. Which is the n-th farthest from vector m? The answer is asked
    at the last step, so that all vectors have to be remembered and compared. The task is that of "Relational recurrent
    neural networks" (Santoro et al., 2018, arXiv 1806.01822). n and m are shown at every step; numbers are uniform in
    (-1, 1), distances Euclidean, and no two of them are equal. The last in that order is vector m itself: to know that
    much and guess among the others is right in 2 of `vectors` sequences.

    ## Action space

    `Discrete(vectors)`: the answer's label. Where none is asked, the action has no effect.

    ## Observation

    `Box(-1, 1, (size + 3 * vectors,), float32)`: the vector, its label one-hot, n one-hot, m one-hot. While thinking,
    vector and label are zeros, and at the terminal observation all is.

    ## Rewards

    1 for the right answer, else 0.

    ## Termination

    After the answer. `info["target"]` is the right action where one is asked, else -1; `info["is_success"]` tells at
    the end whether the answer was right.

    ## Arguments

    - `vectors`: how many (default 8), 2 to 64
    - `size`: numbers in a vector (default 16), 1 to 1024
    - `fewest`: with each sequence, the number of vectors is uniform from this to `vectors`, of whose labels it has
      some; None (default): always `vectors`
    - `growing`: a curriculum: a lane begins with `fewest` vectors, or 2, and has one more in every sequence, up to
      `vectors`, whenever 85 % of its recent answers were right (default False)
    - `thinking`: steps after the last vector (default 0); the answer is asked at the last one
    - `render_mode`: "rgb_array" or "ansi"

    ## Registered configurations

    - `NthFarthest-v0`, also by `gymnasium.make("rmc_agents.envs:NthFarthest-v0", vectors=4, thinking=2)`
    """

    def __init__(
        self,
        vectors: int = 8,
        size: int = 16,
        fewest: int | None = None,
        thinking: int = 0,
        growing: bool = False,
        render_mode: str | None = None,
    ) -> None:
        """See the class; raises ValueError for a value that is not allowed."""
        super().__init__(NthFarthest(1, vectors, size, fewest, thinking, growing), render_mode)


class NthFarthestVectorEnv(SequenceVectorEnv):
    """Many lanes of `NthFarthestEnv`, whose arguments it takes."""

    def __init__(
        self,
        num_envs: int,
        render_mode: str | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        **settings: Any,
    ) -> None:
        """See `SequenceVectorEnv`; raises ValueError for a value that is not allowed."""
        super().__init__(NthFarthest(num_envs, **settings), render_mode, autoreset_mode)
