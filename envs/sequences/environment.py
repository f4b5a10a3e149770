"""Sequences as a gymnasium environment and as a vector environment. The rules are in `base`."""

from typing import Any

from rmc_agents.envs.native import NativeEnv, NativeVectorEnv

from .base import Sequences

METADATA: dict[str, Any] = {"render_modes": ["rgb_array", "ansi"], "render_fps": 4}


def _metadata(sequences: Sequences) -> dict[str, Any]:
    known = {"vocabulary": sequences.vocabulary_fingerprint(), "num_episodes": sequences.num_episodes()}
    metadata = {"chance": sequences.chance, "action_names": sequences.action_names()}
    return metadata | {name: value for name, value in known.items() if value}


class SequenceEnv(NativeEnv):
    """One lane of sequences as a gymnasium environment; `info["target"]` is the right action, -1 where none is asked.

    The reward is 1 for the right action where one is asked, else 0 (in `NthFarthestEnv` and `ProgramEnv`, only at the
    end). The episode terminates with the sequence; `info["is_success"]` then says whether every answer was right, if
    they form one answer together.

    Args:
        sequences: of one lane.
        render_mode: "rgb_array" or "ansi": `render` returns the observation in words.

    Attributes:
        metadata: with `chance`, the accuracy of guessing, and `action_names`.
    """

    metadata = METADATA

    def __init__(self, sequences: Sequences, render_mode: str | None) -> None:
        super().__init__(sequences, render_mode)
        self.metadata = self.metadata | _metadata(sequences)


class SequenceVectorEnv(NativeVectorEnv):
    """Many lanes of sequences; for rewards and infos see `SequenceEnv`. Rewards are float32.

    Attributes:
        metadata: with `chance`, the accuracy of guessing, and `action_names`.
    """

    metadata = METADATA
    lanes: Sequences

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.metadata = self.metadata | _metadata(self.lanes)

    def check_unroll(self, unroll_length: int, lanes: int) -> None:
        """Raises ValueError if there is too little data for one rollout of `unroll_length` steps in `lanes` lanes."""
        self.lanes.check_unroll(unroll_length, lanes)
