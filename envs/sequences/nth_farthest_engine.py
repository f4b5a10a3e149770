"""The rules of Nth Farthest, compiled, for all lanes at once; the task is described in `nth_farthest`.

The order of a sequence's random draws (see `random_stream`): integer() for the number of vectors, if that is
random; for their labels, shuffled from the last place to the second; for the place of vector m; for n; then for
the numbers of each vector in turn, which are all drawn again if two vectors are equally far from vector m.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmc_agents.envs.random_stream import compiled, inlined, integer

GRID = 2**23
"""Numbers are odd multiples of 1 / GRID in (-1, 1): exact in float32, and distances are compared as integers."""


class State(NamedTuple):
    """Everything about N lanes with V labels and vectors of D numbers."""

    key: NDArray[np.uint64]  # [N]: the lane's random stream, made from its seed
    counter: NDArray[np.uint64]  # [N]: random numbers drawn so far
    time: NDArray[np.int64]  # [N]: see `Sequences`
    length: NDArray[np.int64]  # [N]: see `Sequences`
    all_right: NDArray[np.bool_]  # [N]: see `Sequences`
    shown: NDArray[np.int64]  # [N]: number of vectors in this sequence
    reference: NDArray[np.int64]  # [N]: m, the label of the vector from which distances are measured
    rank: NDArray[np.int64]  # [N]: 0 asks for the farthest of the vectors in this sequence
    answer: NDArray[np.int64]  # [N]: the label asked for at the last step
    labels: NDArray[np.int64]  # [N, V]: the label of each vector, and then those of vectors that are not shown
    vectors: NDArray[np.float32]  # [N, V, D]: in the order they are shown


@inlined
def _measure(state: State, lane: int, place: int, count: int, distances: NDArray[np.int64]) -> bool:
    """Writes the squared distances of the first `count` vectors from the one at `place`; returns whether all differ."""
    for i in range(count):
        distances[i] = 0
        for j in range(state.vectors.shape[2]):
            apart = np.float64(state.vectors[lane, i, j]) - np.float64(state.vectors[lane, place, j])
            steps = np.int64(apart * (GRID // 2))
            distances[i] += steps * steps
        for other in range(i):
            if distances[other] == distances[i]:
                return False
    return True


@inlined
def _nth_farthest(state: State, lane: int, rank: int, count: int, distances: NDArray[np.int64]) -> np.int64:
    """The label of the vector with this rank among the first `count`; 0 is the farthest."""
    label = np.int64(0)
    for i in range(count):
        farther = 0
        for other in range(count):
            farther += distances[other] > distances[i]
        if farther == rank:
            label = state.labels[lane, i]
    return label


@compiled
def start_lanes(
    state: State,
    mask: NDArray[np.bool_],
    fewest: int,
    most: int,
    active: int,
    thinking: int,
    distances: NDArray[np.int64],
) -> None:
    """Starts a sequence in every lane of `mask` [N]; `distances` [V] is scratch space. For other arguments see
    `NthFarthest`."""
    for lane in range(len(mask)):
        if not mask[lane]:
            continue
        labels = state.labels.shape[1]
        count = fewest + integer(state, lane, most - fewest + 1) if fewest < most else most
        for i in range(labels):
            state.labels[lane, i] = i
        for i in range(count - 1, 0, -1):
            other, label = integer(state, lane, i + 1), state.labels[lane, i]
            state.labels[lane, i], state.labels[lane, other] = state.labels[lane, other], label
        place, rank = integer(state, lane, count), integer(state, lane, count)
        state.shown[lane], state.reference[lane], state.rank[lane] = count, state.labels[lane, place], rank
        differ = False
        while not differ:
            for i in range(count):
                for j in range(active):
                    number = 2 * integer(state, lane, GRID) + 1 - GRID
                    state.vectors[lane, i, j] = np.float32(number) / np.float32(GRID)
            differ = _measure(state, lane, place, count, distances)
        state.answer[lane] = _nth_farthest(state, lane, rank, count, distances)
        state.time[lane], state.length[lane], state.all_right[lane] = 0, count + thinking, True


@compiled
def ask_lanes(state: State, absent_first: bool, distances: NDArray[np.int64], targets: NDArray[np.int64]) -> None:
    """Writes into `targets` [N] the answers among the vectors shown so far, once vector m and enough others are shown.

    `absent_first`: vectors that are not shown yet count as the farthest, otherwise as the nearest.
    """
    for lane in range(len(targets)):
        count = state.time[lane] + 1
        if not 0 < count <= state.shown[lane]:
            continue
        rank = state.rank[lane] - (state.shown[lane] - count if absent_first else 0)
        if not 0 <= rank < count:
            continue
        for place in range(count):
            if state.labels[lane, place] == state.reference[lane]:
                _measure(state, lane, place, count, distances)
                targets[lane] = _nth_farthest(state, lane, rank, count, distances)


@compiled
def observe_lanes(state: State, absent_first: bool, observations: NDArray[np.float32]) -> None:
    """Writes all observations, [N, D + 3 * V]; for `absent_first` see `ask_lanes`."""
    labels, size = state.vectors.shape[1:]
    observations[:] = 0.0
    for lane in range(len(observations)):
        time = state.time[lane]
        if time < state.shown[lane]:
            for i in range(size):
                observations[lane, i] = state.vectors[lane, time, i]
            observations[lane, size + state.labels[lane, time]] = 1.0
        if time < state.length[lane]:
            absent = labels - state.shown[lane] if absent_first else 0
            observations[lane, size + labels + absent + state.rank[lane]] = 1.0
            observations[lane, size + 2 * labels + state.reference[lane]] = 1.0
