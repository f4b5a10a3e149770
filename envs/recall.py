"""A minimal task that needs memory: a cue, a delay, a choice."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.spaces import Box, Discrete

from .checks import checked_int, checked_render_mode

WAIT = 0
CELL, BORDER = 90, 6  # pixels
BLANK, SECRET, LIT, SIGNAL = (38, 43, 58), (110, 118, 138), (245, 184, 61), (95, 211, 166)


class RecallEnv(gym.Env):
    """Recall: observe a cue, wait, then name it.

    ## Description
    The first observation shows one of `num_cues` cues. `delay` blank observations follow, then a signal to answer.
    Waiting until the signal is enforced: otherwise an agent could store the cue in its previous action, which it
    observes.

    ## Action space
    | action | meaning |
    |---|---|
    | 0 | wait |
    | 1 ... num_cues | name this cue |

    ## Observation
    `float32` vector: the cue one-hot (zeros after the first step), then 1 at the signal to answer.

    ## Rewards
    1 for the correct answer, 0 for a wrong one, -1 for an invalid action: naming a cue before the signal, or
    waiting at it.

    ## Termination
    After the answer, or after an invalid action. `info["is_success"]` says whether the answer was correct. Without
    memory, success cannot exceed 1 / num_cues.

    ## Pictures
    With `render_mode="rgb_array"`: a square for each cue, lit while it is shown, and a bar below them, lit at the
    signal to answer. The frame around the correct cue is not part of the observation.

    ## Registered configurations
    - `Recall-v0`: 3 cues, delay 3.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 2}  # noqa: RUF012

    def __init__(self, num_cues: int = 3, delay: int = 3, render_mode: str | None = None) -> None:
        self.num_cues, self.delay = checked_int("num_cues", num_cues, 2), checked_int("delay", delay, 0)
        self.render_mode = checked_render_mode(render_mode, self.metadata["render_modes"])
        self._cue, self._time, self._is_over = -1, -1, True
        self.observation_space = Box(0.0, 1.0, (num_cues + 1,), np.float32)
        self.action_space = Discrete(num_cues + 1)
        self.metadata = self.metadata | {"action_names": ["wait", *(f"cue {i + 1}" for i in range(num_cues))]}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._cue = int(self.np_random.integers(self.num_cues))
        self._time, self._is_over = 0, False
        return self._observe(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Wait, or answer. Raises ResetNeeded before a reset and after the episode's end, ValueError for no action."""
        if self._is_over:
            raise ResetNeeded("step was called before reset, or after the episode's end: call reset first")
        action = checked_int("action", action, 0, self.num_cues)
        self._is_over = self._time > self.delay or action != WAIT
        if self._time <= self.delay:
            self._time += 1
            waited = action == WAIT
            info = {} if waited else {"is_success": False}
            return self._observe(), 0.0 if waited else -1.0, not waited, False, info
        right = bool(action == self._cue + 1)
        reward = -1.0 if action == WAIT else float(right)
        return self._observe(), reward, True, False, {"is_success": right}

    def render(self) -> np.ndarray | None:
        """The current observation as an image, uint8 [2 CELL, num_cues CELL, 3]; None without a render mode."""
        if self.render_mode is None:
            return None
        self._check_begun("render")
        obs = self._observe()
        picture = np.zeros((2 * CELL, self.num_cues * CELL, 3), np.uint8)
        for cue in range(self.num_cues):
            left, right = cue * CELL + BORDER, (cue + 1) * CELL - BORDER
            picture[BORDER : CELL - BORDER, left:right] = SECRET if cue == self._cue else BLANK
            inside = slice(2 * BORDER, CELL - 2 * BORDER), slice(left + BORDER, right - BORDER)
            picture[inside] = LIT if obs[cue] else BLANK
        picture[CELL + BORDER : -BORDER, BORDER:-BORDER] = SIGNAL if obs[-1] else BLANK
        return picture

    def get_state(self) -> dict[str, int]:
        """What `set_state` needs to continue the episode. Raises ResetNeeded before the first reset."""
        self._check_begun("get_state")
        return {"cue": self._cue, "time": self._time, "over": self._is_over}

    def set_state(self, state: dict[str, int]) -> None:
        """Continue an episode. Raises ValueError for an impossible cue or time."""
        cue, time = state["cue"], state["time"]
        if cue not in range(self.num_cues) or time not in range(self.delay + 2):
            raise ValueError(
                f"expected a cue below {self.num_cues} and a time of at most {self.delay + 1}, got {state}"
            )
        self._cue, self._time, self._is_over = cue, time, bool(state.get("over", False))  # older ones lack it

    def _check_begun(self, method: str) -> None:
        if self._time < 0:
            raise ResetNeeded(f"{method} was called before reset: call reset first")

    def _observe(self) -> np.ndarray:
        obs = np.zeros(self.num_cues + 1, np.float32)
        if self._time == 0:
            obs[self._cue] = 1.0
        obs[-1] = self._time > self.delay
        return obs
