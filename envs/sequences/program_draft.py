"""Building blocks of programs: characters, the state of the lanes, and an expression that grows at both ends.

The current expression is a buffer with room at both ends. When it is assigned to a name, it moves to the text of the
program, and the name takes its place.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmc_agents.envs.random_stream import subroutine

CHARACTERS = "0123456789abcdefghijklmnopqrstuvwxyz+-*=<>(): \n"
"""The characters of programs. Digits come first, so that the token of a digit is the digit."""

END = 10
"""The answer's last character; the others are digits."""


def encode(text: str) -> NDArray[np.uint8]:
    """The tokens of a text."""
    return np.array([CHARACTERS.index(character) for character in text], np.uint8)


class State(NamedTuple):
    """Everything about N lanes, with room for programs of M characters and answers of A."""

    key: NDArray[np.uint64]  # [N]: the lane's random stream, made from its seed
    counter: NDArray[np.uint64]  # [N]: random numbers drawn so far
    time: NDArray[np.int64]  # [N]: see `Sequences`
    length: NDArray[np.int64]  # [N]: see `Sequences`
    all_right: NDArray[np.bool_]  # [N]: see `Sequences`
    written: NDArray[np.int64]  # [N]: number of characters in the program
    program: NDArray[np.uint8]  # [N, M]: tokens, see `CHARACTERS`
    answer: NDArray[np.uint8]  # [N, A]: digits, and `END` after the last


class Draft(NamedTuple):
    """The current expression: tokens[first[0]:last[0]]; `letters` [1] has one bit for each name in use."""

    tokens: NDArray[np.uint8]
    first: NDArray[np.int64]
    last: NDArray[np.int64]
    letters: NDArray[np.int64]


def make_draft(room: int) -> Draft:
    """An empty expression with room for `room` tokens at each end."""
    one = (np.zeros(1, np.int64) for _ in range(3))
    return Draft(np.zeros(2 * room, np.uint8), *one)


@subroutine
def append(draft: Draft, token: int) -> None:
    draft.tokens[draft.last[0]] = token
    draft.last[0] += 1


@subroutine
def append_all(draft: Draft, tokens: NDArray[np.uint8]) -> None:
    for token in tokens:
        append(draft, token)


@subroutine
def prepend(draft: Draft, token: int) -> None:
    draft.first[0] -= 1
    draft.tokens[draft.first[0]] = token


@subroutine
def prepend_all(draft: Draft, tokens: NDArray[np.uint8]) -> None:
    """Prepends tokens, which keep their order."""
    for i in range(len(tokens)):
        prepend(draft, tokens[len(tokens) - 1 - i])


@subroutine
def append_number(draft: Draft, number: int) -> None:
    """Appends a number >= 0."""
    unit = 1
    while number // unit >= 10:
        unit *= 10
    while unit > 0:
        append(draft, number // unit % 10)
        unit //= 10


@subroutine
def prepend_number(draft: Draft, number: int) -> None:
    """Prepends a number >= 0."""
    while number >= 10:
        prepend(draft, number % 10)
        number //= 10
    prepend(draft, number)


@subroutine
def clear(draft: Draft) -> None:
    draft.first[0] = draft.last[0] = len(draft.tokens) // 2


@subroutine
def flush(state: State, lane: int, draft: Draft) -> None:
    """Moves the expression to the text of the program."""
    for i in range(draft.first[0], draft.last[0]):
        state.program[lane, state.written[lane]] = draft.tokens[i]
        state.written[lane] += 1
    clear(draft)
