"""One frame of a video: the environment, the agent's observation, and its next action.

title                                                              episode
environment's frame       what the agent sees        where each slot looks
                          actions                    (of an rmc)
score  level  power  step        value estimate
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
from matplotlib import get_data_path
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from rmc_agents.cores.inspection import is_window
from rmc_agents.evaluate.actions import ActionRow
from rmc_agents.formatting import plain_number

BACKGROUND, PANEL, TRACK = (16, 18, 26), (27, 31, 43), (38, 43, 58)
TEXT, DIM = (232, 235, 242), (138, 148, 168)
ZERO = (66, 73, 94)
BAR, CHOSEN, VALUE = (84, 112, 214), (245, 184, 61), (95, 211, 166)

MARGIN, GAP, TITLE, STRIP, COLUMN = 16, 20, 34, 64, 264
HEADING, ROW, PLOT = 22, 22, 48
LABEL, PERCENT = 84, 42  # widths left and right of a probability's bar
LEAST_BODY, LEAST_WIDTH, MAX_FRAME, MAX_VIEW = 360, 320, (900, 640), 200
SLOTS_COLUMN, LEAST_CELL, MAX_CELL = 160, 2, 26
LEGEND_COLUMNS, LEGEND_ROW = 3, 17
MAX_ACTIONS = 8
MAX_LEGEND = 15
MAX_HEADS = 4
LEAST_VALUES, MAX_VALUES = 16, 120  # steps along the curve of value estimates

Box = tuple[int, int, int, int]  # left, top, right, bottom


@dataclass(frozen=True)
class FrameInfo:
    """The data of a frame besides the images."""

    title: str
    episode: str
    """The episode and the number of episodes."""
    score: float
    """The return so far."""
    step: int
    """Steps since the start of the episode."""
    actions: Sequence[ActionRow]
    """R rows, see `evaluate.actions`."""
    counters: Mapping[str, float] = field(default_factory=dict)
    """Further numbers by name, such as the level."""
    shares: NDArray[np.floating] | None = None
    """The policy, `[R]`; None at the end of an episode, where the agent does not act."""
    taken: NDArray[np.floating] | None = None
    """The next action, `[R]`."""
    values: Sequence[float] | None = ()
    """Value estimates of the episode so far, the current one last; None: the agent has learned none."""
    attention: NDArray[np.floating] | None = None
    """Attention weights `[heads, rows, columns]`, see `Core.attention_weights`."""
    legend: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)
    """The meaning of the observation's colours."""
    note: str = ""
    """A line over the environment's frame."""


