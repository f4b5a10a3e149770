"""Mini PacMan's rules, for many independent games (lanes) at once.

The rules are those of the environment released with "Imagination-Augmented Agents" (Weber et al., 2017,
arXiv 1707.06203). The state of all lanes is one `State` of arrays; compiled functions advance it lane by lane.

Random numbers are those of `random_stream`. The order of the draws:

- a level's start: integer(138) for each pill and for Pacman; then for each ghost integer(number of cells it may start
  on), these in row-major order, and integer(4) for its heading;
- a step: for each ghost that may move uniform(), it moves if that is below its speed; then, if it stands on a cell with
  three or four exits, not on Pacman's cell, and power is 0, uniform(): below 0.05 it takes exit integer(n) of the n
  exits other than its reverse, in the order right, up, left, down.
"""

import numpy as np
from numpy.typing import NDArray

from rmc_agents.envs.random_stream import compiled, inlined, integer, subroutine, uniform

from .map import CELLS, Maze, View
from .state import GONE, PILLS, POWER_STEPS, Rules, State

GHOST_RANDOMNESS = 0.05
FIRST_SPEED, SPEED_PER_LEVEL = 0.5, 0.1
GHOST_GREEN = np.rint(np.arange(POWER_STEPS + 1) * 255 / POWER_STEPS).astype(np.uint8)
"""A ghost's green for each value of power: 255 * power / 20, halves to the even number."""


@subroutine
def _start_level(state: State, maze: Maze, lane: int) -> None:
    state.level[lane] += 1
    state.timer[lane] = 0
    state.power[lane] = 0
    for cell in range(CELLS):
        state.food[lane, cell] = True
    state.food_left[lane] = CELLS
    for pill in range(PILLS):
        state.pill_cell[lane, pill] = integer(state, lane, CELLS)
    pacman = integer(state, lane, CELLS)
    state.pacman_cell[lane] = pacman
    ghosts = 1 + (state.level[lane] - 1) // 2
    state.ghosts_left[lane] = ghosts
    for ghost in range(ghosts):
        state.ghost_cell[lane, ghost] = maze.far_cells[pacman, integer(state, lane, maze.far_count[pacman])]
        state.ghost_heading[lane, ghost] = integer(state, lane, 4)
    for ghost in range(ghosts, state.ghost_cell.shape[1]):
        state.ghost_cell[lane, ghost] = GONE
        state.ghost_heading[lane, ghost] = 0


@inlined
def _start_episode(state: State, maze: Maze, lane: int) -> None:
    state.level[lane] = 0
    state.frame[lane] = 0
    state.pacman_facing[lane] = 0
    state.needs_reset[lane] = False
    _start_level(state, maze, lane)


@inlined
def _random_exit(state: State, maze: Maze, lane: int, cell: int, reverse: int) -> int:
    """A uniform choice among the exits of `cell` other than `reverse`."""
    ways_back = 1 if maze.next_cell[cell, reverse] != cell else 0
    skip = integer(state, lane, np.int64(maze.exit_count[cell]) - ways_back)
    heading = 2
    while heading == reverse or maze.next_cell[cell, heading] == cell or skip > 0:
        if heading != reverse and maze.next_cell[cell, heading] != cell:
            skip -= 1
        heading += 1
    return heading


@inlined
def _best_exit(maze: Maze, cell: int, reverse: int, right: int, down: int) -> int:
    """The exit of `cell` other than `reverse` that leads furthest along (right, down); the first of equals.

    The rules divide the vector to Pacman by its length: leaving that out changes no comparison and keeps ties exact.
    """
    best, best_score = 0, -1000
    for heading in range(2, 6):
        if heading == reverse or maze.next_cell[cell, heading] == cell:
            continue
        score = right if heading == 2 else -down if heading == 3 else -right if heading == 4 else down
        if score > best_score:
            best, best_score = heading, score
    return best


@inlined
def _ghost_heading(state: State, maze: Maze, lane: int, cell: int, heading: int) -> int:
    """The heading with which a ghost on `cell` moves."""
    if maze.exit_count[cell] == 2:
        return int(np.int64(maze.corridor[cell, heading]))
    pacman = state.pacman_cell[lane]
    if cell == pacman:
        return heading
    reverse = np.int64(maze.reverse[heading])
    right = maze.column[pacman] - maze.column[cell]
    down = maze.row[pacman] - maze.row[cell]
    if state.power[lane] > 0:
        return _best_exit(maze, cell, reverse, -right, -down)
    if uniform(state, lane) < GHOST_RANDOMNESS:
        return _random_exit(state, maze, lane, cell, reverse)
    return _best_exit(maze, cell, reverse, right, down)


