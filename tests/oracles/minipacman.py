"""Mini PacMan once more, slowly, in plain Python: written from the rules alone, to compare the engine with.

Cells are (row, column), everything is a dict, a list or an int. A game draws from an object with `uniform()` and
`integer(n)`, in the order that `rmc_agents.envs.minipacman.engine` documents. `Game.events` counts what happened.
"""

import math
from collections import Counter
from collections.abc import Collection
from fractions import Fraction
from functools import cache
from typing import Any, Protocol

import numpy as np

MAP = """
1111111111111111111
1000100000000010001
1010101111111010101
1000000000000000001
1010101111111010101
1010000000000000101
1011110111110111101
1000000111110000001
1011110111110111101
1010000000000000101
1010101111111010101
1000000000000000001
1010101111111010101
1000100000000010001
1111111111111111111
""".strip().splitlines()

Cell = tuple[int, int]
FREE = [(row, column) for row, line in enumerate(MAP) for column, mark in enumerate(line) if mark == "0"]
RIGHT, UP, LEFT, DOWN = 2, 3, 4, 5
VECTORS = {RIGHT: (0, 1), UP: (-1, 0), LEFT: (0, -1), DOWN: (1, 0)}
VECTORS |= {0: VECTORS[DOWN], 1: (0, 0)}  # first headings: the table of moves is indexed by heading - 1
BACK = {RIGHT: LEFT, UP: DOWN, LEFT: RIGHT, DOWN: UP}
BACK_OF_FIRST_HEADINGS = {0: RIGHT, 1: UP}

TENTH = Fraction(1, 10)
REWARDS: dict[str, dict[str, int | Fraction]] = {
    "regular": {"step": 0, "food": 1, "pill": 2, "ghost": 5, "death": 0},
    "avoid": {"step": TENTH, "food": -TENTH, "pill": -5, "ghost": -10, "death": -20},
    "hunt": {"step": 0, "food": 0, "pill": 1, "ghost": 10, "death": -20},
    "ambush": {"step": 0, "food": -TENTH, "pill": 0, "ghost": 10, "death": -20},
    "rush": {"step": 0, "food": -TENTH, "pill": 10, "ghost": 0, "death": 0},
}
LEVEL_ENDS = {
    "regular": {"food"},
    "avoid": {"food", "timer"},
    "hunt": {"ghosts"},
    "ambush": {"ghosts"},
    "rush": {"pills"},
}


class Random(Protocol):
    """The random numbers of a game."""

    def uniform(self) -> float:
        """A float in [0, 1)."""

    def integer(self, limit: int) -> int:
        """An int in 0..limit-1."""


class SplitMix:
    """SplitMix64 in Python's unlimited ints; `drawn` is the number of draws so far."""

    def __init__(self, key: int, drawn: int = 0) -> None:
        self.key, self.drawn = key, drawn

    def bits(self) -> int:
        """The next 64 bits."""
        self.drawn += 1
        z = (self.key + self.drawn * 0x9E3779B97F4A7C15) % 2**64
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
        return z ^ z >> 31

    def uniform(self) -> float:
        """See `Random`."""
        return (self.bits() >> 11) / 2**53

    def integer(self, limit: int) -> int:
        """See `Random`."""
        return (self.bits() >> 32) * limit >> 32


def is_wall(cell: Cell) -> bool:
    """Whether there is a wall, or the outside of the map, at `cell`."""
    row, column = cell
    inside = 0 <= row < len(MAP) and 0 <= column < len(MAP[0])
    return not inside or MAP[row][column] == "1"


def neighbour(cell: Cell, heading: int) -> Cell:
    """The cell that a heading leads to."""
    down, right = VECTORS[heading]
    return cell[0] + down, cell[1] + right


def exits(cell: Cell) -> list[int]:
    """The headings, in order, that lead from `cell` to a free cell."""
    return [heading for heading in (RIGHT, UP, LEFT, DOWN) if not is_wall(neighbour(cell, heading))]


