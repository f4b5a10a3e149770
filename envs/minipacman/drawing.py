"""Pictures of Mini PacMan for people: the whole maze, with the agent's window marked.

Everything is drawn four times too large and then reduced, once: the maze as a whole, the rest as small sprites that
are pasted. Pillow is imported when the first picture is drawn.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .map import CELL_COLUMN, CELL_ROW, COLUMNS, MOVES, ROWS, WALLS
from .state import GONE, State

if TYPE_CHECKING:
    from PIL.Image import Image as Picture
    from PIL.ImageDraw import ImageDraw

CELL = 24
"""Side of a cell in pixels; a picture is 360 high and 456 wide."""
LARGER = 4
BIG = CELL * LARGER

FLOOR = (9, 11, 30)
WALL_EDGE, WALL_FILL = (62, 104, 232), (22, 34, 104)
FOOD, PILL = (255, 206, 160), (255, 240, 214)
PACMAN, PUPIL = (255, 216, 40), (24, 32, 110)
GHOSTS = ((255, 62, 62), (255, 150, 205), (60, 224, 232), (255, 160, 60), (174, 116, 255), (110, 222, 110))
SCARED, SCARED_FACE = (44, 76, 240), (255, 226, 200)
ENDING, ENDING_FACE = (236, 240, 255), (224, 50, 60)
FRAME = (255, 255, 255)
DIMMED = 0.5
ENDING_STEPS = 6
"""Edible ghosts flicker when power has no more steps than this left."""


def draw_frame(state: State, lane: int, viewport: int | None) -> NDArray[np.uint8]:
    """One lane's maze as an image, uint8 [360, 456, 3].

    Args:
        state: of all lanes.
        lane: which one to draw.
        viewport: side of the agent's window in cells, which is framed while the rest is dimmed; None: no window.
    """
    picture = _maze().copy()
    for cell in np.flatnonzero(state.food[lane]).tolist():
        _paste(picture, _dot(0.09, FOOD), cell)
    for cell in state.pill_cell[lane][state.pill_cell[lane] != GONE]:
        _paste(picture, _dot(0.27, PILL), cell)
    _paste(picture, _pacman(int(state.pacman_facing[lane])), int(state.pacman_cell[lane]))
    for ghost, cell in enumerate(state.ghost_cell[lane]):
        if cell != GONE:
            heading, power = int(state.ghost_heading[lane, ghost]), int(state.power[lane])
            _paste(picture, _ghost(ghost % len(GHOSTS), heading, fright(power)), cell)
    _write_level(picture, int(state.level[lane]))
    frame = np.array(picture)
    return frame if viewport is None else _with_window(frame, int(state.pacman_cell[lane]), viewport)


def draw_text(state: State, lane: int) -> str:
    """One lane's maze in 15 lines of 19 characters below a line with level, power and frame.

    `#` wall, `.` food, `o` pill, `M` ghost (`W`: can be eaten), `C` Pacman.
    """
    characters = np.where(WALLS, "#", " ")
    place = CELL_ROW, CELL_COLUMN
    characters[place] = np.where(state.food[lane], ".", " ")
    ghost = "W" if state.power[lane] > 0 else "M"
    for cells, character in ((state.pill_cell, "o"), (state.ghost_cell, ghost), (state.pacman_cell[:, None], "C")):
        present = cells[lane][cells[lane] != GONE]
        characters[CELL_ROW[present], CELL_COLUMN[present]] = character
    title = f"level {state.level[lane]}  power {state.power[lane]}  frame {state.frame[lane]}"
    return "\n".join([title, *("".join(row) for row in characters)])


def _paste(picture: Picture, sprite: Picture, cell: int) -> None:
    """Pastes a sprite of one cell's size."""
    picture.paste(sprite, (int(CELL_COLUMN[cell]) * CELL, int(CELL_ROW[cell]) * CELL), sprite)


def _with_window(frame: NDArray[np.uint8], cell: int, viewport: int) -> NDArray[np.uint8]:
    """Dim everything outside the window and draw its outline, as far as it lies on the map."""
    reach, line = viewport // 2, 2
    row, column, height, width = int(CELL_ROW[cell]), int(CELL_COLUMN[cell]), ROWS * CELL, COLUMNS * CELL
    top, bottom = max(0, (row - reach) * CELL), min(height, (row + reach + 1) * CELL)
    left, right = max(0, (column - reach) * CELL), min(width, (column + reach + 1) * CELL)
    result = (frame * DIMMED).astype(np.uint8)
    result[max(0, top - line) : bottom + line, max(0, left - line) : right + line] = FRAME
    rows = slice(max(line, top), min(bottom, height - line))
    columns = slice(max(line, left), min(right, width - line))
    result[rows, columns] = frame[rows, columns]
    return result