def compose(frame: NDArray[np.uint8], view: NDArray[np.uint8] | None, facts: FrameInfo) -> Image.Image:
    """Compose a frame; inputs of equal shapes give frames of equal size.

    Args:
      frame: the environment's rendering, `[height, width, 3]`.
      view: the observation if it is an image, `[h, w, 3]`.
      facts: the rest.
    """
    shown = _fit_frame(Image.fromarray(frame))
    body, across = max(shown.height, LEAST_BODY), max(shown.width, LEAST_WIDTH)
    width = 2 * MARGIN + across + GAP + COLUMN
    size = (width + (0 if facts.attention is None else GAP + SLOTS_COLUMN), 2 * MARGIN + TITLE + body + STRIP)
    picture = Image.new("RGB", size, BACKGROUND)
    draw = ImageDraw.Draw(picture)
    left, top, bottom = MARGIN, MARGIN + TITLE, size[1] - MARGIN
    room = size[0] - 3 * MARGIN - _length(facts.episode, 14)
    _text(draw, (left, MARGIN + 8), _shortened(facts.title, room, 18), 18, TEXT, "lm")
    _text(draw, (size[0] - MARGIN, MARGIN + 8), facts.episode, 14, DIM, "rm")

    place = (left + (across - shown.width) // 2, top + (body - shown.height) // 2)
    picture.paste(shown, place)
    _draw_counters(draw, facts, (left, top + body + 12, left + across, bottom))

    _draw_column(picture, draw, view, facts, (left + across + GAP, top, width - MARGIN, bottom))
    if facts.attention is not None:
        _draw_attention(draw, facts.attention, (width - MARGIN + GAP, top, size[0] - MARGIN, bottom))
    if facts.note:
        _draw_note(draw, facts.note, (place[0] + shown.width // 2, place[1] + shown.height - 36))
    return picture


def _fit_frame(frame: Image.Image) -> Image.Image:
    """The frame, resized if it is very small or very large."""
    if (times := min(LEAST_BODY // frame.height, MAX_FRAME[0] // frame.width)) > 1:
        return frame.resize((frame.width * times, frame.height * times), Image.Resampling.NEAREST)
    frame.thumbnail(MAX_FRAME, Image.Resampling.LANCZOS)
    return frame


def _draw_column(
    picture: Image.Image, draw: ImageDraw.ImageDraw, view: NDArray[np.uint8] | None, facts: FrameInfo, box: Box
) -> None:
    left, top, right, bottom = box
    rows = min(len(facts.actions), MAX_ACTIONS)
    if view is not None:
        legend = dict(list(facts.legend.items())[:MAX_LEGEND])
        legend_rows = -(-len(legend) // LEGEND_COLUMNS)
        room = bottom - top - 3 * HEADING - rows * ROW - PLOT - GAP - legend_rows * LEGEND_ROW
        enlarged = enlarge_view(view, min(room, MAX_VIEW), right - left)
        _text(draw, (left, top + 6), "what the agent sees", 13, DIM, "lm")
        picture.paste(enlarged, (left, top + HEADING))
        top += HEADING + enlarged.height
        _draw_legend(draw, legend, (left, top, right, top + legend_rows * LEGEND_ROW))
        top += legend_rows * LEGEND_ROW + GAP // 2
    heading = "actions (bar: mean, mark: taken)" if any(row.bounds for row in facts.actions) else "action probabilities"
    _text(draw, (left, top + 6), heading, 13, DIM, "lm")
    _draw_actions(draw, facts, (left, top + HEADING, right, top + HEADING + rows * ROW))
    if facts.values is None:
        return
    top += HEADING + rows * ROW + GAP // 2
    now = f"{facts.values[-1]:.2f}" if facts.values and facts.shares is not None else ""
    _text(draw, (left, top + 6), "value estimate", 13, DIM, "lm")
    _text(draw, (right, top + 6), now, 14, VALUE, "rm")
    top += HEADING - 4
    _draw_values(draw, facts.values, (left, top, right, min(bottom, top + 3 * PLOT)))


def _draw_legend(draw: ImageDraw.ImageDraw, legend: Mapping[str, tuple[int, int, int]], box: Box) -> None:
    left, top, right, _ = box
    for i, (name, colour) in enumerate(legend.items()):
        row, column = divmod(i, LEGEND_COLUMNS)
        x, y = left + column * (right - left) // LEGEND_COLUMNS, top + row * LEGEND_ROW + LEGEND_ROW // 2 + 2
        draw.rectangle((x, y - 4, x + 8, y + 4), colour)
        _text(draw, (x + 14, y), name, 13, DIM, "lm")


def enlarge_view(view: NDArray[np.uint8], height: int, width: int) -> Image.Image:
    """An image `[h, w, 3]` enlarged without smoothing to at most the given size, with a grid if cells are large."""
    rows, columns = view.shape[:2]
    cell = min(height // rows, width // columns)
    picture = Image.fromarray(np.ascontiguousarray(view))
    if cell < 1:
        picture.thumbnail((width, height), Image.Resampling.BOX)
        return picture
    picture = picture.resize((columns * cell, rows * cell), Image.Resampling.NEAREST)
    if cell >= 8:
        draw = ImageDraw.Draw(picture)
        for x in range(columns + 1):
            draw.line([(x * cell - (x == columns), 0), (x * cell - (x == columns), rows * cell)], TRACK)
        for y in range(rows + 1):
            draw.line([(0, y * cell - (y == rows)), (columns * cell, y * cell - (y == rows))], TRACK)
    return picture


def _draw_actions(draw: ImageDraw.ImageDraw, facts: FrameInfo, box: Box) -> None:
    left, top, right, _ = box
    for row, index in enumerate(_shown_actions(facts)):
        action, middle = facts.actions[index], top + row * ROW + ROW // 2
        is_chosen = action.bounds is None and facts.taken is not None and facts.taken[index] == 1
        colour = CHOSEN if is_chosen else TEXT
        if is_chosen:
            draw.polygon([(left, middle - 5), (left + 8, middle), (left, middle + 5)], CHOSEN)
        _text(draw, (left + 14, middle), _shortened(action.name, LABEL - 18, 14), 14, colour, "lm")
        start, end = left + LABEL, right - PERCENT
        draw.rectangle((start, middle - 6, end, middle + 6), TRACK)
        if facts.shares is None:
            continue
        share = float(facts.shares[index])
        if (length := round(share * (end - start))) > 0:
            draw.rectangle((start, middle - 6, start + length, middle + 6), CHOSEN if is_chosen else BAR)
        if action.bounds is not None and facts.taken is not None:
            share = float(facts.taken[index])
            place = start + round(share * (end - start))
            draw.rectangle((place - 1, middle - 8, place + 1, middle + 8), CHOSEN)
        _text(draw, (right, middle), action.label(share), 13, colour, "rm")


def _shown_actions(facts: FrameInfo) -> list[int]:
    """All rows, or, if there are too many: continuous numbers, then what is chosen, then the most likely."""
    count, shares, taken = len(facts.actions), facts.shares, facts.taken
    if count <= MAX_ACTIONS or shares is None:
        return list(range(min(count, MAX_ACTIONS)))
    is_first = [row.bounds is not None or (taken is not None and taken[i] == 1) for i, row in enumerate(facts.actions)]
    return sorted(np.lexsort((-shares, np.logical_not(is_first)))[:MAX_ACTIONS].tolist())


def _draw_values(draw: ImageDraw.ImageDraw, values: Sequence[float], box: Box) -> None:
    left, top, right, bottom = box
    draw.rectangle(box, PANEL)
    recent = np.asarray(values[-MAX_VALUES:])
    if len(recent) < 2 or not np.isfinite(recent).all():
        return
    low, high = min(float(recent.min()), 0.0), max(float(recent.max()), 0.0)
    span = max(high - low, 1e-6)
    height = bottom - top - 10
    x = left + 4 + np.arange(len(recent)) * (right - left - 8) / (max(len(recent), LEAST_VALUES) - 1)
    y = bottom - 5 - (recent - low) / span * height
    zero = bottom - 5 + low / span * height
    draw.line([(left, zero), (right, zero)], ZERO)
    points = [(float(px), float(py)) for px, py in zip(x, y, strict=True)]
    draw.line(points, VALUE, width=2, joint="curve")


def _draw_attention(draw: ImageDraw.ImageDraw, attention: NDArray[np.floating], box: Box) -> None:
    """An attention map per head: a row per slot, or one of a window; the last column, set apart, is the input's."""
    left, top, right, bottom = box
    apart = GAP // 2
    window = is_window(*attention.shape[1:])
    if window:
        attention = attention[..., -((right - left - apart) // LEAST_CELL) :]  # the newest steps
    rows, columns = attention.shape[1:]
    heads = min(len(attention), MAX_HEADS, max(1, (bottom - top) // (rows * LEAST_CELL + 2 * HEADING)))
    _text(draw, (left, top + 6), "which steps it looks at" if window else "where each slot looks", 13, DIM, "lm")
    first, last = (f"{columns - 1} steps ago", "now") if window else ("slots", "input")
    top += HEADING
    room = (bottom - top) // heads - 2 * HEADING
    width = max(LEAST_CELL, min((right - left - apart) // columns, MAX_CELL if window else room // rows, MAX_CELL))
    height = min(room, MAX_CELL) if window else width
    for head, weights in enumerate(attention[:heads]):
        _text(draw, (left, top + HEADING // 2), f"head {head + 1}", 14, TEXT, "lm")
        for (row, column), weight in np.ndenumerate(weights):
            x, y = left + column * width + (apart if column == columns - 1 else 0), top + HEADING + row * height
            gap = 2 if width > 4 else 1
            draw.rectangle((x, y, x + width - gap, y + height - gap), _blended(TRACK, VALUE, float(weight)))
        top += HEADING + rows * height
        end = left + columns * width + apart
        if left + _length(first, 13) + apart < end - _length(last, 13):
            _text(draw, (left, top + 8), first, 13, DIM, "lm")
        _text(draw, (end, top + 8), last, 13, DIM, "rm")
        top += HEADING


def _blended(low: tuple[int, ...], high: tuple[int, ...], share: float) -> tuple[int, ...]:
    return tuple(round(a + share * (b - a)) for a, b in zip(low, high, strict=True))


def _draw_counters(draw: ImageDraw.ImageDraw, facts: FrameInfo, box: Box) -> None:
    left, top, right, bottom = box
    counters = {"score": facts.score, **facts.counters, "step": float(facts.step)}
    width = (right - left - 8 * (len(counters) - 1)) / len(counters)
    for i, (name, value) in enumerate(counters.items()):
        x = round(left + i * (width + 8))
        draw.rounded_rectangle((x, top, round(x + width) - 1, bottom), 6, PANEL)
        _text(draw, (x + 10, top + 14), name, 13, DIM, "lm")
        text = plain_number(value)
        size = next((size for size in range(22, 10, -1) if _length(text, size) <= width - 16), 10)
        _text(draw, (x + 10, bottom - 17), text, size, TEXT, "lm")


def _draw_note(draw: ImageDraw.ImageDraw, note: str, centre: tuple[int, int]) -> None:
    half = round(_length(note, 18) / 2) + 18
    x, y = centre
    draw.rounded_rectangle((x - half, y - 20, x + half, y + 20), 8, PANEL, CHOSEN, 2)
    _text(draw, centre, note, 18, TEXT, "mm")


def _shortened(text: str, width: float, size: int) -> str:
    while len(text) > 1 and _length(text, size) > width:
        text = text[:-1]
    return text


def _length(text: str, size: int) -> float:
    return _font(text, size).getlength(text)


def _text(
    draw: ImageDraw.ImageDraw, place: tuple[int, int], text: str, size: int, colour: tuple[int, ...], anchor: str
) -> None:
    draw.text(place, text, colour, _font(text, size), anchor)


def _font(text: str, size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Pillow's own font, or one of matplotlib with more letters."""
    return _load_font(text.replace("·", "").isascii(), size)


@cache
def _load_font(is_ascii: bool, size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    if is_ascii:
        return ImageFont.load_default(size=size)
    return ImageFont.truetype(Path(get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf", size)
