"""The levels of MiniGrid's MemoryEnv and the state of many lanes of it, in plain NumPy."""

from typing import NamedTuple

import numpy as np
from minigrid.core.constants import COLOR_TO_IDX, OBJECT_TO_IDX
from numpy.typing import NDArray

from rmc_agents.envs.checks import check_range, checked_bool, checked_int, checked_odd

EMPTY, WALL, KEY, BALL = (OBJECT_TO_IDX[name] for name in ("empty", "wall", "key", "ball"))
COLORS = np.zeros(len(OBJECT_TO_IDX), np.uint8)
COLORS[WALL] = COLOR_TO_IDX["grey"]
COLORS[[KEY, BALL]] = COLOR_TO_IDX["green"]
"""MiniGrid's number of each object's colour."""

SHORTEST_END = 4
"""The leftmost column in which a hallway may end: the room takes the columns before it."""


class Level(NamedTuple):
    """What all lanes share.

    cells           uint8 [size, size + 2 * border, size + 2 * border]: for each hallway_end the objects, by row and
                    column, walls all around; without the cue and the two objects to choose from, which vary
    """

    cells: NDArray[np.uint8]
    border: int  # walls around the grid, as wide as the view reaches
    size: int
    view_size: int
    random_length: bool
    max_steps: int


class State(NamedTuple):
    """Everything about N lanes."""

    random_state: NDArray[np.uint64]  # [N, 2]: PCG64's state, its upper and lower half
    random_increment: NDArray[np.uint64]  # [N, 2]: PCG64's increment, likewise: which of its streams it is
    spare: NDArray[np.uint64]  # [N]: the half of a 64-bit draw that the next 32-bit draw takes
    has_spare: NDArray[np.bool_]  # [N]: whether there is such a half
    hallway_end: NDArray[np.uint8]  # [N]: the hallway's last column; 0 before the first reset
    cue: NDArray[np.uint8]  # [N]: the object in the room: 5 key, 6 ball
    upper: NDArray[np.uint8]  # [N]: the object at the upper end, likewise; the other is at the lower end
    column: NDArray[np.uint8]  # [N]: the agent's
    row: NDArray[np.uint8]  # [N]: the agent's
    direction: NDArray[np.uint8]  # [N]: 0 right, 1 down, 2 left, 3 up
    step_count: NDArray[np.int32]  # [N]: steps since the episode's start
    needs_reset: NDArray[np.bool_]  # [N]: the episode has ended


def make_level(size: int, random_length: bool, max_steps: int | None, view_size: int) -> Level:
    """The level of the given settings, which are MemoryEnv's.

    Raises:
        ValueError: for a size that is even, below 7 or above 255, or for less than one step.
    """
    size = checked_odd("size", size, 7, 255)
    max_steps = checked_int("max_steps", 5 * size**2 if max_steps is None else max_steps, 1, 2**31 - 1)
    border = view_size - 1
    cells = np.full((size, size + 2 * border, size + 2 * border), WALL, np.uint8)
    inside = slice(border, border + size)
    for hallway_end in range(SHORTEST_END, size - 2):
        cells[hallway_end, inside, inside] = np.where(_walls(size, hallway_end), WALL, EMPTY)
    return Level(cells, border, size, view_size, checked_bool("random_length", random_length), max_steps)


def _walls(size: int, hallway_end: int) -> NDArray[np.bool_]:
    """Where walls are, by row and column: those of `MemoryEnv._gen_grid`."""
    walls = np.zeros((size, size), np.bool_)
    walls[[0, -1]] = walls[:, [0, -1]] = True
    middle = size // 2
    walls[[middle - 2, middle + 2], 1:5] = True  # the room's
    walls[[middle - 1, middle + 1], 4 : max(5, hallway_end)] = True  # its door, the hallway
    walls[:, hallway_end + 2] = True
    walls[np.arange(size) != middle, hallway_end] = True
    return walls


def make_state(lanes: int) -> State:
    """A state whose lanes have not been reset: give each its random numbers with `seed_lane`."""
    uint8 = {name: np.zeros(lanes, np.uint8) for name in ("hallway_end", "cue", "upper", "column", "row", "direction")}
    return State(
        **uint8,
        random_state=np.zeros((lanes, 2), np.uint64),
        random_increment=np.zeros((lanes, 2), np.uint64),
        spare=np.zeros(lanes, np.uint64),
        has_spare=np.zeros(lanes, np.bool_),
        step_count=np.zeros(lanes, np.int32),
        needs_reset=np.zeros(lanes, np.bool_),
    )


def seed_lane(state: State, lane: int, seed: int) -> None:
    """Begins a lane's random numbers where gymnasium's generator of that seed begins. Raises ValueError below 0."""
    start = np.random.PCG64(seed).state["state"]
    state.random_state[lane] = divmod(start["state"], 2**64)
    state.random_increment[lane] = divmod(start["inc"], 2**64)
    state.has_spare[lane] = False


def grid_of(state: State, level: Level, lane: int) -> NDArray[np.uint8]:
    """A lane's grid as MiniGrid encodes one: object, colour and state by column and row, uint8 [size, size, 3]."""
    inside = slice(level.border, level.border + level.size)
    objects = level.cells[state.hallway_end[lane], inside, inside].T.copy()
    crossing, middle = int(state.hallway_end[lane]) + 1, level.size // 2
    objects[1, middle - 1] = state.cue[lane]
    objects[crossing, middle - 2] = state.upper[lane]
    objects[crossing, middle + 2] = KEY + BALL - state.upper[lane]
    return np.stack([objects, COLORS[objects], np.zeros_like(objects)], axis=-1)


def check_state(state: State, level: Level) -> None:
    """Raises ValueError, naming the first field with a value that the rules cannot use."""
    was_reset = state.hallway_end > 0
    first, last = (SHORTEST_END if level.random_length else level.size - 3), level.size - 3
    check_range("hallway_end", state.hallway_end[was_reset], first, last)
    for name, low, high in (
        ("cue", KEY, BALL),
        ("upper", KEY, BALL),
        ("column", 1, level.size - 2),
        ("row", 1, level.size - 2),
        ("direction", 0, 3),
        ("step_count", 0, level.max_steps),
        ("spare", 0, 2**32 - 1),
    ):
        check_range(name, getattr(state, name)[was_reset], low, high)
    if not (state.random_increment[was_reset, 1] & np.uint64(1)).all():  # else PCG64's draws may never end
        raise ValueError("state field 'random_increment': expected odd numbers, got even ones")
