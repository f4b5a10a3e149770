"""Images as grids of cells that the page draws: small files, sharp at every size."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

Window = tuple[int, int, int, int]
"""Top row, left column, rows and columns of the agent's view; it may extend beyond the picture."""


class Glyph(NamedTuple):
    """The content of a cell. The page knows the shapes, and draws an unknown one as a filled square."""

    shape: str
    colour: str = ""  # in CSS; empty: the shape's default
    turn: int = 0  # quarter turns clockwise, from right


class CellGrid(NamedTuple):
    """A grid of cells in row-major order."""

    rows: int
    columns: int
    cells: Sequence[Glyph]
    window: Window | None = None


class Film:
    """Pictures of equal size, one per step, stored as differences."""

    def __init__(self) -> None:
        self._glyphs: dict[Glyph, int] = {}
        self._shown: list[int] = []
        self._size = (0, 0)
        self._changes: list[list[int]] = []
        self._windows: list[Window] = []

    def add(self, picture: CellGrid) -> None:
        """Append a picture."""
        if not self._shown:
            self._size, self._shown = (picture.rows, picture.columns), [-1] * len(picture.cells)
        numbers = [self._glyphs.setdefault(glyph, len(self._glyphs)) for glyph in picture.cells]
        pairs = enumerate(zip(self._shown, numbers, strict=True))
        self._changes.append([x for cell, (old, new) in pairs if old != new for x in (cell, new)])
        self._shown = numbers
        if picture.window is not None:
            self._windows.append(picture.window)

    def packed(self) -> dict[str, Any]:
        """Plain values: `changes` holds cell, glyph, cell, glyph, ... per picture; the first one has all cells."""
        rows, columns = self._size
        return {
            "rows": rows,
            "columns": columns,
            "glyphs": list(self._glyphs),
            "changes": self._changes,
            "windows": self._windows,
        }


def css(colour: Iterable[int]) -> str:
    """Red, green and blue, 0 to 255, as a CSS colour."""
    return "#{:02x}{:02x}{:02x}".format(*map(int, colour))
