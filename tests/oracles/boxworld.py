"""BoxWorld once more, slowly, in plain Python: its rules, and a solver that tries every sequence of boxes.

Rooms are read from the text maps. Cells are (row, column); things are letters, a lock's in upper case, the gem's `*`.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from functools import cache
from typing import NamedTuple

Cell = tuple[int, int]
Colour = tuple[int, int, int]
MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))
GEM = "*"


class Room(NamedTuple):
    """What is where; never changed in place."""

    size: int
    agent: Cell
    held: str  # "-": no key
    things: frozenset[tuple[Cell, str]]

    @classmethod
    def parse(cls, text: str) -> "Room":
        """The room of a text map."""
        title, *lines = text.splitlines()
        marks = {(row, column): mark for row, line in enumerate(lines) for column, mark in enumerate(line)}
        [agent] = [cell for cell, mark in marks.items() if mark == "@"]
        things = frozenset((cell, mark) for cell, mark in marks.items() if mark not in ".@")
        return cls(len(lines), agent, title.removeprefix("key "), things)

    def boxes(self) -> dict[Cell, tuple[str, str]]:
        """For each locked box, by its lock's cell: its content and the key that opens it."""
        at = dict(self.things)
        return {
            (row, column): (at[row, column - 1], mark.lower()) for (row, column), mark in at.items() if mark.isupper()
        }

    def step(self, action: int) -> tuple["Room", tuple[str, str] | str]:
        """The room after a move, and what happened: the box opened, the thing taken, or nothing."""
        at, (down, right) = dict(self.things), MOVES[action]
        cell = row, column = self.agent[0] + down, self.agent[1] + right
        is_locked = at.get((row, column + 1), "").isupper()
        if not (0 <= row < self.size and 0 <= column < self.size) or is_locked:
            return self, ""
        thing = at.get(cell, "")
        if not thing:
            return self._replace(agent=cell), ""
        if thing.isupper() and thing.lower() != self.held:
            return self, ""
        things = self.things - {(cell, thing)}
        if thing.isupper():
            return Room(self.size, cell, "-", things), self.boxes()[cell]
        return Room(self.size, cell, self.held if thing == GEM else thing, things), thing

    def picture(self, viewport: int | None, colours: Mapping[str, Colour]) -> list[list[Colour]]:
        """The observation; `colours` of each lower-case letter and of `*@.#`, the last outside the room."""
        (row, column), reach = self.agent, (viewport or 0) // 2
        rows = range(row - reach, row + reach + 1) if viewport else range(self.size)
        columns = range(column - reach, column + reach + 1) if viewport else range(self.size)
        at = {(r, c): "." for r in range(self.size) for c in range(self.size)}
        at |= {cell: mark.lower() for cell, mark in self.things} | {self.agent: "@"}
        key = colours["#" if self.held == "-" else self.held]
        return [[key for _ in columns], *([colours[at.get((r, c), "#")] for c in columns] for r in rows)]


class Ending(NamedTuple):
    """A sequence of boxes that can be opened, after which no more can, or the gem is taken."""

    boxes: tuple[tuple[str, str], ...]
    has_gem: bool


def endings(room: Room, opened: tuple[tuple[str, str], ...] = ()) -> Iterator[Ending]:
    """Every sequence of boxes, by a search over all that can be opened next."""
    reached, at = region(room), dict(room.things)
    loose = [cell for cell in at if bit(room.size, cell) & reached]
    marks = {at[cell] for cell in loose}
    if GEM in marks:
        yield Ending(opened, True)
        return
    assert len(loose) + (room.held != "-") <= 1, "two keys at once"
    held = at[loose[0]] if loose else room.held
    things = room.things - {(cell, at[cell]) for cell in loose}
    openable = [
        lock
        for lock, (_, key) in room.boxes().items()
        if key == held and any(bit(room.size, cell) & reached for cell in neighbours(room, lock))
    ]
    for lock in openable:
        after = Room(room.size, lock, "-", things - {(lock, at[lock])})
        yield from endings(after, (*opened, room.boxes()[lock]))
    if not openable:
        yield Ending(opened, False)


def neighbours(room: Room, cell: Cell) -> list[Cell]:
    """The cells of the room beside this one."""
    beside = [(cell[0] + down, cell[1] + right) for down, right in MOVES]
    return [(row, column) for row, column in beside if 0 <= row < room.size and 0 <= column < room.size]


def region(room: Room) -> int:
    """The cells on which the agent can stand without opening a box, as bits (see `bit`).

    The set grows by one cell in each direction, without blocked cells, until it stays the same.
    """
    free = all_cells(room.size)
    for row, column in room.boxes():
        free &= ~(bit(room.size, (row, column)) | bit(room.size, (row, column - 1)))
    line, reached, before = room.size + 1, bit(room.size, room.agent), 0
    while reached != before:
        before = reached
        reached |= (reached << 1 | reached >> 1 | reached << line | reached >> line) & free
    return reached


@cache
def all_cells(size: int) -> int:
    """An empty room."""
    return sum(bit(size, (row, column)) for row in range(size) for column in range(size))


def bit(size: int, cell: Cell) -> int:
    """A cell as a bit; none stands for the column of wall between the end of a row and the next one."""
    return 1 << (cell[0] * (size + 1) + cell[1])


def shortest_solution(room: Room, wanted: frozenset[tuple[str, str]]) -> list[int]:
    """The fewest moves to the gem that open none but the wanted boxes, by breadth-first search over whole rooms."""
    came_from: dict[Room, tuple[Room, int] | None] = {room: None}
    waiting = deque([room])
    while waiting:
        before = waiting.popleft()
        for action in range(len(MOVES)):
            after, event = before.step(action)
            if after in came_from or (isinstance(event, tuple) and event not in wanted):
                continue
            came_from[after] = before, action
            if event == GEM:
                return _moves(came_from, after)
            waiting.append(after)
    raise AssertionError("no way to the gem")


def _moves(came_from: Mapping[Room, tuple[Room, int] | None], room: Room) -> list[int]:
    moves = []
    while (step := came_from[room]) is not None:
        room, action = step
        moves.append(action)
    return moves[::-1]
