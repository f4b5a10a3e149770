"""All kinds of native environments, with settings with which episodes end within a few steps."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from rmc_agents.envs.boxworld import BoxWorldEnv, BoxWorldVectorEnv
from rmc_agents.envs.minigrid.vector import MemoryVectorEnv
from rmc_agents.envs.minipacman.env import MiniPacmanEnv, MiniPacmanVectorEnv
from rmc_agents.envs.native import NativeEnv, NativeVectorEnv
from rmc_agents.envs.sequences.nth_farthest import NthFarthestEnv, NthFarthestVectorEnv
from rmc_agents.envs.sequences.programs import ProgramEnv, ProgramVectorEnv
from rmc_agents.envs.sequences.text import TextEnv, TextVectorEnv


class Kind(NamedTuple):
    """The classes, single and vector, and settings of both; `single` is None where it is not ours."""

    single: Callable[..., NativeEnv] | None
    vector: Callable[..., NativeVectorEnv]
    settings: dict[str, Any]

    @property
    def env_id(self) -> str:
        """The id that gymnasium knows."""
        return f"rmc_agents.envs:{self.vector.__name__.removesuffix('VectorEnv')}-v0"

    def one(self, **more: Any) -> NativeEnv:
        """A single environment."""
        assert self.single is not None
        return self.single(**self.settings, **more)

    def lanes(self, num_envs: int, **more: Any) -> NativeVectorEnv:
        """A vector environment."""
        return self.vector(num_envs, **self.settings, **more)


MINIPACMAN, BOXWORLD = (MiniPacmanEnv, MiniPacmanVectorEnv), (BoxWorldEnv, BoxWorldVectorEnv)
NTH_FARTHEST, PROGRAM = (NthFarthestEnv, NthFarthestVectorEnv), (ProgramEnv, ProgramVectorEnv)
TINY_ROOM: dict[str, Any] = {"room_size": 4, "max_solution_length": 1, "max_distractors": 0}

SEQUENCES = {
    "nth-farthest": Kind(*NTH_FARTHEST, {"vectors": 4, "size": 3, "fewest": 2, "thinking": 1}),
    "asked every time": Kind(*NTH_FARTHEST, {"vectors": 4, "size": 3, "most": 3, "active": 2, "ask": "every"}),
    "program": Kind(*PROGRAM, {"nesting": 1, "length": 1}),
    "copy": Kind(*PROGRAM, {"task": "copy", "length": 3, "teacher_forcing": True}),
    "text": Kind(TextEnv, TextVectorEnv, {"path": Path(__file__).parent / "texts", "steps": 7}),
}
PAIRS = SEQUENCES | {
    "minipacman": Kind(*MINIPACMAN, {"frame_cap": 30}),
    "minipacman avoid": Kind(*MINIPACMAN, {"mode": "avoid", "viewport": None, "frame_cap": 30}),
    "minipacman hunt": Kind(*MINIPACMAN, {"mode": "hunt", "frame_cap": 40}),
    "boxworld": Kind(*BOXWORLD, {"max_steps": 30}),
    "boxworld tiny": Kind(*BOXWORLD, {**TINY_ROOM, "viewport": None}),
}
"""Those whose single environment is native too."""
ALL = PAIRS | {"memory": Kind(None, MemoryVectorEnv, {"size": 7, "max_steps": 50, "actions": "moves"})}
