"""The modes of Mini PacMan and the state of its games, in plain NumPy."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmc_agents.envs.checks import check_field_names, check_range, copied_like

from .map import CELLS

PILLS = 2
POWER_STEPS = 20
GONE = 255
"""Placeholder cell of an eaten pill, or of an eaten or unused ghost."""


class Rules(NamedTuple):
    """A mode. Rewards are in tenths, so that sums are exact and only the last division rounds."""

    step: int = 0
    food: int = 0
    pill: int = 0
    ghost: int = 0
    death: int = 0
    ends_on_food: bool = False
    ends_on_pills: bool = False
    ends_on_ghosts: bool = False
    level_steps: int = 0  # 0: no timer
    frame_cap: int = 3000


MODES = {
    "regular": Rules(food=10, pill=20, ghost=50, ends_on_food=True),
    "avoid": Rules(step=1, food=-1, pill=-50, ghost=-100, death=-200, ends_on_food=True, level_steps=128),
    "hunt": Rules(pill=10, ghost=100, death=-200, ends_on_ghosts=True),
    "ambush": Rules(food=-1, ghost=100, death=-200, ends_on_ghosts=True),
    "rush": Rules(food=-1, pill=100, ends_on_pills=True),
}


class State(NamedTuple):
    """Everything about N lanes with room for G ghosts each. Cells are indices of free cells, 0..137, row by row."""

    key: NDArray[np.uint64]  # [N]: the lane's random stream, made from its seed
    counter: NDArray[np.uint64]  # [N]: random numbers drawn so far
    level: NDArray[np.int32]  # [N]: 1, 2, ...; 0 before the first reset
    frame: NDArray[np.int32]  # [N]: steps since the episode's start
    timer: NDArray[np.int32]  # [N]: steps since the level's start
    power: NDArray[np.int32]  # [N]: steps for which ghosts can still be eaten, 0..20
    needs_reset: NDArray[np.bool_]  # [N]: the episode has ended
    food: NDArray[np.bool_]  # [N, 138]: food left on each cell
    food_left: NDArray[np.int32]  # [N]: the sum of `food`
    pill_cell: NDArray[np.uint8]  # [N, 2]; 255: eaten
    pacman_cell: NDArray[np.uint8]  # [N]
    pacman_facing: NDArray[np.uint8]  # [N]: the last action other than 0 in this episode, else 0; only pictures use it
    ghosts_left: NDArray[np.int32]  # [N]: ghosts of this level that have not been eaten
    ghost_cell: NDArray[np.uint8]  # [N, G]; 255: eaten, or no such ghost in this level
    ghost_heading: NDArray[np.uint8]  # [N, G]: 2 right, 3 up, 4 left, 5 down; 0 or 1 only before a ghost's first move


def make_state(lanes: int, ghost_capacity: int = 4) -> State:
    """A state whose lanes have not been started: give each a `key`, then call `start_lanes`."""
    int32 = {name: np.zeros(lanes, np.int32) for name in ("level", "frame", "timer", "power", "food_left")}
    return State(
        **int32,
        key=np.zeros(lanes, np.uint64),
        counter=np.zeros(lanes, np.uint64),
        needs_reset=np.zeros(lanes, np.bool_),
        food=np.zeros((lanes, CELLS), np.bool_),
        pill_cell=np.full((lanes, PILLS), GONE, np.uint8),
        pacman_cell=np.zeros(lanes, np.uint8),
        pacman_facing=np.zeros(lanes, np.uint8),
        ghosts_left=np.zeros(lanes, np.int32),
        ghost_cell=np.full((lanes, ghost_capacity), GONE, np.uint8),
        ghost_heading=np.zeros((lanes, ghost_capacity), np.uint8),
    )


def with_room_for_ghosts(state: State) -> State:
    """The state with at least the ghost capacity that the next step may need: it starts at most one level."""
    used = capacity = state.ghost_cell.shape[1]
    needed = int(state.level.max(initial=0)) // 2 + 1
    if needed <= capacity:
        return state
    while capacity < needed:
        capacity *= 2
    added = ((0, 0), (0, capacity - used))
    cells = np.pad(state.ghost_cell, added, constant_values=GONE)
    return state._replace(ghost_cell=cells, ghost_heading=np.pad(state.ghost_heading, added))


def state_from_dict(fields: Mapping[str, NDArray[Any]], lanes: int) -> State:
    """A state of `lanes` lanes with copies of the given arrays; the ghost capacity is theirs.

    Raises:
        ValueError: if a field is missing, unknown, or of another shape or dtype.
    """
    check_field_names(fields, State._fields)
    ghost_shape = np.shape(fields["ghost_cell"])
    if len(ghost_shape) != 2 or ghost_shape[1] < 1:
        raise ValueError(f"state field 'ghost_cell': expected shape ({lanes}, G) with G >= 1, got {ghost_shape}")
    state = State(**copied_like(fields, make_state(lanes, ghost_shape[1])._asdict()))
    # Lanes with different ghost capacities may have been joined: entries beyond a level's ghosts are meaningless.
    unused = np.arange(ghost_shape[1]) >= _ghosts(state)[:, None]
    state.ghost_cell[unused], state.ghost_heading[unused] = GONE, 0
    return state


def _ghosts(state: State) -> NDArray[np.int64]:
    """The number of ghosts at the start of each lane's level, int64 [N]."""
    return (state.level.astype(np.int64) + 1) // 2


def check_state(state: State, frame_cap: int) -> None:
    """Raises ValueError, naming the first field with a value that the rules cannot use."""
    highest_level = 2 * state.ghost_cell.shape[1]
    for name, low, high in (
        ("level", 0, highest_level),
        ("frame", 0, frame_cap),
        ("timer", 0, 2**30),  # it must not overflow
        ("power", 0, POWER_STEPS),
        ("pacman_cell", 0, CELLS - 1),
        ("pacman_facing", 0, 4),
        ("ghost_heading", 0, 5),
    ):
        check_range(name, getattr(state, name), low, high)
    for name in ("pill_cell", "ghost_cell"):
        values = getattr(state, name)
        wrong = values[(values >= CELLS) & (values != GONE)]
        if wrong.size:
            raise ValueError(f"state field {name!r}: expected 0..{CELLS - 1} or {GONE}, got {wrong[0]}")
    counts = {
        "food_left": state.food.sum(axis=1),
        "ghosts_left": (state.ghost_cell != GONE).sum(axis=1),
    }
    for name, count in counts.items():
        wrong = np.flatnonzero(getattr(state, name) != count)
        if wrong.size:
            got, lane = getattr(state, name)[wrong[0]], wrong[0]
            raise ValueError(f"state field {name!r}: expected {count[lane]} in lane {lane}, got {got}")
