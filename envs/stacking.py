"""Frame stacking: a short, exact memory as a baseline for recurrent cores."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.spaces import Box, MultiDiscrete
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from .checks import check_field_names, copied_like
from .token_space import Tokens


class StackedViews(VectorWrapper):
    """A vector environment that shows the last `num_views` observations of the episode as one (Mnih et al., 2015).

    They are concatenated along the last axis, the newest last: `[N, 5, 5, 3]` becomes `[N, 5, 5, 3 * num_views]`, and
    `[N, 84, 84]`, without an axis of channels, `[N, 84, 84, num_views]`. Channels that come first are not found. The
    stack is zero before an episode's first observation. An episode's last observation is stacked with its own episode.
    Every returned array is new.

    Args:
      env: a NEXT_STEP vector environment with array observations of at least one axis.
      num_views: observations per stack, at least 2.

    Raises:
      ValueError: for another autoreset mode, other observations, fewer than 2 views, or tokens, whose embeddings
        are summed.
    """

    def __init__(self, env: VectorEnv, num_views: int) -> None:
        super().__init__(env)
        space = env.single_observation_space
        if env.metadata.get("autoreset_mode") != AutoresetMode.NEXT_STEP:
            raise ValueError(f"expected a vector environment with NEXT_STEP autoreset, got {env.metadata}")
        if isinstance(space, Tokens):
            raise ValueError("expected images or vectors to stack, got tokens: the views could not be told apart")
        if not isinstance(space, Box | MultiDiscrete) or not space.shape:
            raise ValueError(f"expected images or vectors to stack, got observations in {space}")
        if isinstance(space, MultiDiscrete) and np.any(space.start):
            raise ValueError(f"expected categories that count from 0 to stack, got observations in {space}")
        if num_views < 2:
            raise ValueError(f"num_views: expected at least 2, got {num_views}")
        self.num_views = num_views
        self._has_channels = len(space.shape) != 2 or not isinstance(space, Box)
        self._channels = space.shape[-1] if self._has_channels else 1
        self.single_observation_space = self._stacked_space(space)
        self.observation_space = batch_space(self.single_observation_space, env.num_envs)
        self._stack = np.zeros((env.num_envs, *self.single_observation_space.shape), space.dtype)
        self._is_last = np.zeros(env.num_envs, np.bool_)  # [N]: the newest view is the episode's last

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[NDArray, dict[str, Any]]:
        """As the environment's; with `reset_mask` in `options` the stacks of the other lanes are unchanged."""
        starts = np.ones(self.num_envs, np.bool_)
        if options is not None and "reset_mask" in options:
            starts = options["reset_mask"]  # before the reset: gymnasium's SyncVectorEnv removes it from the options
        obs, infos = self.env.reset(seed=seed, options=options)
        self._stack[starts] = 0
        self._stack[starts, ..., -self._channels :] = self._with_channels(obs)[starts]
        self._is_last &= ~starts
        return self._stack.copy(), infos

    def step(self, actions: Any) -> tuple[NDArray, NDArray, NDArray, NDArray, dict[str, Any]]:
        obs, rewards, terminated, truncated, infos = self.env.step(actions)
        self._push(obs, is_first=self._is_last)
        self._is_last = terminated | truncated
        return self._stack.copy(), rewards, terminated, truncated, infos

    def _push(self, obs: NDArray, is_first: NDArray[np.bool_]) -> None:
        """Make `obs` `[N, ..., C]` the newest view, the only one where `is_first` `[N]`."""
        # Shift each row as a whole by one view: one memory copy instead of one per pixel. Values that cross from the
        # next pixel land where the newest view is written afterwards.
        stack = np.empty_like(self._stack)
        stack.reshape(-1)[: -self._channels] = self._stack.reshape(-1)[self._channels :]
        if is_first.any():
            stack[is_first] = 0
        stack[..., -self._channels :] = self._with_channels(obs)
        self._stack = stack

    def _stacked_space(self, space: Box | MultiDiscrete) -> Box | MultiDiscrete:
        """The space of all views; a Box is extended to contain 0."""
        if isinstance(space, MultiDiscrete):
            return MultiDiscrete(np.concatenate([space.nvec] * self.num_views, axis=-1), dtype=space.dtype)
        bounds = (self._with_channels(bound) for bound in (space.low, space.high))
        low, high = (np.concatenate([bound] * self.num_views, axis=-1) for bound in bounds)
        return Box(np.minimum(low, 0), np.maximum(high, 0), dtype=space.dtype)

    def _with_channels(self, views: NDArray) -> NDArray:
        """Views `[..., C]` from the environment's."""
        return views if self._has_channels else views[..., None]


class SavableStackedViews(StackedViews):
    """`StackedViews` of an environment that can save its state."""

    def get_state(self) -> dict[str, Any]:
        """The environment's state, with copies of the stack and of the flags that restart it."""
        env = self.env.get_state()  # type: ignore[attr-defined]
        return {"env": env, "stack": self._stack.copy(), "is_last": self._is_last.copy()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `get_state` of a vector environment with the same settings.

        Raises:
          ValueError: naming the first field that does not fit.
        """
        check_field_names(state, ("env", "stack", "is_last"))
        own = copied_like(state, {"stack": self._stack, "is_last": self._is_last})
        self.env.set_state(state["env"])  # type: ignore[attr-defined]
        self._stack, self._is_last = own["stack"], own["is_last"]


def stack_views(env: VectorEnv, num_views: int) -> StackedViews:
    """The environment with stacked views, savable if it was. Raises ValueError as `StackedViews` does."""
    kind = SavableStackedViews if hasattr(env, "get_state") else StackedViews
    return kind(env, num_views)
