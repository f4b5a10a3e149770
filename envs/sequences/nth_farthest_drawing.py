"""Pictures of Nth Farthest: the vectors so far as rows of bars, or as points if they have two numbers."""

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from .nth_farthest_engine import State

WIDTH, HEIGHT, MARGIN = 480, 400, 14
TOP, BOTTOM = 64, 364
"""The vectors are drawn between these; the question is above and the answer below."""
BARS, DISTANCES = (52, 330), (350, 436)
"""Left and right ends, in a row, of a vector's numbers and of its distance from vector m."""
TALLEST_ROW = 34
BACK, FAINT, GREY, TEXT = (22, 25, 36), (58, 64, 84), (138, 148, 168), (206, 212, 226)
POSITIVE, NEGATIVE, MARKED, RIGHT, WRONG = (240, 160, 72), (92, 156, 240), (240, 210, 90), (96, 208, 128), (240, 88, 88)

Colour = tuple[int, int, int]


def draw_sequence(state: State, lane: int, target: int) -> NDArray[np.uint8]:
    """One lane's picture, uint8 [HEIGHT, WIDTH, 3].

    Args:
        state: of all lanes.
        lane: the lane to draw.
        target: the label asked for now, -1 if none.
    """
    return _Drawing(state, lane, target).draw()


class _Drawing:
    def __init__(self, state: State, lane: int, target: int) -> None:
        time, shown = int(state.time[lane]), int(state.shown[lane])
        self.is_over = time == int(state.length[lane])
        self.count, self.size = min(time + 1, shown), state.vectors.shape[2]  # vectors so far, and numbers in one
        self.most = state.vectors.shape[1]
        self.reference, self.rank = int(state.reference[lane]), int(state.rank[lane]) + 1
        self.answer = int(state.answer[lane]) if self.is_over else target
        self.all_right = bool(state.all_right[lane])
        self.labels = state.labels[lane, : self.count].tolist()
        self.vectors = state.vectors[lane, : self.count].astype(np.float64)
        self.distances: NDArray[np.float64] | None = None
        if self.reference in self.labels:
            self.distances = np.linalg.norm(self.vectors - self.vectors[self.labels.index(self.reference)], axis=1)
        self.image = Image.new("RGB", (WIDTH, HEIGHT), BACK)
        self.pen = ImageDraw.Draw(self.image)

    def draw(self) -> NDArray[np.uint8]:
        question = f"Which vector is number {self.rank} in distance from vector {self.reference + 1}?"
        self._write(MARGIN, 20, question, TEXT, 16)
        self._write(MARGIN, 44, "1 is the farthest", GREY, 13)
        if self.size == 2:
            self._draw_points()
        else:
            self._draw_rows()
        self._write(MARGIN, (BOTTOM + HEIGHT) // 2, *self._verdict(), 16)
        return np.array(self.image)

    def _verdict(self) -> tuple[str, Colour]:
        if self.is_over:
            if self.all_right:
                return f"right: vector {self.answer + 1}", RIGHT
            return f"wrong: at the end, vector {self.answer + 1} is right", WRONG
        return (f"asked now; right is vector {self.answer + 1}", TEXT) if self.answer >= 0 else ("", TEXT)

    def _colour(self, label: int) -> Colour:
        return RIGHT if label == self.answer else MARKED if label == self.reference else TEXT

    def _draw_rows(self) -> None:
        height = min(TALLEST_ROW, (BOTTOM - TOP) / self.most)
        left, right = BARS
        pitch = (right - left) / self.size
        for place, label in enumerate(self.labels):
            middle, colour = TOP + (place + 0.5) * height, self._colour(label)
            self._write(MARGIN + 12, middle, str(label + 1), colour, round(min(16, height)), "mm")
            self.pen.line([left, middle, right, middle], FAINT)
            for i, number in enumerate(self.vectors[place]):
                ends = sorted((middle, middle - number * height * 0.45))
                fill = POSITIVE if number > 0 else NEGATIVE
                self.pen.rectangle([left + i * pitch, ends[0], left + (i + 0.8) * pitch, ends[1]], fill)
            if self.distances is not None:
                self._draw_distance(place, middle, height * 0.25, colour)

    def _draw_distance(self, place: int, middle: float, half: float, colour: Colour) -> None:
        """A bar, and its rank in the order of distances so far."""
        assert self.distances is not None
        left, right = DISTANCES
        width = (right - left) * self.distances[place] / max(self.distances.max(), 1e-9)
        self.pen.rectangle([left, middle - half, left + width, middle + half], colour)
        number = int((self.distances > self.distances[place]).sum()) + 1
        self._write(WIDTH - MARGIN, middle, str(number), colour, round(max(8.0, min(15.0, 4 * half))), "rm")

    def _draw_points(self) -> None:
        side = BOTTOM - TOP
        left = (WIDTH - side) / 2
        self.pen.rectangle([left, TOP, left + side, BOTTOM], outline=FAINT)
        places = [(left + side * (x + 1) / 2, TOP + side * (1 - y) / 2) for x, y in self.vectors]
        if self.distances is not None:
            start = places[self.labels.index(self.reference)]
            for label, end in zip(self.labels, places, strict=True):
                self.pen.line([start, end], self._colour(label) if label == self.answer else FAINT, 2)
        for label, (x, y) in zip(self.labels, places, strict=True):
            self.pen.ellipse([x - 4, y - 4, x + 4, y + 4], self._colour(label))
            self._write(x + 8, y, str(label + 1), self._colour(label), 14)

    def _write(self, x: float, y: float, text: str, colour: Colour, size: int, anchor: str = "lm") -> None:
        self.pen.text((x, y), text, colour, ImageFont.load_default(size), anchor=anchor)
