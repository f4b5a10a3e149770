"""Environments as grids of glyphs, from their states; all others are shown by their own frames."""

from collections.abc import Callable

import numpy as np
from gymnasium.vector import VectorEnv
from minigrid.core.constants import COLORS, IDX_TO_COLOR, IDX_TO_OBJECT
from numpy.typing import NDArray

from rmc_agents.envs.boxworld import BoxWorldVectorEnv
from rmc_agents.envs.boxworld.drawing import part_of
from rmc_agents.envs.boxworld.palette import PALETTE
from rmc_agents.envs.boxworld.state import FLOOR, GEM
from rmc_agents.envs.minigrid.level import State as MemoryState
from rmc_agents.envs.minigrid.level import grid_of
from rmc_agents.envs.minigrid.vector import MemoryVectorEnv
from rmc_agents.envs.minigrid.view import CELL_CATEGORIES
from rmc_agents.envs.minipacman.drawing import GHOSTS, fright
from rmc_agents.envs.minipacman.env import MiniPacmanVectorEnv
from rmc_agents.envs.minipacman.map import CELL_COLUMN, CELL_ROW, COLUMNS, ROWS, WALLS
from rmc_agents.envs.minipacman.state import GONE
from rmc_agents.envs.stacking import StackedViews
from rmc_agents.evaluate.video.recording import newest_image
from rmc_agents.spaces.parts import ArraySpec

from .grids import CellGrid, Glyph, Window, css

MAX_VIEW = 32
"""Observations with more cells per side are shown as frames."""
EMPTY, PLAIN_WALL = Glyph("empty"), Glyph("wall")
UNCOLOURED = {"empty": EMPTY, "floor": EMPTY, "unseen": Glyph("unseen"), "wall": PLAIN_WALL}  # of MiniGrid's objects
AGENT_COLOUR = "#f04848"
AHEAD = ((0, 1), (1, 0), (0, -1), (-1, 0))
"""(row, column) one step ahead in MiniGrid, for right, down, left, up."""


def scene_of(env: VectorEnv) -> Callable[[], CellGrid] | None:
    """A function that draws the current state of an environment's first lane; None for unknown environments."""
    base = env.unwrapped
    if isinstance(base, MiniPacmanVectorEnv):
        return lambda: _maze(base)
    if isinstance(base, BoxWorldVectorEnv):
        return lambda: _room(base)
    if isinstance(base, MemoryVectorEnv):
        return lambda: _hallway(base)
    return None


def _maze(env: MiniPacmanVectorEnv) -> CellGrid:
    state = {name: array[0] for name, array in env.get_state().items()}
    cells = [Glyph("tube") if wall else EMPTY for wall in WALLS.ravel()]
    places = CELL_ROW * COLUMNS + CELL_COLUMN
    for place in places[state["food"]]:
        cells[place] = Glyph("food")
    for cell in state["pill_cell"][state["pill_cell"] != GONE]:
        cells[places[cell]] = Glyph("pill")
    power = int(state["power"])
    look = ("", "scared", "recovering")[fright(power)]
    for ghost, (cell, heading) in enumerate(zip(state["ghost_cell"], state["ghost_heading"], strict=True)):
        if cell != GONE:
            turn = {2: 0, 3: 3, 4: 2, 5: 1}.get(int(heading), 0)
            cells[places[cell]] = Glyph(look or "ghost", "" if look else css(GHOSTS[ghost % len(GHOSTS)]), turn)
    pacman, facing = int(state["pacman_cell"]), {0: 0, 1: 0, 2: 3, 3: 2, 4: 1}[int(state["pacman_facing"])]
    cells[places[pacman]] = Glyph("pacman", turn=facing)
    window = _around(int(CELL_ROW[pacman]), int(CELL_COLUMN[pacman]), env.viewport) if env.viewport else None
    return CellGrid(ROWS, COLUMNS, cells, window)


def _around(row: int, column: int, side: int) -> Window:
    return row - side // 2, column - side // 2, side, side


def _room(env: BoxWorldVectorEnv) -> CellGrid:
    state = {name: array[0] for name, array in env.get_state().items()}
    board = np.pad(state["board"], 1)
    size = len(board)
    cells = [PLAIN_WALL] * size**2
    for row in range(1, size - 1):
        for column in range(1, size - 1):
            thing, shape = board[row, column], part_of(board[row], column)
            shape = "gem" if thing == GEM and shape == "loose" else shape
            cells[row * size + column] = EMPTY if thing == FLOOR else Glyph(shape, css(PALETTE[thing]))
    row, column, held = int(state["row"]) + 1, int(state["column"]) + 1, int(state["held"])
    cells[row * size + column] = Glyph("explorer", css(PALETTE[held]) if held else "")
    side = env.lanes.rules.viewport
    return CellGrid(size, size, cells, _around(row, column, side) if side else None)


def _hallway(env: MemoryVectorEnv) -> CellGrid:
    state = env.get_state()
    objects = grid_of(MemoryState(**state), env.lanes.level, 0).transpose(1, 0, 2)  # by row and column
    row, column, direction = (int(state[name][0]) for name in ("row", "column", "direction"))
    cells = _objects(objects)
    cells[row * len(objects) + column] = Glyph("arrow", AGENT_COLOUR, direction)
    side = env.lanes.level.view_size
    down, right = AHEAD[direction]
    reach = side // 2
    centre = row + down * reach, column + right * reach  # the agent is at the middle of its window's near side
    return CellGrid(len(objects), len(objects), cells, _around(*centre, side))


def _objects(grid: NDArray[np.uint8]) -> list[Glyph]:
    """MiniGrid's objects and colours, `[rows, columns, 3]`."""
    glyphs = []
    for kind, colour, _ in grid.reshape(-1, 3):
        name = IDX_TO_OBJECT[int(kind)]
        glyphs.append(UNCOLOURED.get(name) or Glyph(name, css(COLORS[IDX_TO_COLOR[int(colour)]])))
    return glyphs


def view_of(env: VectorEnv, array: ArraySpec, obs: NDArray) -> CellGrid | NDArray[np.uint8] | None:
    """An observation, or the newest of stacked ones: cells if there are few, a frame `[h, w, 3]`, or None."""
    if (pixels := newest_image(env, array, obs)) is not None:
        if max(pixels.shape) > MAX_VIEW:
            return pixels
        rows, columns, _ = pixels.shape
        return CellGrid(rows, columns, [Glyph("fill", css(pixel)) for pixel in pixels.reshape(-1, 3)])
    views = env.num_views if isinstance(env, StackedViews) else 1
    newest = obs[-(len(obs) // views) :] if obs.ndim == 1 else obs
    side = int(np.sqrt(len(newest) // 3)) if newest.ndim == 1 else 0
    if side and array.categories[: 3 * side**2] == CELL_CATEGORIES * side**2:
        seen = newest[: 3 * side**2].reshape(side, side, 3).transpose(1, 0, 2)
        cells = _objects(seen)
        cells[side * (side - 1) + side // 2] = Glyph("arrow", AGENT_COLOUR, 3)
        return CellGrid(side, side, cells)
    return None
