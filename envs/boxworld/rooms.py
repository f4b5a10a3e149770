"""Rooms with their settings: what BoxWorld's environment and vector environment share."""

from collections.abc import Sequence

import numpy as np
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray

from rmc_agents.envs.random_stream import key_of_seed

from .drawing import draw_frame, draw_text
from .engine import observe_lanes, start_lanes, step_lanes
from .state import Rules, make_state

StepArrays = tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_]]


class Rooms:
    """N rooms; `state` may be replaced.

    Args:
        lanes: N.
        rules: of all of them.
    """

    def __init__(self, lanes: int, rules: Rules) -> None:
        self.rules = rules
        self.state = make_state(lanes, rules)

    @property
    def was_reset(self) -> NDArray[np.bool_]:
        """The lanes that have been started, bool [N]."""
        return self.state.solution_length > 0

    def start(self, mask: NDArray[np.bool_], seeds: Sequence[int | None], entropy: np.random.Generator | None) -> None:
        """Starts an episode in the lanes of `mask` [N]; one without a seed goes on with its random stream.

        A lane that was never started has none yet and takes one from `entropy`.
        """
        was_reset = self.was_reset
        for lane in np.flatnonzero(mask).tolist():
            seed = seeds[lane]
            if seed is not None:
                self.state.key[lane], self.state.counter[lane] = key_of_seed(seed), 0
            elif not was_reset[lane]:
                assert entropy is not None
                self.state.key[lane] = entropy.integers(2**64, dtype=np.uint64)
        start_lanes(self.state, self.rules, mask)

    def observe(self) -> NDArray[np.uint8]:
        """All observations, [N, side + 1, side, 3]."""
        observations = self._empty()
        observe_lanes(self.state, self.rules, observations)
        return observations

    def step(self, actions: NDArray[np.int64]) -> StepArrays:
        """Advances all lanes: observations [N, side + 1, side, 3], then rewards and both flags [N], all new arrays."""
        if not self.was_reset.all():
            raise ResetNeeded("step was called before reset")
        lanes = len(actions)
        observations, rewards = self._empty(), np.empty(lanes, np.float32)
        terminated, truncated = np.empty(lanes, np.bool_), np.empty(lanes, np.bool_)
        step_lanes(self.state, self.rules, actions, observations, rewards, terminated, truncated)
        return observations, rewards, terminated, truncated

    def draw(self, lane: int, render_mode: str) -> NDArray[np.uint8] | str:
        """One lane's picture, or its text map for "ansi"."""
        if not self.was_reset[lane]:
            raise ResetNeeded("render was called before reset")
        if render_mode == "ansi":
            return draw_text(self.state, lane)
        return draw_frame(self.state, self.rules, lane)

    def _empty(self) -> NDArray[np.uint8]:
        return np.empty((len(self.state.key), *self.rules.observation_shape), np.uint8)
