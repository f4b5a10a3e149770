"""BoxWorld as an environment and as a vector environment; the rules are in `engine`, the levels in `levels`."""

from typing import Any

from rmc_agents.envs.native import NativeEnv, NativeVectorEnv

from .rooms import Rooms

METADATA: dict[str, Any] = {
    "render_modes": ["rgb_array", "ansi"],
    "render_fps": 10,
    "action_names": ["up", "down", "left", "right"],
}


class BoxWorldEnv(NativeEnv):
    """
    ## Description

    A room with keys, locked boxes and one gem. A key opens a box whose lock has its colour, and is used up. The box
    holds the key of another box, or the gem. Some boxes are distractors: they use up a key and hold one that opens
    nothing. Through a window of 5 x 5 cells the agent has to find the boxes, remember what each needs and
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

    `Box(0, 255, (viewport + 1, viewport, 3), uint8)`, RGB with one pixel per cell. The first row shows the key in hand:
    all its cells have the key's colour, or are black. Below is the window with the agent in its middle; with
    `viewport=None` the whole room, `(room_size + 1, room_size, 3)`. The separate row keeps the key at a fixed place for
    a linear layer, and the observation remains an image.

    Floor (128, 128, 128), agent (64, 64, 64), gem (255, 255, 255), walls and everything outside the room (0, 0, 0);
    keys and locks have 20 other colours, whose channels are 0, 128 or 255 (see `palette`).

    ## Rewards

    1 for opening a box on the way to the gem, the gem's own included, 10 for taking the gem, -1 for opening a
    distractor. So the return of a solved level is 10 plus its solution length.

    ## Termination

    The episode terminates when the gem is taken or a distractor is opened, and is truncated after `max_steps`.
    `info` has at every step `is_success` (the gem has been taken), `solution_length` (boxes on the way to the gem),
    `num_distractors`, and `boxes_opened` (on the way to the gem).

    ## Arguments

    - `room_size`: side of the room in cells, without walls (default 14); there must be room for all boxes
    - `viewport`: side of the window in cells, odd (default 5), or None for the whole room
    - `max_solution_length`: boxes on the way to the gem are uniform in 1..this (default 5)
    - `max_distractors`: distractors are uniform in 0..this (default 5), each of length 1
    - `max_steps`: steps after which an episode is truncated; by default two for each cell of the room, 392 for 14 x 14.
      The papers name none. An agent that knows the room needs 42 steps on average and 101 at most (3,000 levels).
    - `min_solution_length`, `min_distractors`: the smallest of these numbers (default 1 and 0)
    - `gem_distractors`: whether the key of the gem's box may open distractors, too (default True). The gem can be seen,
      so such a choice is easy. With False, solutions of two boxes or more have distractors at other choices only:
      between boxes of which one holds the key of another box.
    - `render_mode`: "rgb_array" or "ansi"; pictures show the whole room with the window marked, and below it
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
        min_solution_length: int = 1,
        min_distractors: int = 0,
        gem_distractors: bool = True,
        render_mode: str | None = None,
    ) -> None:
        """See the class; raises ValueError for a value that is not allowed."""
        rooms = Rooms(
            1,
            room_size,
            viewport,
            max_solution_length,
            max_distractors,
            max_steps,
            min_solution_length,
            min_distractors,
            gem_distractors,
        )
        super().__init__(rooms, render_mode)


class BoxWorldVectorEnv(NativeVectorEnv):
    """Many rooms of BoxWorld (`BoxWorldEnv` describes them and their arguments) in one compiled loop, on one thread.

    Observations are [N, height, width, 3], rewards float32; `infos` are arrays [N], int64 and for `is_success` bool.
    """

    metadata = METADATA
    task = Rooms
    lanes: Rooms
