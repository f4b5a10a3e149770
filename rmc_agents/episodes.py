"""Episodes that have ended, for statistics and progress."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Episode(NamedTuple):
    """A finished episode.

    Attributes:
      episode_return: undiscounted and unscaled.
      length: in steps.
      success: whether it was one; None if the environment has not reported any so far.
      number: in its lane, see `Lanes.numbers`; 0 in Stable-Baselines3's algorithms.
    """

    episode_return: float
    length: int
    success: bool | None
    number: int = 0


OUTCOMES = (None, False, True)


def to_rows(episodes: Sequence[Episode]) -> NDArray[np.float64]:
    """Episodes as numbers `[E, 4]`, for another process; its inverse is `from_rows`."""
    rows = [(total, length, OUTCOMES.index(success), number) for total, length, success, number in episodes]
    return np.array(rows, np.float64).reshape(-1, len(Episode._fields))


def from_rows(rows: NDArray[np.float64]) -> list[Episode]:
    """The episodes of `to_rows`."""
    return [
        Episode(total, int(length), OUTCOMES[int(code)], int(number)) for total, length, code, number in rows.tolist()
    ]


class EndedEpisodes:
    """Keeps `episodes` that have ended until `take_episodes` returns them."""

    episodes: list[Episode]

    def take_episodes(self) -> list[Episode]:
        """The episodes that ended since the last call."""
        episodes, self.episodes = self.episodes, []
        return episodes
