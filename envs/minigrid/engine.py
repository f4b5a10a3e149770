"""MiniGrid's MemoryEnv for many lanes at once, exactly as in minigrid 3.2.0: random numbers, levels, steps, views.

The rules are those of `minigrid.envs.memory.MemoryEnv` (Chevalier-Boisvert et al., 2023, arXiv 2306.13831). Nothing
can be carried and there are no doors, so all actions except left, right and forward only let time pass.

Random numbers are those of numpy's `Generator(PCG64(seed))`, which gymnasium gives every environment: PCG XSL-RR
128/64 (O'Neill, 2014), whose 64-bit draws are used in two halves, the lower one first, and `Generator.integers`,
which is Lemire's method (2019, arXiv 1805.10941). The order of an episode's draws:

- with random length, integers(4, size - 2): the hallway's end, else it is size - 3;
- integers(1, end + 1): the agent's column;
- integers(0, 2): the cue, a key or a ball;
- integers(0, 2): the object at the upper end, a ball or a key; the other is at the lower end.
"""

import numpy as np
from numpy.typing import NDArray

from rmc_agents.envs.random_stream import compiled, inlined, subroutine

from .level import BALL, COLORS, EMPTY, KEY, SHORTEST_END, WALL, Level, State

LEFT, RIGHT, FORWARD = 0, 1, 2
COLUMN_AHEAD, ROW_AHEAD = np.array([1, 0, -1, 0]), np.array([0, 1, 0, -1])
"""One step ahead, for each direction."""

_MULTIPLIER_HIGH, _MULTIPLIER_LOW = np.uint64(0x2360ED051FC65DA4), np.uint64(0x4385DF649FCCF645)
_32, _58, _63, _64 = np.uint64(32), np.uint64(58), np.uint64(63), np.uint64(64)
_LOW_HALF = np.uint64(0xFFFFFFFF)


@inlined
def _upper_product(a: np.uint64, b: np.uint64) -> np.uint64:
    """The upper 64 bits of a * b."""
    a_high, a_low, b_high, b_low = a >> _32, a & _LOW_HALF, b >> _32, b & _LOW_HALF
    middle = a_high * b_low + ((a_low * b_low) >> _32)
    other = a_low * b_high + (middle & _LOW_HALF)
    return a_high * b_high + (middle >> _32) + (other >> _32)


@inlined
def _next64(state: State, lane: int) -> np.uint64:
    """PCG64: state = state * multiplier + increment modulo 2**128, then its halves folded and rotated."""
    high, low = state.random_state[lane, 0], state.random_state[lane, 1]
    increment_high, increment_low = state.random_increment[lane, 0], state.random_increment[lane, 1]
    new_low = low * _MULTIPLIER_LOW + increment_low
    carry = np.uint64(1) if new_low < increment_low else np.uint64(0)
    new_high = high * _MULTIPLIER_LOW + low * _MULTIPLIER_HIGH + _upper_product(low, _MULTIPLIER_LOW)
    new_high = new_high + increment_high + carry
    state.random_state[lane, 0], state.random_state[lane, 1] = new_high, new_low
    folded, turns = new_high ^ new_low, new_high >> _58
    return (folded >> turns) | (folded << ((_64 - turns) & _63))


@inlined
def _next32(state: State, lane: int) -> np.uint64:
    """The lower half of a 64-bit draw; its upper half is the next one."""
    if state.has_spare[lane]:
        state.has_spare[lane] = False
        return state.spare[lane]
    draw = _next64(state, lane)
    state.spare[lane], state.has_spare[lane] = draw >> _32, True
    return draw & _LOW_HALF


@subroutine
def draw_integer(state: State, lane: int, low: int, high: int) -> int:
    """`Generator.integers(low, high)` for a range of at most 2**32 numbers; nothing is drawn for a range of one."""
    count = np.uint64(high - low)
    if count == np.uint64(1):
        return low
    product = _next32(state, lane) * count
    if product & _LOW_HALF < count:
        threshold = (_LOW_HALF - (count - np.uint64(1))) % count
        while product & _LOW_HALF < threshold:
            product = _next32(state, lane) * count
    return int(low + np.int64(product >> _32))


@subroutine
def _start_episode(state: State, level: Level, lane: int) -> None:
    hallway_end = level.size - 3
    if level.random_length:
        hallway_end = draw_integer(state, lane, SHORTEST_END, level.size - 2)
    state.hallway_end[lane] = hallway_end
    state.column[lane] = draw_integer(state, lane, 1, hallway_end + 1)
    state.row[lane] = level.size // 2
    state.direction[lane] = 0
    state.cue[lane] = KEY if draw_integer(state, lane, 0, 2) == 0 else BALL
    state.upper[lane] = BALL if draw_integer(state, lane, 0, 2) == 0 else KEY
    state.step_count[lane] = 0
    state.needs_reset[lane] = False


