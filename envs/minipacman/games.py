"""Games of Mini PacMan with their settings: what the environment and the vector environment share."""

from collections.abc import Sequence

import numpy as np
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray

from rmc_agents.envs.random_stream import key_of_seed

from .drawing import draw_frame, draw_text
from .engine import observe_lanes, start_lanes, step_lanes
from .map import make_maze, make_view, view_shape
from .state import MODES, make_state, with_room_for_ghosts

StepArrays = tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_]]


class Games:
    """N games of one mode, seen through one viewport; `state` may be replaced.

    Raises:
        ValueError: for a mode, viewport or frame_cap that is not allowed.
    """

    def __init__(self, lanes: int, mode: str, viewport: int | None, frame_cap: int) -> None:
        if mode not in MODES:
            raise ValueError(f"mode: expected one of {', '.join(MODES)}; received {mode!r}")
        if not isinstance(frame_cap, int | np.integer) or frame_cap < 1:
            raise ValueError(f"frame_cap: expected an int of at least 1, received {frame_cap!r}")
        self.shape = view_shape(viewport)
        self.viewport = viewport
        self.rules = MODES[mode]._replace(frame_cap=int(frame_cap))
        self.view = make_view(viewport)
        self.maze = make_maze()
        self.state = make_state(lanes)

    def start(self, mask: NDArray[np.bool_], seeds: Sequence[int | None], entropy: np.random.Generator | None) -> None:
        """Starts an episode in the lanes of `mask` [N]; one without a seed goes on with its random stream.

        A lane that was never started has none yet and takes one from `entropy`.
        """
        for lane in np.flatnonzero(mask).tolist():
            seed = seeds[lane]
            if seed is not None:
                self.state.key[lane], self.state.counter[lane] = key_of_seed(seed), 0
            elif self.state.level[lane] == 0:
                assert entropy is not None
                self.state.key[lane] = entropy.integers(2**64, dtype=np.uint64)
        start_lanes(self.state, self.maze, mask)

    def observe(self) -> NDArray[np.uint8]:
        """All observations, [N, height, width, 3]."""
        observations = np.empty((len(self.state.key), *self.shape), np.uint8)
        observe_lanes(self.state, self.view, observations.reshape(len(observations), -1))
        return observations

    def step(self, actions: NDArray[np.int64]) -> StepArrays:
        """Advances all lanes: observations [N, height, width, 3], then rewards and both flags [N], all new arrays."""
        if not self.state.level.all():
            raise ResetNeeded("step was called before reset")
        self.state = with_room_for_ghosts(self.state)
        lanes = len(actions)
        observations = np.empty((lanes, *self.shape), np.uint8)
        rewards = np.empty(lanes, np.float32)
        terminated, truncated = np.empty(lanes, np.bool_), np.empty(lanes, np.bool_)
        pixels = observations.reshape(lanes, -1)
        step_lanes(self.state, self.maze, self.view, self.rules, actions, pixels, rewards, terminated, truncated)
        return observations, rewards, terminated, truncated

    def draw(self, lane: int, render_mode: str) -> NDArray[np.uint8] | str:
        """One lane's picture, or its text map for "ansi"."""
        if self.state.level[lane] == 0:
            raise ResetNeeded("render was called before reset")
        if render_mode == "ansi":
            return draw_text(self.state, lane)
        return draw_frame(self.state, lane, self.viewport)
