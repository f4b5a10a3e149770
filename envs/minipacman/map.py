"""The Mini PacMan maze and the tables that are derived from it, in plain NumPy.

A free cell is named by its index 0..137 in row-major order. Headings are coded 2..5 (right, up, left, down), the
order in which exits are listed and ties are broken; a ghost's first heading may also be 0 or 1 (see `FIRST_MOVES` and
`REVERSE`).
"""

from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmc_agents.envs.checks import checked_odd

_UPPER_HALF = (
    "1111111111111111111",
    "1000100000000010001",
    "1010101111111010101",
    "1000000000000000001",
    "1010101111111010101",
    "1010000000000000101",
    "1011110111110111101",
)
_MAP = (*_UPPER_HALF, "1000000111110000001", *_UPPER_HALF[::-1])

WALLS: NDArray[np.bool_] = np.array([[character == "1" for character in row] for row in _MAP])
"""bool [15, 19], True where there is a wall."""
ROWS, COLUMNS = WALLS.shape
MAX_VIEWPORT = 99
CELL_ROW, CELL_COLUMN = (axis.astype(np.int32) for axis in np.nonzero(~WALLS))
CELLS = len(CELL_ROW)

MOVES = ((0, 1), (-1, 0), (0, -1), (1, 0))
"""(row, column) steps of the headings 2..5 and of the actions 1..4: right, up, left, down."""
REVERSE = (2, 3, 4, 5, 2, 3)
"""The reverse of each heading 0..5; a first heading of 0 or 1 has right or up."""
FIRST_MOVES = ((1, 0), (0, 0))
"""(row, column) steps of a first heading of 0 or 1: the released code counts moves from 1, so that 0 is the last."""
SAFE_DISTANCE = 5

WALL_COLOUR = (255, 255, 255)


class Maze(NamedTuple):
    """Lookup tables of the maze, with `cell` the index of a free cell."""

    row: NDArray[np.int32]  # [138]: of a cell
    column: NDArray[np.int32]  # [138]: of a cell
    next_cell: NDArray[np.uint8]  # [138, 6]: the cell a heading leads to; the same cell into a wall and for heading 1
    exit_count: NDArray[np.uint8]  # [138]: 2, 3 or 4
    corridor: NDArray[np.uint8]  # [138, 6]: the new heading of a ghost on a two-exit cell
    reverse: NDArray[np.uint8]  # [6]: the reverse of a heading
    far_count: NDArray[np.int64]  # [138]: number of cells on which a ghost may start when Pacman is on `cell`
    far_cells: NDArray[np.uint8]  # [138, 138]: those cells in row-major order, the rest of a row is 0


class View(NamedTuple):
    """How an observation is drawn: row r of the tables belongs to Pacman's cell, or is 0 for the full map."""

    table_row: NDArray[np.int64]  # [138]: r for Pacman's cell
    background: NDArray[np.uint8]  # [R, P]: the window's walls on black, P = height * width * 3 bytes
    seen_count: NDArray[np.int64]  # [R]: number of free cells in the window
    seen_cell: NDArray[np.uint8]  # [R, K]: these cells
    seen_offset: NDArray[np.int32]  # [R, K]: the first byte of each one's pixel
    offset: NDArray[np.int32]  # [R, 138]: the first byte of any cell's pixel, -1 if it is not in the window


@cache
def make_maze() -> Maze:
    """Build the maze's tables (once per process; the arrays are read-only)."""
    index = np.full(WALLS.shape, -1)
    index[CELL_ROW, CELL_COLUMN] = np.arange(CELLS)
    next_cell = np.tile(np.arange(CELLS, dtype=np.uint8)[:, None], (1, 6))
    for heading, (down, right) in enumerate(FIRST_MOVES + MOVES):
        target = index[CELL_ROW + down, CELL_COLUMN + right]
        next_cell[:, heading] = np.where(target >= 0, target, next_cell[:, heading])
    exits = [[h for h in range(2, 6) if next_cell[cell, h] != cell] for cell in range(CELLS)]

    corridor = np.zeros((CELLS, 6), np.uint8)
    for cell, (first, second, *_) in enumerate(exits):
        for heading in range(6):
            turned = second if REVERSE[heading] == first else first
            corridor[cell, heading] = heading if heading in (first, second) else turned

    far_count = np.zeros(CELLS, np.int64)
    far_cells = np.zeros((CELLS, CELLS), np.uint8)
    for cell in range(CELLS):
        down, right = CELL_ROW - CELL_ROW[cell], CELL_COLUMN - CELL_COLUMN[cell]
        near = (down >= -SAFE_DISTANCE) & (down < SAFE_DISTANCE)
        near &= (right >= -SAFE_DISTANCE) & (right < SAFE_DISTANCE)
        far = np.flatnonzero(~near)
        far_count[cell] = len(far)
        far_cells[cell, : len(far)] = far
    return Maze(
        row=CELL_ROW,
        column=CELL_COLUMN,
        next_cell=next_cell,
        exit_count=np.array([len(headings) for headings in exits], np.uint8),
        corridor=corridor,
        reverse=np.array(REVERSE, np.uint8),
        far_count=far_count,
        far_cells=far_cells,
    )


def view_shape(viewport: int | None) -> tuple[int, int, int]:
    """Shape (height, width, 3) of an observation.

    Args:
        viewport: side of the square window in cells, an odd int of at least 1, or None for the whole map.

    Raises:
        ValueError: for any other viewport.
    """
    if viewport is None:
        return ROWS, COLUMNS, 3
    side = checked_odd("viewport", viewport, 1, MAX_VIEWPORT, ", or None for the whole map")
    return side, side, 3


@cache
def make_view(viewport: int | None) -> View:
    """Build the drawing tables of a viewport (see `view_shape`; the arrays are read-only)."""
    height, width, channels = view_shape(viewport)
    if viewport is None:
        top, left = np.zeros((1, 1), np.int32), np.zeros((1, 1), np.int32)
    else:
        top, left = CELL_ROW[:, None] - height // 2, CELL_COLUMN[:, None] - width // 2

    row, column = CELL_ROW - top, CELL_COLUMN - left  # [R, 138]
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    offset = np.where(inside, (row * width + column) * channels, -1).astype(np.int32)

    background = np.full((len(top), height * width, channels), WALL_COLOUR, np.uint8)
    seen_count = inside.sum(axis=1)
    seen_cell = np.zeros((len(top), seen_count.max()), np.uint8)
    seen_offset = np.zeros(seen_cell.shape, np.int32)
    for r, seen in enumerate(map(np.flatnonzero, inside)):
        seen_cell[r, : len(seen)] = seen
        seen_offset[r, : len(seen)] = offset[r, seen]
        background[r, offset[r, seen] // channels] = 0
    return View(
        table_row=np.arange(CELLS) if viewport is not None else np.zeros(CELLS, np.int64),
        background=background.reshape(len(top), -1),
        seen_count=seen_count.astype(np.int64),
        seen_cell=seen_cell,
        seen_offset=seen_offset,
        offset=offset,
    )
