"""Mini PacMan as a gymnasium environment and as a vector environment; the rules are in `minipacman_engine`."""

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import ArrayLike, NDArray

from rmc_agents.envs.vector_checks import (
    as_autoreset_mode,
    checked_actions,
    checked_num_envs,
    checked_render_mode,
    checked_reset_mask,
    final_infos,
    lane_seeds,
    refuse_ended,
)

from .drawing import Window
from .games import Games
from .state import state_from_dict, state_to_dict

ACTIONS = 5
METADATA: dict[str, Any] = {"render_modes": ["human", "rgb_array", "ansi"], "render_fps": 10}


def _spaces(shape: tuple[int, int, int]) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
    """Observation and action space of one game."""
    return spaces.Box(0, 255, shape, np.uint8), spaces.Discrete(ACTIONS)


class MiniPacmanEnv(gym.Env[NDArray[np.uint8], int]):
    """
    ## Description

    A small Pac-Man in a maze of 15 rows and 19 columns, seen through a window around Pacman: a test of memory. Food
    lies on every free cell. Ghosts hunt Pacman; for 20 steps after a power pill they flee and can be eaten. A finished
    level is followed by the next, in which ghosts are faster and, every second level, one more. The game was introduced
    with "Imagination-Augmented Agents" (Weber et al., 2017, arXiv 1707.06203) and played through a window in
    "Relational recurrent neural networks" (Santoro et al., 2018, arXiv 1806.01822).

    ## Action space

    `Discrete(5)`; a move into a wall leaves Pacman where it is.

    | number | action |
    |--------|--------|
    | 0      | stay   |
    | 1      | right  |
    | 2      | up     |
    | 3      | left   |
    | 4      | down   |

    ## Observation

    `Box(0, 255, (viewport, viewport, 3), uint8)`, RGB with one pixel a cell, Pacman in the middle; cells outside the
    maze look like walls. With `viewport=None` the whole maze, `(15, 19, 3)`. Where things coincide the first is seen:
    Pacman (0, 255, 0), ghost (255, 255 * power / 20, 0), pill (0, 255, 255), food (0, 0, 255), wall (255, 255, 255),
    empty (0, 0, 0).

    ## Rewards

    Rewards within one step add up.

    | mode    | step | food | pill | ghost eaten | death | level ends on          |
    |---------|------|------|------|-------------|-------|------------------------|
    | regular | 0    | 1    | 2    | 5           | 0     | all food               |
    | avoid   | 0.1  | -0.1 | -5   | -10         | -20   | all food, or 128 steps |
    | hunt    | 0    | 0    | 1    | 10          | -20   | all ghosts             |
    | ambush  | 0    | -0.1 | 0    | 10          | -20   | all ghosts             |
    | rush    | 0    | -0.1 | 10   | 0           | 0     | all pills              |

    ## Termination

    The episode terminates when Pacman dies, and is truncated when it is alive after `frame_cap` steps.
    `info` has `level` (1, 2, ...) and `power` (steps for which ghosts can still be eaten, 0..20).

    ## Arguments

    - `mode`: "regular" (default), "avoid", "hunt", "ambush" or "rush"
    - `viewport`: side of the window in cells, odd (default 5), or None for the whole maze
    - `frame_cap`: steps after which an episode is truncated (default 3000)
    - `render_mode`: "human", "rgb_array" or "ansi"; pictures show the whole maze with the window marked

    ## Registered configurations

    - `MiniPacman-v0`, also by `gymnasium.make("rmc_agents.envs:MiniPacman-v0", mode="hunt", viewport=None)`
    """

    metadata = METADATA

    def __init__(
        self,
        mode: str = "regular",
        viewport: int | None = 5,
        frame_cap: int = 3000,
        render_mode: str | None = None,
    ) -> None:
        """See the class; raises ValueError for a value that is not allowed."""
        self.render_mode = checked_render_mode(render_mode, METADATA["render_modes"])
        self._games = Games(1, mode, viewport, frame_cap)
        self._window: Window | None = None
        self.mode, self.viewport, self.frame_cap = mode, viewport, frame_cap
        self.observation_space, self.action_space = _spaces(self._games.shape)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Starts an episode: (observation, info). Without a seed the random stream goes on; `options` is not used."""
        super().reset(seed=seed)
        self._games.start(np.ones(1, np.bool_), [seed], self.np_random)
        if self.render_mode == "human":
            self.render()
        return self._games.observe()[0], self._info()

    def step(self, action: int) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """One step: (observation, reward, terminated, truncated, info).

        Raises:
            ValueError: for an action that is not an int in 0..4.
            ResetNeeded: before the first reset and after an episode's end.
        """
        if not self.action_space.contains(action):
            raise ValueError(f"action: expected an int in 0..{ACTIONS - 1}, received {action!r}")
        if self._games.state.needs_reset[0]:
            raise ResetNeeded("step was called after the episode's end: call reset first")
        observations, rewards, terminated, truncated = self._games.step(np.array([action], np.int64))
        if self.render_mode == "human":
            self.render()
        # Rewards are whole tenths: rounding turns the float32 into the nearest Python float.
        reward = round(float(rewards[0]), 1)
        return observations[0], reward, bool(terminated[0]), bool(truncated[0]), self._info()

    def render(self) -> NDArray[np.uint8] | str | None:
        """The picture uint8 [360, 456, 3] ("rgb_array"), a text map ("ansi"), or None ("human": shown in a window)."""
        if self.render_mode is None:
            gym.logger.warn("render was called without a render_mode: nothing is drawn")
            return None
        picture = self._games.draw(0, self.render_mode)
        if self.render_mode != "human":
            return picture
        assert not isinstance(picture, str)
        self._window = self._window or Window("Mini PacMan", METADATA["render_fps"])
        self._window.show(picture)
        return None

    def close(self) -> None:
        """Closes the window, if there is one; may be called again."""
        if self._window is not None:
            self._window.close()
            self._window = None

    def get_state(self) -> dict[str, NDArray[Any]]:
        """Copies of everything that decides how the game goes on, as documented at `minipacman_state.State`, N = 1."""
        return state_to_dict(self._games.state)

    def set_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Takes over what `get_state` of any environment with the same settings returned.

        Raises:
            ValueError: naming the first field that does not fit.
        """
        self._games.state = state_from_dict(state, 1)

    def _info(self) -> dict[str, Any]:
        return {"level": int(self._games.state.level[0]), "power": int(self._games.state.power[0])}


