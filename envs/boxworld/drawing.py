"""Pictures of BoxWorld for people: the room with the agent's window marked, the key in hand and the path to the gem.

Each thing is drawn four times too large and reduced, once; pictures paste these sprites. Pillow is imported when the
first picture is drawn.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .palette import PALETTE
from .state import FLOOR, GEM, Rules, State

if TYPE_CHECKING:
    from PIL.Image import Image as Picture
    from PIL.ImageDraw import ImageDraw

SIDE, MIN_CELL = 384, 12
"""Target width of a room with its walls, and minimum size of a cell, in pixels."""
STRIP, TILE, PITCH = 48, 26, 36
"""Below the room: height, side of a tile, and from one tile to the next."""
LARGER = 4

FLOORS, WALL_FILL, STRIP_FILL = ((122, 126, 138), (116, 120, 132)), (52, 58, 84), (22, 25, 36)
EDGE, BODY, EYE, PUPIL = (16, 18, 26), (64, 64, 64), (255, 255, 255), (16, 18, 26)
DIAMOND, SHINE = (88, 214, 255), (214, 246, 255)
TEXT, ARROW, FRAME = (138, 148, 168), (138, 148, 168), (255, 255, 255)
DIMMED, FADED = 0.6, 90


def draw_frame(state: State, rules: Rules, lane: int) -> NDArray[np.uint8]:
    """One lane's image, uint8 [height, width, 3]; all levels with the same room size have the same size."""
    from PIL import Image

    cell = max(MIN_CELL, SIDE // (rules.room_size + 2))
    room = _floor(rules.room_size, cell).copy()
    for row, column in np.argwhere(state.board[lane] != FLOOR).tolist():
        sprite = _tile(int(state.board[lane, row, column]), part_of(state.board[lane, row], column), cell)
        room.paste(sprite, ((column + 1) * cell, (row + 1) * cell), sprite)
    agent = _agent(int(state.held[lane]), cell)
    row, column = int(state.row[lane]), int(state.column[lane])
    room.paste(agent, ((column + 1) * cell, (row + 1) * cell), agent)
    if rules.viewport:
        room = _with_window(room, row + 1, column + 1, rules.viewport // 2, cell)
    picture = Image.new("RGB", (room.width, room.height + STRIP), STRIP_FILL)
    picture.paste(room, (0, 0))
    _draw_strip(picture, state, lane, room.height)
    return np.array(picture)


def draw_text(state: State, lane: int) -> str:
    """One lane's room in S lines of S characters below a line with the key in hand.

    `a`..`t` a loose key or what a box holds, `A`..`T` a lock that the key of the same letter opens, `*` the gem,
    `@` the agent, `.` floor.
    """
    characters = np.full(state.board[lane].shape, ".")
    for row, column in np.argwhere(state.board[lane] != FLOOR).tolist():
        letter = _letter(int(state.board[lane, row, column]))
        characters[row, column] = letter.upper() if part_of(state.board[lane, row], column) == "lock" else letter
    characters[state.row[lane], state.column[lane]] = "@"
    return "\n".join([f"key {_letter(int(state.held[lane]))}", *("".join(row) for row in characters)])


def _letter(thing: int) -> str:
    return {FLOOR: "-", GEM: "*"}.get(thing, chr(ord("a") + thing - 1))


def part_of(line: NDArray[np.uint8], column: int) -> str:
    """The kind of object in a column of a row [S]: "content" or "lock" of a locked box, or "loose"."""
    if column + 1 < len(line) and line[column + 1] != FLOOR:
        return "content"
    return "lock" if column > 0 and line[column - 1] != FLOOR else "loose"


def _with_window(room: Picture, row: int, column: int, reach: int, cell: int) -> Picture:
    """Dim everything outside the window and draw its outline, as far as it lies in the image."""
    from PIL import ImageDraw

    left, top = max(0, (column - reach) * cell), max(0, (row - reach) * cell)
    right, bottom = min(room.width, (column + reach + 1) * cell), min(room.height, (row + reach + 1) * cell)
    dimmed = room.point(lambda value: int(value * DIMMED))
    dimmed.paste(room.crop((left, top, right, bottom)), (left, top))
    ImageDraw.Draw(dimmed).rectangle((left, top, right - 1, bottom - 1), outline=FRAME, width=2)
    return dimmed


def _draw_strip(picture: Picture, state: State, lane: int, top: int) -> None:
    """Draw the held key on the left; on the right the keys that lead to the gem, faded for opened boxes."""
    from PIL import ImageDraw, ImageFont

    draw, font, middle = ImageDraw.Draw(picture), ImageFont.load_default(12), top + STRIP // 2
    draw.text((10, middle), "key", TEXT, font, anchor="lm")
    if held := int(state.held[lane]):
        _paste_tile(picture, held, 36, middle, is_over=False)
    length, opened = int(state.solution_length[lane]), int(state.boxes_opened[lane])
    pitch = min(PITCH, (picture.width - 90) // (length + 1))
    left = picture.width - 8 - pitch * length - TILE
    draw.text((left - 10, middle), "path", TEXT, font, anchor="rm")
    for place, thing in enumerate(state.path[lane, : length + 1].tolist()):
        x = left + pitch * place
        is_over = place < opened or (thing == GEM and bool(state.is_success[lane]))
        _paste_tile(picture, thing, x, middle, is_over)
        if place < length and pitch == PITCH:
            tip = x + TILE + 8
            draw.polygon([(tip - 5, middle - 4), (tip, middle), (tip - 5, middle + 4)], ARROW)


def _paste_tile(picture: Picture, thing: int, left: int, middle: int, is_over: bool) -> None:
    sprite = _tile(thing, "loose", TILE)
    mask = sprite.getchannel("A").point(lambda value: min(value, FADED)) if is_over else sprite
    picture.paste(sprite, (left, middle - TILE // 2), mask)


@cache
def _floor(room_size: int, cell: int) -> Picture:
    """The empty room and its walls; not to be modified."""
    from PIL import Image, ImageDraw

    picture = Image.new("RGB", ((room_size + 2) * cell,) * 2, WALL_FILL)
    draw = ImageDraw.Draw(picture)
    for row in range(room_size):
        for column in range(room_size):
            x, y = (column + 1) * cell, (row + 1) * cell
            draw.rectangle((x, y, x + cell - 1, y + cell - 1), FLOORS[(row + column) % 2])
    return picture


def _canvas(cell: int) -> tuple[Picture, ImageDraw, int]:
    from PIL import Image, ImageDraw

    side = cell * LARGER
    picture = Image.new("RGBA", (side, side), (*EDGE, 0))
    return picture, ImageDraw.Draw(picture), side


@cache
def _tile(thing: int, part: str, cell: int) -> Picture:
    """A key, a lock or the gem. The two halves of a box meet without a gap."""
    picture, draw, side = _canvas(cell)
    colour = tuple(PALETTE[thing].tolist())
    low, high = 0.08 * side, 0.92 * side
    left, right = (low, side + high) if part == "content" else (-side + low, high) if part == "lock" else (low, high)
    if part == "loose":
        draw.ellipse((low, low, high, high), colour, EDGE, side // 20)
    else:
        draw.rounded_rectangle((left, low, right, high), side // 6, colour, EDGE, side // 20)
    ink = EDGE if sum(colour) + colour[1] > 400 else EYE
    if thing == GEM:
        _draw_diamond(draw, side)
    elif part == "lock":
        draw.ellipse([side * edge for edge in (0.38, 0.27, 0.62, 0.51)], ink)
        draw.polygon([(side * x, side * y) for x, y in ((0.5, 0.36), (0.63, 0.73), (0.37, 0.73))], ink)
    else:
        _draw_key(draw, side, ink)
    return picture.reduce(LARGER)


def _draw_key(draw: ImageDraw, side: int, ink: tuple[int, int, int]) -> None:
    draw.ellipse([side * edge for edge in (0.2, 0.36, 0.48, 0.64)], outline=ink, width=max(1, side // 13))
    for box in ((0.46, 0.46, 0.82, 0.54), (0.74, 0.5, 0.82, 0.66), (0.61, 0.5, 0.68, 0.62)):
        draw.rectangle([side * edge for edge in box], ink)


def _draw_diamond(draw: ImageDraw, side: int) -> None:
    corners = [(side * x, side * y) for x, y in ((0.32, 0.3), (0.68, 0.3), (0.82, 0.46), (0.5, 0.8), (0.18, 0.46))]
    draw.polygon(corners, DIAMOND, EDGE, max(1, side // 40))
    draw.polygon([(side * x, side * y) for x, y in ((0.38, 0.34), (0.62, 0.34), (0.5, 0.74))], SHINE)


@cache
def _agent(held: int, cell: int) -> Picture:
    """The agent, with a ring in the colour of the key that it holds."""
    picture, draw, side = _canvas(cell)
    ring = tuple(PALETTE[held].tolist()) if held else EDGE
    draw.ellipse([side * edge for edge in (0.06, 0.06, 0.94, 0.94)], ring)
    draw.ellipse([side * edge for edge in (0.18, 0.18, 0.82, 0.82)], BODY, EDGE, side // 24)
    for x in (0.39, 0.61):
        for radius, colour in ((0.1, EYE), (0.05, PUPIL)):
            draw.ellipse([side * edge for edge in (x - radius, 0.45 - radius, x + radius, 0.45 + radius)], colour)
    return picture.reduce(LARGER)
