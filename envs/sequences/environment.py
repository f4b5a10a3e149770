"""Sequences as a gymnasium environment and as a vector environment; the rules are in `base`."""

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import ArrayLike, NDArray

from rmc_agents.envs.vector_checks import (
    as_autoreset_mode,
    checked_actions,
    checked_render_mode,
    checked_reset_mask,
    final_infos,
    lane_seeds,
    refuse_ended,
)

from .base import Observations, Sequences
from .drawing import draw_text

METADATA: dict[str, Any] = {"render_modes": ["rgb_array", "ansi"], "render_fps": 4}


class SequenceEnv(gym.Env[Observations, Any]):
    """One lane of sequences as a gymnasium environment; `info["target"]` is the right action, -1 where none is asked.

    The reward is 1 after the right action where one was asked, else 0. The episode terminates with the sequence;
    `info["is_success"]` then tells whether every answer was right, where they are one answer together.

    Args:
        sequences: of one lane.
        render_mode: "rgb_array" or "ansi": `render` returns the observation in words.
    """

    metadata = METADATA

    def __init__(self, sequences: Sequences, render_mode: str | None) -> None:
        """See the class."""
        self.render_mode = checked_render_mode(render_mode, METADATA["render_modes"])
        self.metadata = {**METADATA, "chance": sequences.chance}
        self.sequences = sequences
        self.observation_space, self.action_space = sequences.observation_space, sequences.action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observations, dict[str, Any]]:
        """Starts a sequence: (observation, info). Without a seed the random numbers go on; `options` is not used."""
        super().reset(seed=seed)
        self.sequences.begin(np.ones(1, np.bool_), [seed], self.np_random)
        return self.sequences.observe()[0], self._info()

    def step(self, action: int) -> tuple[Observations, float, bool, bool, dict[str, Any]]:
        """One step: (observation, reward, terminated, truncated, info).

        Raises:
            ValueError: for an action outside of the action space.
            ResetNeeded: before the first reset and after an episode's end.
        """
        if not self.action_space.contains(action):
            raise ValueError(f"action: expected an int in 0..{self.sequences.action_space.n - 1}, received {action!r}")
        if self.sequences.state.time[0] == self.sequences.state.length[0]:
            raise ResetNeeded("step was called after the episode's end: call reset first")
        rewards, ended = self.sequences.step(np.array([action], np.int64))
        info = self._info()
        if ended[0] and self.sequences.is_answer_whole:
            info["is_success"] = bool(self.sequences.state.all_right[0])
        return self.sequences.observe()[0], float(rewards[0]), bool(ended[0]), False, info

    def render(self) -> NDArray[np.uint8] | str | None:
        """The observation in words, as a picture uint8 [H, W, 3] or as text; None without a render_mode."""
        return None if _warned(self.render_mode) else _drawn(self.sequences, 0, self.render_mode)

    def get_state(self) -> dict[str, NDArray[Any]]:
        """Copies of everything that decides how the sequences go on."""
        return self.sequences.get_state()

    def set_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Takes over what `get_state` of any environment with the same settings returned; raises ValueError."""
        self.sequences.set_state(state)

    def _info(self) -> dict[str, Any]:
        return {"target": int(self.sequences.targets()[0])}


class SequenceVectorEnv(VectorEnv[Observations, ArrayLike, NDArray[Any]]):
    """Many lanes of sequences (`SequenceEnv` tells of rewards and infos), all stepped at once on one thread.

    It behaves like gymnasium's SyncVectorEnv of the same sequences, lane by lane and seed by seed. Every array it
    returns is new. Rewards are float32; `infos["target"]` is int64 [N].

    Args:
        sequences: of all lanes.
        render_mode: "rgb_array" or "ansi": `render` returns the observation of each lane in words.
        autoreset_mode: an `AutoresetMode` or its name, "next_step", "same_step" or "disabled" in any spelling.

    Attributes:
        metadata: with `chance`, the share of right answers that guessing gets.
    """

    metadata = METADATA

    def __init__(self, sequences: Sequences, render_mode: str | None, autoreset_mode: AutoresetMode | str) -> None:
        """See the class."""
        self.sequences = sequences
        self.num_envs = len(sequences.state.time)
        self.render_mode = checked_render_mode(render_mode, METADATA["render_modes"])
        self.autoreset_mode = as_autoreset_mode(autoreset_mode)
        self.metadata = {**METADATA, "autoreset_mode": self.autoreset_mode, "chance": sequences.chance}
        self.single_observation_space, self.single_action_space = sequences.observation_space, sequences.action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observations, dict[str, Any]]:
        """Starts sequences: (observations [N, ...], infos).

        Args:
            seed: lane i gets seed + i, or the i-th of a sequence; None lets a lane's random numbers go on.
            options: with `reset_mask`, bool [N], only the lanes with True start anew; the others' observations are
                returned as they are, and `infos` covers the lanes that started. The dict is left as it is.

        Raises:
            ValueError: for seeds below 0 or seeds or a mask of another length, a mask that is not bool or has no True,
                or one that leaves out a lane that was never reset.
        """
        seeds = lane_seeds(seed, self.num_envs)
        mask = checked_reset_mask(options, self.sequences.state.time >= 0)
        super().reset(seed=int(seed) if isinstance(seed, int | np.integer) else None)
        self.sequences.begin(mask, seeds, self.np_random)
        return self.sequences.observe(), self._infos(mask)

    def step(
        self, actions: ArrayLike
    ) -> tuple[Observations, NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """One step of every lane: (observations, rewards, terminated, truncated, infos).

        Args:
            actions: ints in the action space, [N].

        Raises:
            ValueError: for actions of another shape, kind or range.
            ResetNeeded: before the first reset, and with autoreset disabled while a finished lane waits for a reset.
        """
        sequences = self.sequences
        checked = checked_actions(actions, self.num_envs, int(sequences.action_space.n))
        if self.autoreset_mode == AutoresetMode.DISABLED:
            refuse_ended(sequences.state.time == sequences.state.length)
        rewards, ended = sequences.step(checked)
        infos: dict[str, Any] = {}
        if sequences.is_answer_whole and ended.any():
            infos = {"is_success": ended & sequences.state.all_right, "_is_success": ended.copy()}
        if self.autoreset_mode == AutoresetMode.SAME_STEP and ended.any():
            infos = final_infos(sequences.observe(), {**infos, **self._infos(ended)}, ended)
            sequences.start(ended)
        infos |= self._infos(np.ones(self.num_envs, np.bool_))
        return sequences.observe(), rewards, ended, np.zeros(self.num_envs, np.bool_), infos

    def render(self) -> tuple[NDArray[np.uint8] | str, ...] | None:
        """The observation of each lane in words, as pictures or as text; None without a render_mode."""
        if _warned(self.render_mode):
            return None
        return tuple(_drawn(self.sequences, lane, self.render_mode) for lane in range(self.num_envs))

    def get_state(self) -> dict[str, NDArray[Any]]:
        """Copies of everything that decides how the sequences go on."""
        return self.sequences.get_state()

    def set_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Takes over what `get_state` of any vector environment with the same settings returned; raises ValueError."""
        self.sequences.set_state(state)

    def check_unroll(self, unroll_length: int) -> None:
        """Raises ValueError if there is less to learn from than one rollout of so many steps in all lanes takes."""
        self.sequences.check_unroll(unroll_length)

    def _infos(self, mask: NDArray[np.bool_]) -> dict[str, Any]:
        """Infos of the lanes of `mask`, in the form of gymnasium's vector environments: 0 in the other lanes."""
        return {"target": np.where(mask, self.sequences.targets(), 0), "_target": mask.copy()}


def _warned(render_mode: str | None) -> bool:
    """Whether there is no render_mode, of which a caller of `render` is warned."""
    if render_mode is None:
        gym.logger.warn("render was called without a render_mode: nothing is drawn")
    return render_mode is None


def _drawn(sequences: Sequences, lane: int, render_mode: str | None) -> NDArray[np.uint8] | str:
    if sequences.state.time[lane] < 0:
        raise ResetNeeded("render was called before reset")
    text = sequences.describe(lane)
    return text if render_mode == "ansi" else draw_text(text)
