"""A task's rules for many parallel episodes; `native` turns them into environments."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.spaces import Discrete, Space
from numpy.typing import NDArray

from .checks import check_field_names, copied_like
from .random_stream import key_of_seed

StepArrays = tuple[NDArray[Any], NDArray[Any], NDArray[np.bool_], NDArray[np.bool_]]
Infos = dict[str, NDArray[Any]]


class Task(ABC):
    """The rules of a task, applied to N parallel episodes, its lanes. Every array that a method returns is new.

    Attributes:
        observation_space, action_space: of one lane.
        state: a NamedTuple of arrays [N, ...]: the complete state of the episodes.
    """

    observation_space: Space[Any]
    action_space: Discrete
    state: Any

    @property
    @abstractmethod
    def was_reset(self) -> NDArray[np.bool_]:
        """The lanes that have been started, [N]."""

    @property
    def needs_reset(self) -> NDArray[np.bool_]:
        """The lanes whose episode has ended, [N]."""
        return self.state.needs_reset

    def seed(self, lane: int, seed: int) -> None:
        """Seed a lane's random numbers: the fields `key` and `counter` of `random_stream`."""
        self.state.key[lane], self.state.counter[lane] = key_of_seed(seed), 0

    @abstractmethod
    def start(self, mask: NDArray[np.bool_]) -> None:
        """Start an episode in the lanes of `mask` [N], each with its own random numbers."""

    @abstractmethod
    def observe(self) -> NDArray[Any]:
        """The current observations, [N, ...]."""

    @abstractmethod
    def step(self, actions: NDArray[np.int64]) -> StepArrays:
        """Step all lanes: observations [N, ...], rewards, terminated and truncated, each [N].

        A lane whose episode has ended ignores its action and starts the next one, with a reward of 0.
        """

    @abstractmethod
    def check_state(self, state: Any) -> None:
        """Raises ValueError, naming the first field with a value that the rules cannot use.

        Compiled rules index arrays with these values without looking at bounds.
        """

    @abstractmethod
    def draw(self, lane: int, render_mode: str) -> NDArray[np.uint8] | str:
        """A lane's image, uint8 [height, width, 3], or for "ansi" its text."""

    def infos(self) -> Infos:
        """The infos of every step, [N] each."""
        return {}

    def outcome(self, rewards: NDArray[Any]) -> Infos:
        """The infos of episodes that end with these rewards [N], [N] each."""
        return {}

    def reset(self, mask: NDArray[np.bool_], seeds: Sequence[int | None], entropy: np.random.Generator) -> None:
        """Start an episode in the lanes of `mask` [N]; a lane without a seed continues its random numbers.

        A lane that was never started gets a seed from `entropy`.
        """
        was_reset = self.was_reset
        for lane in np.flatnonzero(mask).tolist():
            seed = seeds[lane]
            if seed is None and not was_reset[lane]:
                seed = int(entropy.integers(2**63))
            if seed is not None:
                self.seed(lane, seed)
        self.start(mask)

    def empty_observations(self) -> NDArray[Any]:
        """New observations [N, ...], for a compiled function to fill."""
        return np.empty((len(self.state[0]), *(self.observation_space.shape or ())), self.observation_space.dtype)

    def empty_step(self, reward_type: type[np.floating[Any]]) -> StepArrays:
        """New arrays like those of `step`, for a compiled function to fill."""
        observations = self.empty_observations()
        lanes = len(observations)
        return observations, np.empty(lanes, reward_type), np.empty(lanes, np.bool_), np.empty(lanes, np.bool_)

    def get_state(self) -> dict[str, NDArray[Any]]:
        """Copies of the state's fields by name."""
        return {name: array.copy() for name, array in self.state._asdict().items()}

    def set_state(self, fields: Mapping[str, NDArray[Any]]) -> None:
        """Restore the state from copies of the fields.

        Raises:
            ValueError: if a field is missing, unknown, of another shape or dtype, or has a value that the rules cannot
                use; the state is then unchanged.
        """
        check_field_names(fields, self.state._fields)
        state = self.state._replace(**copied_like(fields, self.state._asdict()))
        self.check_state(state)
        self.state = state

    def picture(self, lane: int, render_mode: str) -> NDArray[np.uint8] | str:
        """Like `draw`. Raises ResetNeeded for a lane that was never started."""
        if not self.was_reset[lane]:
            raise ResetNeeded("render was called before reset")
        return self.draw(lane, render_mode)
