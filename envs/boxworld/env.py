"""BoxWorld as a gymnasium environment; the rules are in `engine`, the levels in `levels`."""

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray

from rmc_agents.envs.minipacman.drawing import Window
from rmc_agents.envs.vector_checks import checked_render_mode

from .rooms import Rooms
from .state import Rules, checked_rules, state_from_dict, state_to_dict

ACTIONS = 4
METADATA: dict[str, Any] = {"render_modes": ["human", "rgb_array", "ansi"], "render_fps": 10}
INFOS = ("is_success", "solution_length", "num_distractors", "boxes_opened")


def spaces_of(rules: Rules) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
    """Observation and action space of one room."""
    return spaces.Box(0, 255, rules.observation_shape, np.uint8), spaces.Discrete(ACTIONS)


class BoxWorldEnv(gym.Env[NDArray[np.uint8], int]):
    """
    ## Description

    A room with keys, locked boxes and one gem. A key opens a box whose lock has its colour, and is used up; the box
    holds the key of another one, and one box holds the gem. Some boxes are distractors: they use up a key and hold one
    that opens nothing. Through a window of 5 x 5 cells the agent has to find the boxes, remember what each needs and
    holds, and reason about which to open. The task is from "Relational deep reinforcement learning" (Zambaldi et al.,
    2018, arXiv 1806.01830) and was played through a window in "Relational recurrent neural networks" (Santoro et al.,
    2018, arXiv 1806.01822).

    A coloured cell alone is a loose key: walking over it takes it. Two coloured cells side by side are a box: on the
    right its lock, on the left what it holds. Walking onto a lock with its key opens the box and leaves the content as
    a loose one, to be taken from any side. A locked box is in the way. In each level one sequence of boxes leads to the
    gem, and each of the distractors leads nowhere (see `levels`).

    ## Action space

    `Discrete(4)`; a move into a wall or into a box that the agent cannot open leaves it where it is.

    | number | action |
    |--------|--------|
    | 0      | up     |
    | 1      | down   |
    | 2      | left   |
    | 3      | right  |

    ## Observation

    `Box(0, 255, (viewport + 1, viewport, 3), uint8)`, RGB with one pixel a cell. The first row shows the key in hand:
    all its cells have the key's colour, or are black. Below is the window with the agent in its middle; with
    `viewport=None` the whole room, `(room_size + 1, room_size, 3)`. A row of its own keeps the key at a fixed place for
    a linear layer, the observation a picture for a convolution and for people, and the window as in the room.

    Floor (128, 128, 128), agent (64, 64, 64), gem (255, 255, 255), walls and all that is outside the room (0, 0, 0);
    keys and locks have 20 other colours, whose channels are 0, 128 or 255 (see `palette`).

    ## Rewards

    1 for opening a box on the way to the gem, the gem's own included, 10 for taking the gem, -1 for opening a
    distractor. So a solved level returns 10 and its solution length.

    ## Termination

    The episode terminates when the gem is taken or a distractor is opened, and is truncated after `max_steps`.
    `info` has at every step `is_success` (the gem has been taken), `solution_length` (boxes on the way to the gem),
    `num_distractors`, and `boxes_opened` (of those on the way).

    ## Arguments

    - `room_size`: side of the room in cells, without walls (default 14); there must be room for all boxes
    - `viewport`: side of the window in cells, odd (default 5), or None for the whole room
    - `max_solution_length`: boxes on the way to the gem are uniform in 1..this (default 5)
    - `max_distractors`: distractors are uniform in 0..this (default 5), each of length 1
    - `max_steps`: steps after which an episode is truncated; by default two for each cell of the room, 392 for 14 x 14.
      The papers name none. Who knows the room needs 42 steps on average and 101 at most (3,000 levels).
    - `render_mode`: "human", "rgb_array" or "ansi"; pictures show the whole room with the window marked, and below it
      the key in hand and the way to the gem

    ## Registered configurations

    - `BoxWorld-v0`, also by `gymnasium.make("rmc_agents.envs:BoxWorld-v0", room_size=8, max_solution_length=2,
      max_distractors=2)`
    """

    metadata = METADATA

    def __init__(
        self,
        room_size: int = 14,
        viewport: int | None = 5,
        max_solution_length: int = 5,
        max_distractors: int = 5,
        max_steps: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        """See the class; raises ValueError for a value that is not allowed."""
        self.render_mode = checked_render_mode(render_mode, METADATA["render_modes"])
        self.rules = checked_rules(room_size, viewport, max_solution_length, max_distractors, max_steps)
        self._rooms = Rooms(1, self.rules)
        self._window: Window | None = None
        self.observation_space, self.action_space = spaces_of(self.rules)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Starts an episode: (observation, info). Without a seed the random stream goes on; `options` is not used."""
        super().reset(seed=seed)
        self._rooms.start(np.ones(1, np.bool_), [seed], self.np_random)
        if self.render_mode == "human":
            self.render()
        return self._rooms.observe()[0], self._info()

    def step(self, action: int) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """One step: (observation, reward, terminated, truncated, info).

        Raises:
            ValueError: for an action that is not an int in 0..3.
            ResetNeeded: before the first reset and after an episode's end.
        """
        if not self.action_space.contains(action):
            raise ValueError(f"action: expected an int in 0..{ACTIONS - 1}, received {action!r}")
        if self._rooms.state.needs_reset[0]:
            raise ResetNeeded("step was called after the episode's end: call reset first")
        observations, rewards, terminated, truncated = self._rooms.step(np.array([action], np.int64))
        if self.render_mode == "human":
            self.render()
        return observations[0], float(rewards[0]), bool(terminated[0]), bool(truncated[0]), self._info()

    def render(self) -> NDArray[np.uint8] | str | None:
        """The picture ("rgb_array"; uint8 [432, 384, 3] for 14 x 14 cells), a text map ("ansi"), or None ("human")."""
        if self.render_mode is None:
            gym.logger.warn("render was called without a render_mode: nothing is drawn")
            return None
        picture = self._rooms.draw(0, self.render_mode)
        if self.render_mode != "human":
            return picture
        assert not isinstance(picture, str)
        self._window = self._window or Window("BoxWorld", METADATA["render_fps"])
        self._window.show(picture)
        return None

    def close(self) -> None:
        """Closes the window, if there is one; may be called again."""
        if self._window is not None:
            self._window.close()
            self._window = None

    def get_state(self) -> dict[str, NDArray[Any]]:
        """Copies of everything that decides how the episode goes on, as documented at `state.State`, N = 1."""
        return state_to_dict(self._rooms.state)

    def set_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Takes over what `get_state` of any environment with the same settings returned.

        Raises:
            ValueError: naming the first field that does not fit.
        """
        self._rooms.state = state_from_dict(state, 1, self.rules)

    def _info(self) -> dict[str, Any]:
        return {name: getattr(self._rooms.state, name)[0].item() for name in INFOS}
