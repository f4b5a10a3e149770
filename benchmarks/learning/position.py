"""Mini PacMan whose observations also tell where Pacman is: does an agent gain from what a map would tell it?

    rmc-train --config minipacman-rmc --env benchmarks.learning.position:Position

Results: docs/decisions/slots.md.
"""

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict
from gymnasium.vector import VectorObservationWrapper
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

import rmc_agents as rmc
from rmc_agents.envs.minipacman.map import CELL_COLUMN, CELL_ROW

PLACES = np.concatenate(
    [np.eye(1 + of_cell.max(), dtype=np.float32)[of_cell] for of_cell in (CELL_ROW, CELL_COLUMN)], 1
)
"""Row and column of every cell, one-hot, `[cells, rows + columns]`."""


class Position(VectorObservationWrapper):
    """The 5x5 window, and Pacman's row and column."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(rmc.make_env("minipacman", num_envs))
        place = Box(0.0, 1.0, PLACES.shape[1:], np.float32)
        self.single_observation_space = Dict(window=self.env.single_observation_space, place=place)
        self.observation_space = batch_space(self.single_observation_space, num_envs)

    def observations(self, observations: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
        return {"window": observations, "place": PLACES[self.get_state()["pacman_cell"]]}

    def get_state(self) -> dict[str, NDArray[Any]]:
        return self.env.get_state()  # type: ignore[attr-defined]

    def set_state(self, state: dict[str, NDArray[Any]]) -> None:
        self.env.set_state(state)  # type: ignore[attr-defined]
