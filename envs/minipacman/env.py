"""Mini PacMan as a gymnasium environment and as a vector environment; the rules are in `engine`."""

from typing import Any

from rmc_agents.envs.native import NativeEnv, NativeVectorEnv

from .games import Games

METADATA: dict[str, Any] = {
    "render_modes": ["rgb_array", "ansi"],
    "render_fps": 10,
    "action_names": ["stay", "right", "up", "left", "down"],
    "legend": {
        "wall": (255, 255, 255),
        "food": (0, 0, 255),
        "pill": (0, 255, 255),
        "Pacman": (0, 255, 0),
        "ghost": (255, 0, 0),
        "edible": (255, 255, 0),
    },
}
"""`legend`: the colours in observations that are pictures."""


class MiniPacmanEnv(NativeEnv):
    """
    ## Description

    A small Pac-Man in a maze of 15 rows and 19 columns, seen through a window around Pacman: a test of memory. Food
    lies on every free cell. Ghosts hunt Pacman; for 20 steps after a power pill they flee and can be eaten. A finished
    level is followed by the next, with faster ghosts and, every second level, one more ghost. The game was introduced
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

    `Box(0, 255, (viewport, viewport, 3), uint8)`, RGB with one pixel per cell, Pacman in the middle; cells outside the
    maze look like walls. With `viewport=None` the whole maze, `(15, 19, 3)`. Of several things in a cell, the first of
    these is seen: Pacman (0, 255, 0), ghost (255, 255 * power / 20, 0), pill (0, 255, 255), food (0, 0, 255), wall
    (255, 255, 255), empty (0, 0, 0).

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
    - `render_mode`: "rgb_array" or "ansi"; pictures show the whole maze with the window marked

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
        super().__init__(Games(1, mode, viewport, frame_cap), render_mode)
        self.mode, self.viewport, self.frame_cap = mode, viewport, frame_cap


class MiniPacmanVectorEnv(NativeVectorEnv):
    """Many games of Mini PacMan (`MiniPacmanEnv` describes them and their arguments) in one loop, on one thread.

    Observations are [N, height, width, 3], rewards float32; `infos["level"]` and `infos["power"]` are int64 [N].
    """

    metadata = METADATA
    task = Games

    def __init__(
        self, num_envs: int, mode: str = "regular", viewport: int | None = 5, frame_cap: int = 3000, **settings: Any
    ) -> None:
        super().__init__(num_envs, mode, viewport, frame_cap, **settings)
        self.mode, self.viewport, self.frame_cap = mode, viewport, frame_cap
