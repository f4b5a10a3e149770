"""BoxWorld's settings, what a cell may hold, and the state of many rooms, in plain NumPy."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmc_agents.envs.checks import check_range, checked_bool, checked_int, checked_odd

FLOOR, GEM, WALL, AGENT = 0, 21, 22, 23
COLOURS = 20
"""Cells 1..20 hold a key or a lock of that colour. Walls and the agent are not on the board, only in observations."""

MIN_ROOM, MAX_ROOM = 4, 64


class Rules(NamedTuple):
    """The settings of all lanes, as documented at `BoxWorldEnv`; made by `checked_rules`."""

    room_size: int
    viewport: int  # 0: the whole room
    max_solution_length: int
    max_distractors: int
    max_steps: int
    min_solution_length: int
    min_distractors: int
    gem_distractors: bool

    @property
    def observation_shape(self) -> tuple[int, int, int]:
        """Height, width, 3: a row for the key, then the window."""
        side = self.viewport or self.room_size
        return side + 1, side, 3


class State(NamedTuple):
    """Everything about N lanes in rooms of S x S cells; M is the largest solution length.

    Things never touch, not even at corners, except the two cells of a box. So the board alone identifies every thing: a
    thing with another one to its right is a box's content, with another one to its left its lock, alone it is loose.
    """

    key: NDArray[np.uint64]  # [N]: the lane's random stream, made from its seed
    counter: NDArray[np.uint64]  # [N]: random numbers drawn so far
    board: NDArray[np.uint8]  # [N, S, S]: 0 floor, 1..20 a colour, 21 the gem
    row: NDArray[np.uint8]  # [N]: the agent's
    column: NDArray[np.uint8]  # [N]: the agent's
    held: NDArray[np.uint8]  # [N]: the colour of the key it holds, 0: none
    path: NDArray[np.uint8]  # [N, M+2]: the loose key, then what the boxes of the solution hold; 0 after the gem
    solution_length: NDArray[np.int32]  # [N]: boxes on the way to the gem; 0 before the first reset
    num_distractors: NDArray[np.int32]  # [N]: boxes that lead nowhere
    boxes_opened: NDArray[np.int32]  # [N]: boxes of the solution opened so far
    step_count: NDArray[np.int32]  # [N]: steps since the episode's start
    is_success: NDArray[np.bool_]  # [N]: the gem has been collected
    needs_reset: NDArray[np.bool_]  # [N]: the episode has ended


def checked_rules(
    room_size: int = 14,
    viewport: int | None = 5,
    max_solution_length: int = 5,
    max_distractors: int = 5,
    max_steps: int | None = None,
    min_solution_length: int = 1,
    min_distractors: int = 0,
    gem_distractors: bool = True,
) -> Rules:
    """The settings; `max_steps` None is two steps for each cell of the room.

    Raises:
        ValueError: for a value that is not allowed, more boxes than colours, or a room in which boxes may not fit.
    """
    size = checked_int("room_size", room_size, MIN_ROOM, MAX_ROOM)
    length = checked_int("max_solution_length", max_solution_length, 1, COLOURS)
    distractors = checked_int("max_distractors", max_distractors, 0, COLOURS - length)
    needed = smallest_room(length + distractors)
    if size < needed:
        raise ValueError(f"room_size: expected at least {needed} for {length} + {distractors} boxes, got {size}")
    side = 0 if viewport is None else checked_odd("viewport", viewport, 1, 2 * MAX_ROOM, ", or None for the whole room")
    steps = 2 * size**2 if max_steps is None else checked_int("max_steps", max_steps, 1, 2**31 - 1)
    shortest = checked_int("min_solution_length", min_solution_length, 1, length)
    fewest = checked_int("min_distractors", min_distractors, 0, distractors)
    return Rules(
        size, side, length, distractors, steps, shortest, fewest, checked_bool("gem_distractors", gem_distractors)
    )


def smallest_room(boxes: int) -> int:
    """The side of a room in which this many boxes and a key always fit, wherever the earlier ones are.

    There are S * (S - 1) places for a box, and each earlier one takes at most 3 * 5 of them, so that nothing
    touches. Of the S * S places for the key a box takes at most 3 * 4.
    """
    size = MIN_ROOM
    while size * (size - 1) <= 15 * (boxes - 1) or size**2 <= 12 * boxes:
        size += 1
    return size


def make_state(lanes: int, rules: Rules) -> State:
    """A state whose lanes have not been started: give each a `key`, then call `start_lanes`."""

    def zeros(kind: Any, *shape: int) -> NDArray[Any]:
        return np.zeros((lanes, *shape), kind)

    return State(
        key=zeros(np.uint64),
        counter=zeros(np.uint64),
        board=zeros(np.uint8, rules.room_size, rules.room_size),
        row=zeros(np.uint8),
        column=zeros(np.uint8),
        held=zeros(np.uint8),
        path=zeros(np.uint8, rules.max_solution_length + 2),
        solution_length=zeros(np.int32),
        num_distractors=zeros(np.int32),
        boxes_opened=zeros(np.int32),
        step_count=zeros(np.int32),
        is_success=zeros(np.bool_),
        needs_reset=zeros(np.bool_),
    )


def check_state(state: State, rules: Rules) -> None:
    """Raises ValueError, naming the first field with a value that the rules cannot use."""
    for name, high in (
        ("board", GEM),
        ("row", rules.room_size - 1),
        ("column", rules.room_size - 1),
        ("held", COLOURS),
        ("solution_length", rules.max_solution_length),
        ("num_distractors", rules.max_distractors),
        ("boxes_opened", rules.max_solution_length),
        ("step_count", rules.max_steps),
    ):
        check_range(name, getattr(state, name), 0, high)
    _check_paths(state)


def _check_paths(state: State) -> None:
    """A path is `solution_length` colours, the gem and zeros, or only zeros before the first reset."""
    place, length = np.arange(state.path.shape[1]), state.solution_length[:, None]
    is_colour = (state.path >= 1) & (state.path <= COLOURS)
    ends = np.where((place == length) & (length > 0), GEM, FLOOR)
    fits = np.where(place < length, is_colour, state.path == ends)
    wrong = np.flatnonzero(~fits.all(axis=1) | (state.boxes_opened > state.solution_length))
    if wrong.size:
        lane = wrong[0]
        raise ValueError(
            f"state field 'path': expected {state.solution_length[lane]} colours, {GEM} and zeros in lane {lane}, and "
            f"no more boxes opened; got {state.path[lane].tolist()} and {state.boxes_opened[lane]} opened"
        )