@inlined
def _place(state: State, level: Level, lane: int, which: int) -> tuple[np.int64, np.int64, np.int64]:
    """Column, row and kind of the cue (0), the upper (1) and the lower (2) object."""
    middle = np.int64(level.size // 2)
    if which == 0:
        return np.int64(1), middle - 1, np.int64(state.cue[lane])
    crossing, upper = np.int64(state.hallway_end[lane]) + 1, np.int64(state.upper[lane])
    return (crossing, middle - 2, upper) if which == 1 else (crossing, middle + 2, KEY + BALL - upper)


@inlined
def _advance(state: State, level: Level, lane: int, action: int) -> tuple[float, bool]:
    """One step of one lane: its reward, and whether one of the two objects was chosen."""
    state.step_count[lane] += 1
    direction = np.int64(state.direction[lane])
    column, row = np.int64(state.column[lane]), np.int64(state.row[lane])
    if action == LEFT:
        state.direction[lane] = (direction + 3) % 4
    elif action == RIGHT:
        state.direction[lane] = (direction + 1) % 4
    elif action == FORWARD:
        ahead, below = column + COLUMN_AHEAD[direction], row + ROW_AHEAD[direction]
        is_free = level.cells[state.hallway_end[lane], level.border + below, level.border + ahead] == EMPTY
        for which in range(3):
            object_column, object_row, _ = _place(state, level, lane, which)
            is_free = is_free and not (object_column == ahead and object_row == below)
        if is_free:
            column, row = ahead, below
            state.column[lane], state.row[lane] = column, row
    middle = level.size // 2
    if column != np.int64(state.hallway_end[lane]) + 1 or row == middle or abs(row - middle) > 1:
        return 0.0, False
    is_match = (row < middle) == (state.upper[lane] == state.cue[lane])
    return (1 - 0.9 * (state.step_count[lane] / level.max_steps) if is_match else 0.0), True


@inlined
def _observe(state: State, level: Level, lane: int, view: NDArray[np.uint8]) -> None:
    """Writes one lane's observation into `view` [N, 3 * view_size**2 + 1]."""
    side, half = level.view_size, level.view_size // 2
    direction = np.int64(state.direction[lane])
    column, row = np.int64(state.column[lane]), np.int64(state.row[lane])
    column_ahead, row_ahead = COLUMN_AHEAD[direction], ROW_AHEAD[direction]
    hallway_end = state.hallway_end[lane]
    for entry in range(3 * side * side):
        view[lane, entry] = 0
    view[lane, 3 * side * side] = direction
    # `Grid.process_vis`, a row at a time, one bit a cell: sight spreads along the row through all cells but walls, and
    # from there to the cells beside and to the three ahead.
    seen, all_cells = np.int64(1) << half, (np.int64(1) << side) - 1
    for ahead in range(side):
        first_row, first_column = row + row_ahead * ahead + level.border, column + column_ahead * ahead + level.border
        free = np.int64(0)
        for i in range(side):
            right = i - half
            if level.cells[hallway_end, first_row + column_ahead * right, first_column - row_ahead * right] == EMPTY:
                free |= np.int64(1) << i
        reached, before = seen & free, np.int64(0)
        while reached != before:
            before, reached = reached, (reached | reached << 1 | reached >> 1) & free
        seen_next = (reached | reached << 1 | reached >> 1) & all_cells
        seen |= seen_next
        for i in range(side):
            if seen >> i & 1:
                _show(view, lane, i * side + side - 1 - ahead, EMPTY if free >> i & 1 else WALL)
        if seen_next == 0:
            break
        seen = seen_next
    for which in range(3):
        object_column, object_row, kind = _place(state, level, lane, which)
        across, down = object_column - column, object_row - row
        ahead = across * column_ahead + down * row_ahead
        i = half + down * column_ahead - across * row_ahead
        if 0 <= ahead < side and 0 <= i < side and view[lane, 3 * (i * side + side - 1 - ahead)] != 0:
            _show(view, lane, i * side + side - 1 - ahead, kind)


@inlined
def _show(view: NDArray[np.uint8], lane: int, cell: int, kind: int) -> None:
    view[lane, 3 * cell] = kind
    view[lane, 3 * cell + 1] = COLORS[kind]


@compiled
def start_lanes(state: State, level: Level, mask: NDArray[np.bool_]) -> None:
    """Starts a new episode in every lane with mask [N] True, and continues its random numbers."""
    for lane in range(len(mask)):
        if mask[lane]:
            _start_episode(state, level, lane)


@compiled
def observe_lanes(state: State, level: Level, view: NDArray[np.uint8]) -> None:
    """Writes all observations into `view`, uint8 [N, 3 * view_size**2 + 1], as `MiniGridView` orders them."""
    for lane in range(len(view)):
        _observe(state, level, lane, view)


@compiled
def step_lanes(
    state: State,
    level: Level,
    actions: NDArray[np.int64],
    view: NDArray[np.uint8],
    rewards: NDArray[np.float64],
    terminated: NDArray[np.bool_],
    truncated: NDArray[np.bool_],
) -> None:
    """Advances all lanes; one that `needs_reset` starts its next episode instead and ignores its action.

    Args:
        state: changed in place.
        level: see `Level`.
        actions: [N], 0..6, not checked here.
        view: as in `observe_lanes`, written in full.
        rewards, terminated, truncated: [N], written in full. Both flags may be True.
    """
    for lane in range(len(actions)):
        reward, chosen, late = 0.0, False, False
        if state.needs_reset[lane]:
            _start_episode(state, level, lane)
        else:
            reward, chosen = _advance(state, level, lane, actions[lane])
            late = state.step_count[lane] >= level.max_steps
            state.needs_reset[lane] = chosen or late
        rewards[lane], terminated[lane], truncated[lane] = reward, chosen, late
        _observe(state, level, lane, view)
