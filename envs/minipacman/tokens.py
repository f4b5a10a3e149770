"""Mini PacMan's whole map as tokens: one per free cell, for its content and its position relative to Pacman.

What is learned about a ghost two cells to the left then applies wherever Pacman is, as in a window around Pacman. An
image of the whole map has the same information, but an encoder that does not know the geometry learns little from it.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv, VectorObservationWrapper
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from rmc_agents.envs.token_space import Tokens

from .map import CELL_COLUMN, CELL_ROW, CELLS, COLUMNS, ROWS, make_maze
from .state import POWER_STEPS

KINDS = 5
NOTHING, FOOD, PILL, GHOST, EDIBLE = range(KINDS)
"""What lies in a cell; Pacman's own counts as empty."""

_CELL_PIXEL = CELL_ROW * COLUMNS + CELL_COLUMN


class Vocabulary(NamedTuple):
    """The meaning of the tokens. Small numbers stand for cells that can be near."""

    order: NDArray[np.int64]  # [C, C]: for each cell of Pacman, all cells sorted by distance in steps
    empty: NDArray[np.int64]  # [C, C]: the tokens of empty cells; those of the other kinds follow
    places: NDArray[np.int64]  # [P, 2]: rows down and columns right of Pacman; the tokens of place p start at p * KINDS
    pacman: int  # the token of Pacman in cell 0
    power: int  # the token of power 0; the other values of power follow
    sizes: NDArray[np.int64]  # [C + 2]: exclusive upper limit of the tokens of each entry


@cache
def make_vocabulary() -> Vocabulary:
    """Builds the tables (once per process; treat the arrays as read-only)."""
    neighbours = make_maze().next_cell[:, 2:]
    distance, reached = np.zeros((CELLS, CELLS), np.int64), np.eye(CELLS, dtype=np.bool_)
    while not reached.all():
        distance += ~reached
        reached |= reached[neighbours].any(1)
    order = distance.argsort(axis=1, kind="stable")
    seen = np.stack([cells[order] - cells[:, None] for cells in (CELL_ROW, CELL_COLUMN)], axis=-1)  # [C, C, 2]
    by_rank = seen.swapaxes(0, 1).reshape(-1, 2)
    _, first_at, number = np.unique(by_rank, axis=0, return_index=True, return_inverse=True)
    place = first_at.argsort().argsort()[number].reshape(CELLS, CELLS).T
    pacman = len(first_at) * KINDS
    power = pacman + CELLS
    sizes = np.append((place.max(0) + 1) * KINDS, [power, power + POWER_STEPS + 1])
    return Vocabulary(order, place * KINDS, by_rank[np.sort(first_at)], pacman, power, sizes)


def map_tokens(pictures: NDArray[np.uint8]) -> NDArray[np.int32]:
    """The tokens `[N, 140]` for images of the whole map, `[N, 15, 19, 3]`.

    Cells come in order of their distance in steps, the nearest first, then Pacman's cell and the power.
    """
    vocabulary = make_vocabulary()
    red, green, blue = pictures.reshape(len(pictures), -1, 3)[:, _CELL_PIXEL].transpose(2, 0, 1)  # each [N, C]
    ghost = red == 255
    kind = np.where(ghost, np.where(green > 0, EDIBLE, GHOST), (blue == 255) * np.where(green == 255, PILL, FOOD))
    pacman = ((green == 255) & (red == 0) & (blue == 0)).argmax(1)
    power = np.rint((green * ghost).max(1) * (POWER_STEPS / 255)).astype(np.int64)
    cells = vocabulary.empty[pacman] + np.take_along_axis(kind, vocabulary.order[pacman], 1)
    return np.column_stack([cells, vocabulary.pacman + pacman, vocabulary.power + power]).astype(np.int32)


class MapTokens(VectorObservationWrapper):
    """Mini PacMan with the whole map, observed as tokens.

    Args:
      env: Mini PacMan with images of the whole map, and NEXT_STEP autoreset.

    Raises:
      ValueError: for another environment or mode.
    """

    def __init__(self, env: VectorEnv) -> None:
        if env.single_observation_space.shape != (ROWS, COLUMNS, 3):
            raise ValueError(f"expected images of the whole map, got observations in {env.single_observation_space}")
        if env.metadata["autoreset_mode"] != AutoresetMode.NEXT_STEP:
            raise ValueError(
                "minipacman-map needs NEXT_STEP autoreset, as used by the agents of this package; minipacman-full has "
                "images of the same map"
            )
        super().__init__(env)
        self.single_observation_space = Tokens(make_vocabulary().sizes)
        self.observation_space = batch_space(self.single_observation_space, env.num_envs)

    def observations(self, observations: NDArray[np.uint8]) -> NDArray[np.int32]:
        return map_tokens(observations)

    def get_state(self) -> dict[str, Any]:
        return self.env.get_state()  # type: ignore[attr-defined]

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `get_state`. Raises ValueError if it does not fit."""
        self.env.set_state(state)  # type: ignore[attr-defined]
