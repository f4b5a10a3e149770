"""Mini PacMan's whole map as tokens: what lies in every free cell, named together with where that is from Pacman.

What is learned of a ghost two cells to the left then holds wherever Pacman is, as it does in a window around it. The
picture of the whole map says the same, and an encoder that does not know its geometry learns little from it.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
from gymnasium.spaces import MultiDiscrete
from gymnasium.vector import AutoresetMode, VectorEnv, VectorObservationWrapper
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from .minipacman_engine import POWER_STEPS
from .minipacman_map import CELL_COLUMN, CELL_ROW, CELLS, COLUMNS, ROWS, make_maze

KINDS = 5
NOTHING, FOOD, PILL, GHOST, EDIBLE = range(KINDS)
"""What lies in a cell; Pacman's own counts as empty."""
PLACES = (2 * ROWS - 1) * (2 * COLUMNS - 1)
"""Where a cell can be, as seen from Pacman."""
PACMAN_AT = PLACES * KINDS
"""The first of the tokens that tell Pacman's cell."""
POWER = PACMAN_AT + CELLS
"""The first of those that tell for how many steps ghosts can still be eaten."""
VOCABULARY = POWER + POWER_STEPS + 1
TOKENS = CELLS + 2
"""How many make an observation: one a cell, one for Pacman's, one for the power."""

_CELL_PIXEL = CELL_ROW * COLUMNS + CELL_COLUMN


@cache
def _nearest() -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """For each of Pacman's cells `[C]` all cells, the nearest first, and their tokens when empty; both `[C, C]`."""
    neighbours = make_maze().next_cell[:, 2:]
    distance, reached = np.zeros((CELLS, CELLS), np.int64), np.eye(CELLS, dtype=np.bool_)
    while not reached.all():
        distance += ~reached
        reached = reached[neighbours].any(1) | reached
    order = distance.argsort(axis=1, kind="stable")
    row, column = (cells[order] - cells[:, None] for cells in (CELL_ROW, CELL_COLUMN))
    place = (row + ROWS - 1) * (2 * COLUMNS - 1) + column + COLUMNS - 1
    return order, place * KINDS


def map_tokens(pictures: NDArray[np.uint8]) -> NDArray[np.int32]:
    """The tokens `[N, 140]` of pictures of the whole map, `[N, 15, 19, 3]`, each below `VOCABULARY`.

    Cells come in the order of how many steps away they are, the nearest first, and then Pacman's cell and the power.
    """
    order, empty = _nearest()
    red, green, blue = pictures.reshape(len(pictures), -1, 3)[:, _CELL_PIXEL].transpose(2, 0, 1)  # each [N, CELLS]
    ghost = red == 255
    kind = np.where(ghost, np.where(green > 0, EDIBLE, GHOST), (blue == 255) * np.where(green == 255, PILL, FOOD))
    pacman = ((green == 255) & (red == 0) & (blue == 0)).argmax(1)
    power = np.rint((green * ghost).max(1) * (POWER_STEPS / 255))
    return np.concatenate(
        [
            empty[pacman] + np.take_along_axis(kind, order[pacman], 1),
            (PACMAN_AT + pacman)[:, None],
            (POWER + power)[:, None],
        ],
        axis=1,
        dtype=np.int32,
        casting="unsafe",
    )


class MapTokens(VectorObservationWrapper):
    """Mini PacMan with the whole map, which is shown as tokens.

    Args:
      env: Mini PacMan with pictures of the whole map, and NEXT_STEP autoreset.

    Raises:
      ValueError: for another environment or mode.
    """

    def __init__(self, env: VectorEnv) -> None:
        """See the class."""
        if env.single_observation_space.shape != (ROWS, COLUMNS, 3):
            raise ValueError(f"expected pictures of the whole map, got observations in {env.single_observation_space}")
        if env.metadata["autoreset_mode"] != AutoresetMode.NEXT_STEP:
            raise ValueError(
                "minipacman-map is for the agents of this package, with NEXT_STEP autoreset; use minipacman-full, "
                "which shows pictures of the same"
            )
        super().__init__(env)
        self.single_observation_space = MultiDiscrete(np.full(TOKENS, VOCABULARY), dtype=np.int32)
        self.observation_space = batch_space(self.single_observation_space, env.num_envs)

    def observations(self, observations: NDArray[np.uint8]) -> NDArray[np.int32]:
        """See `map_tokens`."""
        return map_tokens(observations)

    def get_state(self) -> dict[str, Any]:
        """The environment's."""
        return self.env.get_state()  # type: ignore[attr-defined]

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from what `get_state` gave; raises ValueError where it does not fit."""
        self.env.set_state(state)  # type: ignore[attr-defined]