def _canvas(width: int, height: int, colour: tuple[int, ...]) -> tuple[Picture, ImageDraw]:
    from PIL import Image, ImageDraw

    mode = "RGB" if len(colour) == 3 else "RGBA"
    picture = Image.new(mode, (width * BIG, height * BIG), colour)
    return picture, ImageDraw.Draw(picture)


@cache
def _maze() -> Picture:
    """The walls, as tubes through the centres of neighbouring wall cells; an RGB image, not to be modified."""
    picture, draw = _canvas(COLUMNS, ROWS, FLOOR)
    for half_width, colour in ((0.34, WALL_EDGE), (0.27, WALL_FILL)):
        thick = half_width * BIG
        for row, column in np.argwhere(WALLS):
            x, y = (column + 0.5) * BIG, (row + 0.5) * BIG
            draw.ellipse((x - thick, y - thick, x + thick, y + thick), colour)
            right = column + 1 < COLUMNS and WALLS[row, column + 1]
            below = row + 1 < ROWS and WALLS[row + 1, column]
            if right:
                draw.rectangle((x, y - thick, x + BIG, y + thick), colour)
            if below:
                draw.rectangle((x - thick, y, x + thick, y + BIG), colour)
            if right and below and WALLS[row + 1, column + 1]:
                draw.rectangle((x, y, x + BIG, y + BIG), colour)
    return picture.reduce(LARGER)


@cache
def _dot(radius: float, colour: tuple[int, int, int]) -> Picture:
    """Food or a pill; the radius in cells."""
    picture, draw = _canvas(1, 1, (*colour, 0))
    low, high = (0.5 - radius) * BIG, (0.5 + radius) * BIG
    draw.ellipse((low, low, high, high), colour)
    return picture.reduce(LARGER)


@cache
def _pacman(facing: int) -> Picture:
    """Pacman with its mouth towards the action `facing`, to the right for 0."""
    picture, draw = _canvas(1, 1, (*PACMAN, 0))
    low, high = 0.07 * BIG, 0.93 * BIG
    angle = {0: 0, 1: 0, 2: 270, 3: 180, 4: 90}[facing]
    draw.pieslice((low, low, high, high), angle + 36, angle + 324, (*PACMAN, 255))
    return picture.reduce(LARGER)


def fright(power: int) -> int:
    """The look of ghosts: 0 normal, 1 edible, 2 edible and about to recover."""
    if power == 0:
        return 0
    return 2 if power <= ENDING_STEPS and power % 2 == 1 else 1


@cache
def _ghost(number: int, heading: int, look: int) -> Picture:
    """A ghost looking in its direction; see `fright`."""
    body = (GHOSTS[number], SCARED, ENDING)[look]
    picture, draw = _canvas(1, 1, (*body, 0))
    left, right, top, foot = 0.09 * BIG, 0.91 * BIG, 0.07 * BIG, 0.84 * BIG
    draw.pieslice((left, top, right, top + right - left), 180, 360, (*body, 255))
    draw.rectangle((left, top + (right - left) / 2, right, foot), (*body, 255))
    toe = (right - left) / 3
    for index in range(3):
        x = left + index * toe
        draw.ellipse((x, foot - toe / 2, x + toe, foot + toe / 2), (*body, 255))
    if look:
        _scared_face(draw, SCARED_FACE if look == 1 else ENDING_FACE)
    else:
        _eyes(draw, heading)
    return picture.reduce(LARGER)


def _eyes(draw: ImageDraw, heading: int) -> None:
    down, right = MOVES[heading - 2] if heading >= 2 else (0, 0)
    for x in (0.34, 0.66):
        for radius, shift, colour in ((0.145, 0.03, (255, 255, 255)), (0.078, 0.09, PUPIL)):
            _disc(draw, x + shift * right, 0.42 + shift * down, radius, colour)


def _scared_face(draw: ImageDraw, colour: tuple[int, int, int]) -> None:
    for x in (0.36, 0.64):
        _disc(draw, x, 0.40, 0.07, colour)
    wave = [((0.24 + 0.52 * i / 24) * BIG, (0.645 + 0.04 * math.sin(i * math.pi / 4)) * BIG) for i in range(25)]
    draw.line(wave, colour, width=int(0.06 * BIG), joint="curve")


def _disc(draw: ImageDraw, x: float, y: float, radius: float, colour: tuple[int, int, int]) -> None:
    draw.ellipse([BIG * edge for edge in (x - radius, y - radius, x + radius, y + radius)], (*colour, 255))


def _write_level(picture: Picture, level: int) -> None:
    """The level's number on the upper wall."""
    from PIL import ImageDraw, ImageFont

    draw = ImageDraw.Draw(picture)
    middle = (COLUMNS * CELL / 2, CELL / 2)
    draw.text(middle, f"LEVEL {level}", (206, 218, 255), ImageFont.load_default(10), anchor="mm")
