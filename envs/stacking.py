"""The last K observations as one, for measuring what a core's memory is worth beside a short, exact one."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.spaces import Box, MultiDiscrete
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from .vector_checks import check_field_names


class StackedViews(VectorWrapper):
    """A vector environment that shows the last `num_views` observations of the episode as one (Mnih et al., 2015).

    They are joined along the last axis, the newest last: `[N, 5, 5, 3]` becomes `[N, 5, 5, 3 * num_views]`. Zeros stand
    before an episode's first observation. An episode's last observation is stacked on those of its own episode. Every
    array that is returned is new.

    Args:
      env: a NEXT_STEP vector environment whose observations are arrays, of one axis or more.
      num_views: how many observations make one, at least 2.

    Raises:
      ValueError: for another autoreset mode, other observations, or less than 2 views.
    """

    def __init__(self, env: VectorEnv, num_views: int) -> None:
        """See the class."""
        super().__init__(env)
        space = env.single_observation_space
        if env.metadata.get("autoreset_mode") != AutoresetMode.NEXT_STEP:
            raise ValueError(f"expected a vector environment with NEXT_STEP autoreset, got {env.metadata}")
        if not isinstance(space, Box | MultiDiscrete) or not space.shape:
            raise ValueError(f"expected pictures or vectors to stack, got observations in {space}")
        if num_views < 2:
            raise ValueError(f"num_views: expected at least 2, got {num_views}")
        self.num_views = num_views
        self._channels = space.shape[-1]
        self.single_observation_space = _stacked_space(space, num_views)
        self.observation_space = batch_space(self.single_observation_space, env.num_envs)
        self._stack = np.zeros((env.num_envs, *self.single_observation_space.shape), space.dtype)
        self._is_last = np.zeros(env.num_envs, np.bool_)  # [N]: the newest view is its episode's last

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[NDArray, dict[str, Any]]:
        """As the environment's; with `reset_mask` in `options` the other lanes' stacks stay as they are."""
        starts = np.ones(self.num_envs, np.bool_)
        if options is not None and "reset_mask" in options:
            starts = options["reset_mask"]  # before the reset: gymnasium's SyncVectorEnv takes it out of the options
        obs, infos = self.env.reset(seed=seed, options=options)
        self._stack[starts] = 0
        self._stack[starts, ..., -self._channels :] = obs[starts]
        self._is_last &= ~starts
        return self._stack.copy(), infos

    def step(self, actions: Any) -> tuple[NDArray, NDArray, NDArray, NDArray, dict[str, Any]]:
        """As the environment's."""
        obs, rewards, terminated, truncated, infos = self.env.step(actions)
        self._push(obs, is_first=self._is_last)
        self._is_last = terminated | truncated
        return self._stack.copy(), rewards, terminated, truncated, infos

    def _push(self, obs: NDArray, is_first: NDArray[np.bool_]) -> None:
        """Make `obs` `[N, ..., C]` the newest view, the only one where `is_first` `[N]`."""
        # All numbers in a row move up by one view: one copy of memory instead of one a pixel.
        # What comes over from the next pixel lands where the newest view is then written.
        stack = np.empty_like(self._stack)
        stack.reshape(-1)[: -self._channels] = self._stack.reshape(-1)[self._channels :]
        if is_first.any():
            stack[is_first] = 0
        stack[..., -self._channels :] = obs
        self._stack = stack


def _stacked_space(space: Box | MultiDiscrete, num_views: int) -> Box | MultiDiscrete:
    """The space of so many views joined along the last axis; a box has room for the zeros too."""
    if isinstance(space, MultiDiscrete):
        return MultiDiscrete(np.concatenate([space.nvec] * num_views, axis=-1), dtype=space.dtype)
    low, high = (np.concatenate([bound] * num_views, axis=-1) for bound in (space.low, space.high))
    return Box(np.minimum(low, 0), np.maximum(high, 0), dtype=space.dtype)


class SavableStackedViews(StackedViews):
    """`StackedViews` of an environment whose state can be saved."""

    def get_state(self) -> dict[str, Any]:
        """The environment's state, and copies of the stack and of the flags that restart it."""
        env = self.env.get_state()  # type: ignore[attr-defined]
        return {"env": env, "stack": self._stack.copy(), "is_last": self._is_last.copy()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Takes over what `get_state` of a vector environment with the same settings returned.

        Raises:
          ValueError: naming the first field that does not fit.
        """
        check_field_names(state, ("env", "stack", "is_last"))
        for name, expected in (("stack", self._stack), ("is_last", self._is_last)):
            received = state[name]
            if received.shape != expected.shape or received.dtype != expected.dtype:
                raise ValueError(
                    f"state field {name!r}: expected {expected.dtype} {expected.shape}, "
                    f"received {received.dtype} {received.shape}"
                )
        self.env.set_state(state["env"])  # type: ignore[attr-defined]
        self._stack, self._is_last = state["stack"].copy(), state["is_last"].copy()


def stack_views(env: VectorEnv, num_views: int) -> StackedViews:
    """The environment with stacked views, savable if it was. Raises ValueError as `StackedViews` does."""
    kind = SavableStackedViews if hasattr(env, "get_state") else StackedViews
    return kind(env, num_views)