@inlined
def _move_ghosts(state: State, maze: Maze, lane: int) -> tuple[int, bool]:
    """Step 4 of the rules: the number of deaths, and whether a ghost was eaten (which ends the loop)."""
    deaths = 0
    power = state.power[lane]
    pacman = state.pacman_cell[lane]
    level = state.level[lane]
    speed = FIRST_SPEED + SPEED_PER_LEVEL * (level - 1)
    if power > 0:
        speed /= 2
    for ghost in range(1 + (level - 1) // 2):
        cell = state.ghost_cell[lane, ghost]
        if cell == GONE:
            continue
        if cell == pacman:
            if power > 0:
                state.ghost_cell[lane, ghost] = GONE
                return deaths, True
            deaths += 1
        if uniform(state, lane) < speed:
            heading = _ghost_heading(state, maze, lane, np.int64(cell), np.int64(state.ghost_heading[lane, ghost]))
            cell = maze.next_cell[cell, heading]
            state.ghost_heading[lane, ghost] = heading
            state.ghost_cell[lane, ghost] = cell
            if cell == pacman:
                if power > 0:
                    state.ghost_cell[lane, ghost] = GONE
                    return deaths, True
                deaths += 1
    return deaths, False


@inlined
def _move_pacman(state: State, maze: Maze, rules: Rules, lane: int, action: int) -> int:
    """Steps 2 and 3 of the rules: the reward in tenths."""
    reward = 0
    pacman = maze.next_cell[state.pacman_cell[lane], action + 1]
    state.pacman_cell[lane] = pacman
    if action != 0:
        state.pacman_facing[lane] = action
    if state.food[lane, pacman]:
        state.food[lane, pacman] = False
        state.food_left[lane] -= 1
        reward += rules.food
        if rules.ends_on_food and state.food_left[lane] == 0:
            _start_level(state, maze, lane)
    for pill in range(PILLS):
        if state.pill_cell[lane, pill] == state.pacman_cell[lane]:
            state.pill_cell[lane, pill] = GONE
            state.power[lane] = POWER_STEPS
            reward += rules.pill
            if rules.ends_on_pills and state.pill_cell[lane, 0] == GONE and state.pill_cell[lane, 1] == GONE:
                _start_level(state, maze, lane)
            break
    return reward


@inlined
def _advance(state: State, maze: Maze, rules: Rules, lane: int, action: int) -> tuple[int, bool]:
    """One step of one game: the reward in tenths and whether Pacman died."""
    state.frame[lane] += 1
    state.timer[lane] += 1
    state.power[lane] = max(0, state.power[lane] - 1)
    reward = rules.step + _move_pacman(state, maze, rules, lane, action)
    deaths, eaten = _move_ghosts(state, maze, lane)
    reward += rules.death * deaths
    if eaten:
        reward += rules.ghost
        state.ghosts_left[lane] -= 1
        if rules.ends_on_ghosts and state.ghosts_left[lane] == 0:
            _start_level(state, maze, lane)
    if rules.level_steps > 0 and state.timer[lane] >= rules.level_steps:
        _start_level(state, maze, lane)
    return reward, deaths > 0


@inlined
def _observe(state: State, view: View, lane: int, pixels: NDArray[np.uint8]) -> None:
    """Writes one lane's observation into `pixels` [N, P]."""
    pacman = state.pacman_cell[lane]
    row = view.table_row[pacman]
    for byte in range(pixels.shape[1]):
        pixels[lane, byte] = view.background[row, byte]
    for seen in range(view.seen_count[row]):
        blue = 255 if state.food[lane, view.seen_cell[row, seen]] else 0
        pixels[lane, view.seen_offset[row, seen] + 2] = blue
    for pill in range(PILLS):
        cell = state.pill_cell[lane, pill]
        if cell != GONE and view.offset[row, cell] >= 0:
            _paint(pixels, lane, view.offset[row, cell], (0, 255, 255))
    green = GHOST_GREEN[state.power[lane]]
    for ghost in range(1 + (state.level[lane] - 1) // 2):
        cell = state.ghost_cell[lane, ghost]
        if cell != GONE and view.offset[row, cell] >= 0:
            _paint(pixels, lane, view.offset[row, cell], (255, green, 0))
    _paint(pixels, lane, view.offset[row, pacman], (0, 255, 0))


@inlined
def _paint(pixels: NDArray[np.uint8], lane: int, offset: int, colour: tuple[int, int, int]) -> None:
    pixels[lane, offset] = colour[0]
    pixels[lane, offset + 1] = colour[1]
    pixels[lane, offset + 2] = colour[2]


@compiled
def start_lanes(state: State, maze: Maze, mask: NDArray[np.bool_]) -> None:
    """Starts a new episode in every lane with mask [N] True, and continues its random stream."""
    for lane in range(len(mask)):
        if mask[lane]:
            _start_episode(state, maze, lane)


@compiled
def observe_lanes(state: State, view: View, pixels: NDArray[np.uint8]) -> None:
    """Writes all observations into `pixels`, uint8 [N, height * width * 3]."""
    for lane in range(len(pixels)):
        _observe(state, view, lane, pixels)


@compiled
def step_lanes(
    state: State,
    maze: Maze,
    view: View,
    rules: Rules,
    actions: NDArray[np.int64],
    pixels: NDArray[np.uint8],
    rewards: NDArray[np.float32],
    terminated: NDArray[np.bool_],
    truncated: NDArray[np.bool_],
) -> None:
    """Advances all lanes; one that `needs_reset` starts its next episode instead and ignores its action.

    Args:
        state: changed in place; call `with_room_for_ghosts` first.
        maze, view, rules: see `Maze`, `View` and `Rules`.
        actions: [N], 0..4, not checked here.
        pixels, rewards, terminated, truncated: [N, height * width * 3] and [N], written in full.
    """
    for lane in range(len(actions)):
        reward, died, capped = 0, False, False
        if state.needs_reset[lane]:
            _start_episode(state, maze, lane)
        else:
            reward, died = _advance(state, maze, rules, lane, actions[lane])
            capped = state.frame[lane] >= rules.frame_cap and not died
            state.needs_reset[lane] = died or capped
        rewards[lane] = reward / 10
        terminated[lane] = died
        truncated[lane] = capped
        _observe(state, view, lane, pixels)
