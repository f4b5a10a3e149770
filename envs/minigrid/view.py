"""MiniGrid's observations as a vector of categories that an agent can take."""

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Discrete, MultiDiscrete, Space
from minigrid.core.constants import COLOR_TO_IDX, OBJECT_TO_IDX, STATE_TO_IDX
from minigrid.core.mission import MissionSpace
from minigrid.envs import MemoryEnv
from numpy.typing import NDArray

from rmc_agents.envs.checks import checked_choice, checked_odd

CELL_CATEGORIES = (len(OBJECT_TO_IDX), len(COLOR_TO_IDX), len(STATE_TO_IDX))
DIRECTIONS = 4
ACTION_SETS = {"all": None, "moves": 3}
"""Action set -> number of actions, from the first on; None: all."""
MAX_VIEW = 63
MAX_MISSIONS = 10_000  # sentences, of which there is a table
ROOM_END = 4  # MemoryEnv: the column in which the room with the cue ends


class MiniGridView(gym.Wrapper):
    """The agent's egocentric view, its direction and the words of its mission, as one vector of categories.

    ## Observation

    `MultiDiscrete`, `uint8`. The numbers are categories: a network should sum learned embeddings of each (entry,
    category). This equals a linear map of the one-hot entries, but takes 25 % of that map's
    time in the forward pass, and about 40 % in forward and backward together.

    | entries                    | categories | what                                                               |
    |----------------------------|------------|--------------------------------------------------------------------|
    | 3 * view_size**2           | 11, 6, 3   | object, colour, state of each cell, in the order of `image.ravel()` |
    | 1                          | 4          | direction the agent faces: right, down, left, up                   |
    | 1 for each word that varies | vocabulary | its place in the sorted vocabulary, as in `MissionWords`           |

    Previous action and reward are not included: agents receive them in every environment.

    At the end of an episode, `info["is_success"]` says whether it was solved, which in MiniGrid means a
    positive reward. In MemoryEnv `info["corridor_length"]`, at every step, is the number of cells between the room with
    the cue and the crossing.

    Args:
      env: a MiniGrid environment with a dictionary observation.
      view_size: side of the view in cells, odd; None: as the environment has it (7).
      actions: "moves" leaves only left, right and forward. In MemoryEnv the other four have no effect, so there is
        less to explore: there is no door, and picking up is turned into toggling, which does nothing to keys and balls.

    Raises:
      ValueError: for another view size or action set, or missions in free text (BabyAI's); from `reset` and `step` for
        a mission that is not of its space, and for a cell outside MiniGrid's categories.
    """

    def __init__(self, env: gym.Env, view_size: int | None = None, actions: str = "all") -> None:
        super().__init__(env)
        if view_size is not None:
            _set_view_size(env, view_size)
        space = env.observation_space
        assert isinstance(space, gym.spaces.Dict)
        self._mission = MissionWords(space.spaces.get("mission"))
        height, width = space["image"].shape[:2]  # type: ignore[index]
        self.observation_space = view_space(height * width, self._mission.categories)
        assert isinstance(env.action_space, Discrete)
        self.action_space = Discrete(num_actions(actions, int(env.action_space.n)))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[NDArray, dict]:
        obs, info = self.env.reset(seed=seed, options=options)
        return self._view(obs), info | self._corridor()

    def step(self, action: Any) -> tuple[NDArray, float, bool, bool, dict[str, Any]]:
        """As in gymnasium, with `is_success` in the info of an episode's last step."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        info = info | self._corridor()
        if terminated or truncated:
            info["is_success"] = bool(terminated and float(reward) > 0)
        return self._view(obs), float(reward), terminated, truncated, info

    def _corridor(self) -> dict[str, int]:
        env = self.unwrapped
        return {"corridor_length": env.success_pos[0] - 1 - ROOM_END} if isinstance(env, MemoryEnv) else {}

    def _view(self, obs: dict[str, Any]) -> NDArray[np.uint8]:
        words = self._mission.numbers(obs["mission"]) if "mission" in obs else ()
        view = np.concatenate([obs["image"].ravel(), (obs["direction"], *words)])
        assert isinstance(self.observation_space, MultiDiscrete)
        if (view >= self.observation_space.nvec).any():
            raise ValueError(
                f"expected cells of at most {CELL_CATEGORIES} objects, colours and states, got an image with "
                f"{tuple(int(n) + 1 for n in obs['image'].max(axis=(0, 1)))}; wrap the environment to give others"
            )
        return view.astype(np.uint8)


class MissionWords:
    """The words of a mission that vary from episode to episode, as numbers.

    Args:
      space: MiniGrid's `MissionSpace`: a sentence with places, and the words that may stand in each. Places with a
        single word do not count. None: there is no mission.

    Attributes:
      categories: the vocabulary size of each varying word.

    Raises:
      ValueError: for free text instead, or too many sentences.
    """

    def __init__(self, space: Space | None) -> None:
        is_sentence = isinstance(space, MissionSpace) and type(space).contains is MissionSpace.contains
        if space is not None and not is_sentence:  # BabyAI's contains every text
            raise ValueError(
                "expected missions of one sentence with varying words, a MissionSpace, got a "
                f"{type(space).__name__} (as in BabyAI), which agents cannot read; wrap the environment"
            )
        places = [sorted(words) for words in getattr(space, "ordered_placeholders", None) or ()]
        if (number := math.prod(map(len, places))) > MAX_MISSIONS:
            raise ValueError(f"expected at most {MAX_MISSIONS:,} different missions, got {number:,}")
        varying = [i for i, words in enumerate(places) if len(words) > 1]
        self._vocabularies = [places[i] for i in varying]
        self.categories = tuple(map(len, self._vocabularies))
        self._numbers: dict[str, tuple[int, ...]] = {}
        if isinstance(space, MissionSpace):
            for words in product(*places):
                self._numbers[space.mission_func(*words)] = tuple(places[i].index(words[i]) for i in varying)

    def numbers(self, mission: str) -> tuple[int, ...]:
        """The index of each varying word in its sorted vocabulary. Raises ValueError for any other sentence."""
        if mission not in self._numbers:
            vocabulary = "; ".join(map(", ".join, self._vocabularies)) or "none: it is fixed"
            raise ValueError(
                f"the mission {mission!r} is not of its MissionSpace, whose varying words are {vocabulary}"
            )
        return self._numbers[mission]


def view_space(cells: int, words: Sequence[int] = ()) -> MultiDiscrete:
    """The observation space, see `MiniGridView`, for a number of cells and the vocabulary size of each word."""
    return MultiDiscrete([*CELL_CATEGORIES * cells, DIRECTIONS, *words], dtype="uint8")


def num_actions(actions: str, available: int) -> int:
    """The number of actions in a set. Raises ValueError for an unknown set."""
    return min(available, ACTION_SETS[checked_choice("actions", actions, ACTION_SETS)] or available)


def checked_view_size(view_size: int) -> int:
    """The side of a view. Raises ValueError if the agent could not stand in the middle of it."""
    return checked_odd("view_size", view_size, 3, MAX_VIEW)


def _set_view_size(env: gym.Env, view_size: int) -> None:
    """Change the view size of MiniGrid's environment. Its ViewSizeWrapper would compute both views and draw the old."""
    base: Any = env.unwrapped
    base.agent_view_size = checked_view_size(view_size)
    image = gym.spaces.Box(0, 255, (view_size, view_size, 3), np.uint8)
    base.observation_space = gym.spaces.Dict({**base.observation_space.spaces, "image": image})