class Game:
    """One game; the attributes may be set to begin anywhere.

    Args:
        mode: a key of `REWARDS`.
        random: what it draws from.
        frame_cap: steps in an episode.
    """

    def __init__(self, mode: str, random: Random, frame_cap: int = 3000) -> None:
        self.reward_of, self.level_ends_on = REWARDS[mode], LEVEL_ENDS[mode]
        self.random, self.frame_cap = random, frame_cap
        self.events: Counter[str] = Counter()
        self.level = self.frame = self.timer = self.power = 0
        self.food: set[Cell] = set()
        self.pills: list[Cell | None] = []
        self.pacman: Cell = FREE[0]
        self.ghosts: list[dict[str, Any]] = []

    def reset(self) -> None:
        """A new episode."""
        self.level = self.frame = 0
        self.start_level()

    def start_level(self) -> None:
        """The next level."""
        self.level += 1
        self.timer = self.power = 0
        self.food = set(FREE)
        self.pills = [self.any_of(FREE), self.any_of(FREE)]
        self.pacman = row, column = self.any_of(FREE)
        far = [(r, c) for r, c in FREE if not (row - 5 <= r < row + 5 and column - 5 <= c < column + 5)]
        self.ghosts = []
        for _ in range(1 + math.floor((self.level - 1) / 2)):
            cell = self.any_of(far)
            self.ghosts.append({"cell": cell, "heading": self.random.integer(4)})

    def any_of(self, choices: list[Cell]) -> Cell:
        """A uniform choice."""
        return choices[self.random.integer(len(choices))]

    def end_level(self, reason: str) -> None:
        """Starts the next level if this mode's levels end for that reason."""
        if reason in self.level_ends_on:
            self.events[f"level ended by {reason}"] += 1
            self.start_level()

    def step(self, action: int) -> tuple[Fraction, bool, bool]:
        """One step: (reward, terminated, truncated)."""
        self.frame += 1
        self.timer += 1
        self.power = max(0, self.power - 1)
        self.reward, self.deaths = Fraction(self.reward_of["step"]), 0
        self.move_pacman(action)
        self.eat_pill()
        self.move_ghosts()
        if self.timer >= 128:
            self.end_level("timer")
        terminated = self.deaths > 0
        truncated = self.frame >= self.frame_cap and not terminated
        self.events["truncated"] += truncated
        self.events["died on the last frame"] += terminated and self.frame >= self.frame_cap
        self.events["two deaths"] += self.deaths > 1
        return self.reward, terminated, truncated

    def move_pacman(self, action: int) -> None:
        """Step 2 of the rules."""
        if action != 0:
            target = neighbour(self.pacman, {1: RIGHT, 2: UP, 3: LEFT, 4: DOWN}[action])
            if is_wall(target):
                self.events["walked into a wall"] += 1
            else:
                self.pacman = target
        if self.pacman in self.food:
            self.food.remove(self.pacman)
            self.reward += self.reward_of["food"]
            self.events["food eaten while staying"] += action == 0
            if not self.food:
                self.end_level("food")

    def eat_pill(self) -> None:
        """Step 3 of the rules."""
        if self.pacman in self.pills:
            self.events["two pills on one cell"] += self.pills.count(self.pacman) == 2
            self.pills[self.pills.index(self.pacman)] = None
            self.power = 20
            self.reward += self.reward_of["pill"]
            if self.pills == [None, None]:
                self.end_level("pills")

    def move_ghosts(self) -> None:
        """Step 4 of the rules."""
        speed = 0.5 + 0.1 * (self.level - 1)
        if self.power > 0:
            speed = speed / 2
        for ghost in list(self.ghosts):
            if ghost["cell"] is None:
                continue
            if ghost["cell"] == self.pacman and self.meet(ghost, "walked onto a ghost"):
                return
            if self.random.uniform() >= speed:
                continue
            ghost["heading"] = self.new_heading(ghost["cell"], ghost["heading"])
            target = neighbour(ghost["cell"], ghost["heading"])
            if is_wall(target):
                self.events["ghost on Pacman's cell faces a wall"] += 1
            else:
                ghost["cell"] = target
            if ghost["cell"] == self.pacman and self.meet(ghost, "a ghost came"):
                return

    def meet(self, ghost: dict[str, Any], how: str) -> bool:
        """A ghost and Pacman on one cell: whether the ghost was eaten."""
        eaten = self.power > 0
        self.events[f"{how}: {'eaten' if eaten else 'death'}"] += 1
        if not eaten:
            self.deaths += 1
            self.reward += self.reward_of["death"]
            return False
        ghost["cell"] = None
        self.reward += self.reward_of["ghost"]
        if all(other["cell"] is None for other in self.ghosts):
            self.end_level("ghosts")
        return True

    def new_heading(self, cell: Cell, heading: int) -> int:
        """How a ghost chooses."""
        back = BACK_OF_FIRST_HEADINGS[heading] if heading in BACK_OF_FIRST_HEADINGS else BACK[heading]
        ways = exits(cell)
        self.events["first heading 0 or 1"] += heading < RIGHT
        if len(ways) == 2:
            if heading in ways:
                return heading
            return ways[1] if back == ways[0] else ways[0]
        if cell == self.pacman:
            self.events["heading stays on Pacman's cell"] += 1
            return heading
        ways = [way for way in ways if way != back]
        if self.power == 0 and self.random.uniform() < 0.05:
            self.events["random heading"] += 1
            return ways[self.random.integer(len(ways))]
        down, right = self.pacman[0] - cell[0], self.pacman[1] - cell[1]
        length = math.sqrt(down**2 + right**2)
        scores = [VECTORS[way][0] * down / length + VECTORS[way][1] * right / length for way in ways]
        wanted = min(scores) if self.power > 0 else max(scores)
        self.events[f"tie {'fleeing' if self.power > 0 else 'hunting'}"] += scores.count(wanted) > 1
        return ways[scores.index(wanted)]

    def picture(self, margin: int) -> np.ndarray:
        """The map with a margin m of walls, uint8 [15 + 2m, 19 + 2m, 3], painted from the lowest priority up."""
        picture = bare_map(margin).copy()
        layers: list[tuple[Collection[Cell], tuple[int, int, int]]] = [
            (self.food, (0, 0, 255)),
            ([cell for cell in self.pills if cell], (0, 255, 255)),
            ([ghost["cell"] for ghost in self.ghosts if ghost["cell"]], (255, round(255 * self.power / 20), 0)),
            ([self.pacman], (0, 255, 0)),
        ]
        for cells, colour in layers:
            if cells:
                rows, columns = np.array(list(cells)).T
                picture[rows + margin, columns + margin] = colour
        return picture

    def observe(self, viewport: int | None) -> np.ndarray:
        """The observation, uint8 [height, width, 3]."""
        if viewport is None:
            return self.picture(0)
        row, column = self.pacman
        return self.picture(viewport // 2)[row : row + viewport, column : column + viewport]


@cache
def bare_map(margin: int) -> np.ndarray:
    """Walls and empty cells, with a margin of walls."""
    rows, columns = range(-margin, len(MAP) + margin), range(-margin, len(MAP[0]) + margin)
    walls = [[is_wall((row, column)) for column in columns] for row in rows]
    return np.array(walls, np.uint8)[:, :, None] * np.full(3, 255, np.uint8)