class MiniPacmanVectorEnv(VectorEnv[NDArray[np.uint8], ArrayLike, NDArray[Any]]):
    """Many games of Mini PacMan (`MiniPacmanEnv` describes them) in one compiled loop, on one thread.

    It behaves like gymnasium's SyncVectorEnv of the same games, lane by lane and seed by seed. Every array it returns
    is new. Rewards are float32; `infos` has `level` and `power`, int64 [N].

    Args:
        num_envs: number of lanes, N.
        mode, viewport, frame_cap: as for `MiniPacmanEnv`.
        render_mode: "rgb_array" or "ansi": `render` returns one frame a lane.
        autoreset_mode: an `AutoresetMode` or its name, "next_step", "same_step" or "disabled" in any spelling.

    Raises:
        ValueError: for a value that is not allowed.
    """

    metadata = METADATA

    def __init__(
        self,
        num_envs: int,
        mode: str = "regular",
        viewport: int | None = 5,
        frame_cap: int = 3000,
        render_mode: str | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    ) -> None:
        """See the class."""
        self.num_envs = checked_num_envs(num_envs)
        self.render_mode = checked_render_mode(render_mode, ("rgb_array", "ansi"))
        self.autoreset_mode = as_autoreset_mode(autoreset_mode)
        self.metadata = {**METADATA, "render_modes": ["rgb_array", "ansi"], "autoreset_mode": self.autoreset_mode}
        self._games = Games(self.num_envs, mode, viewport, frame_cap)
        self.mode, self.viewport, self.frame_cap = mode, viewport, frame_cap
        self.single_observation_space, self.single_action_space = _spaces(self._games.shape)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Starts episodes: (observations [N, height, width, 3], infos).

        Args:
            seed: lane i gets seed + i, or the i-th of a sequence; None lets a lane's random stream go on.
            options: with `reset_mask`, bool [N], only the lanes with True start anew; the others' observations are
                returned as they are, and `infos` covers the lanes that started. The dict is left as it is.

        Raises:
            ValueError: for seeds or a mask of another length, a mask that is not bool or has no True, or one that
                leaves out a lane that was never reset.
        """
        seeds = lane_seeds(seed, self.num_envs)
        mask = checked_reset_mask(options, self._games.state.level > 0)
        super().reset(seed=int(seed) if isinstance(seed, int | np.integer) else None)
        needs_entropy = bool((mask & (self._games.state.level == 0)).any())
        self._games.start(mask, seeds, self.np_random if needs_entropy else None)
        return self._games.observe(), self._infos(mask)

    def step(
        self, actions: ArrayLike
    ) -> tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """One step of every lane: (observations, rewards, terminated, truncated, infos).

        Args:
            actions: ints in 0..4, [N].

        Raises:
            ValueError: for actions of another shape, kind or range.
            ResetNeeded: before the first reset, and with autoreset disabled while a finished lane waits for a reset.
        """
        checked = checked_actions(actions, self.num_envs, ACTIONS)
        if self.autoreset_mode == AutoresetMode.DISABLED:
            refuse_ended(self._games.state.needs_reset)
        observations, rewards, terminated, truncated = self._games.step(checked)
        infos: dict[str, Any] = {}
        if self.autoreset_mode == AutoresetMode.SAME_STEP:
            ended = terminated | truncated
            if ended.any():
                infos = final_infos(observations, self._infos(ended), ended)
                self._games.start(ended, [None] * self.num_envs, None)
                observations = self._games.observe()
        return observations, rewards, terminated, truncated, {**infos, **self._infos(None)}

    def render(self) -> tuple[NDArray[np.uint8] | str, ...] | None:
        """One frame or text map a lane, as `MiniPacmanEnv.render`; None without a render_mode."""
        if self.render_mode is None:
            gym.logger.warn("render was called without a render_mode: nothing is drawn")
            return None
        return tuple(self._games.draw(lane, self.render_mode) for lane in range(self.num_envs))

    def get_state(self) -> dict[str, NDArray[Any]]:
        """Copies of everything that decides how the games go on, as documented at `minipacman_state.State`."""
        return state_to_dict(self._games.state)

    def set_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Takes over what `get_state` of any vector environment with the same settings returned.

        Raises:
            ValueError: naming the first field that does not fit.
        """
        self._games.state = state_from_dict(state, self.num_envs)

    def _infos(self, mask: NDArray[np.bool_] | None) -> dict[str, Any]:
        """Infos of the lanes of `mask`, of all for None, in the form of gymnasium's vector environments."""
        infos: dict[str, Any] = {}
        for name, values in (("level", self._games.state.level), ("power", self._games.state.power)):
            infos[name] = values.astype(np.int64) if mask is None else np.where(mask, values, 0).astype(np.int64)
            infos[f"_{name}"] = np.ones(self.num_envs, np.bool_) if mask is None else mask.copy()
        return infos
