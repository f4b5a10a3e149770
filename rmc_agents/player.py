"""An agent at play outside of this project's loops: the one place that keeps a recurrent state between calls."""

from typing import Any, Self

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from rmc_agents.collect import choose
from rmc_agents.runs.saved import SavedAgent
from rmc_agents.types import Policy, SpaceSpec, TimeStep


class Player:
    """Plays an agent one observation at a time, and keeps for it what it has to remember.

    That is the core's state, the previous action, and where episodes begin: there the state is reset before the
    observation is consumed, as in training. One environment takes plain observations and gives plain actions:

        player = Player(rmc.load("recall-rmc"))
        obs, _ = env.reset()
        action = player.act(obs)  # an episode's first observation comes without a reward
        while True:
            obs, reward, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                obs, _ = env.reset()
            action = player.act(obs, reward, terminated, truncated)

    With several, everything has the lanes as its first axis, and `autoreset_mode` says what the observation is that
    comes with `terminated` or `truncated`, which nothing else could tell. NEXT_STEP: the last of the episode that has
    ended; the lane's next one is the first of the next episode, and the action in between is ignored. SAME_STEP: the
    first of the next episode already. DISABLED: likewise, since the caller resets the lanes that have ended before the
    agent acts again, with `env.reset(options={"reset_mask": terminated | truncated})`.

    One environment resets like DISABLED: whether it is reset before the call, as above, or after it and followed by
    `act(obs)` alone, a new episode begins. In `gymnasium.wrappers.Autoreset` it needs NEXT_STEP.

    Args:
      agent: what `rmc.load` gives, or an `ActorCritic`, which plays in the mode (train or eval) that it is in.
      num_envs: lanes, B.
      deterministic: take the likeliest action instead of drawing one.
      seed: of the draws.
      autoreset_mode: see above; None: DISABLED for plain observations, NEXT_STEP for lanes, as gymnasium has it.

    Raises:
      ValueError: for less than one lane, or an agent of which it is not known what observations it takes.
    """

    def __init__(
        self,
        agent: SavedAgent[Any] | Policy,
        num_envs: int = 1,
        deterministic: bool = False,
        seed: int = 0,
        autoreset_mode: AutoresetMode | None = None,
    ) -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs: expected at least 1, got {num_envs}")
        self.policy: Policy = agent.agent if isinstance(agent, SavedAgent) else agent
        self.spec: SpaceSpec = getattr(agent, "spec", None)  # type: ignore[assignment]
        if self.spec is None:
            raise ValueError(f"agent: expected an ActorCritic or what rmc.load gives, got {type(agent).__name__}")
        self.num_envs, self.deterministic, self.autoreset_mode = num_envs, deterministic, autoreset_mode
        self.device = device_of(self.policy)
        self.reset(seed)

    @classmethod
    def of(
        cls, agent: SavedAgent[Any] | Policy, env: gym.Env | VectorEnv, deterministic: bool = False, seed: int = 0
    ) -> Self:
        """The player for an environment: with its number of lanes and its autoreset mode."""
        if not isinstance(env, VectorEnv):
            return cls(agent, 1, deterministic, seed)
        return cls(agent, env.num_envs, deterministic, seed, env.metadata.get("autoreset_mode"))

    def reset(self, seed: int | None = None) -> None:
        """Forget everything: the next observations begin new episodes. With a seed, the draws are seeded again."""
        if seed is not None:
            self._generator = torch.Generator(self.device).manual_seed(seed)
        self._state = self.policy.initial_state(self.num_envs)
        self._ended = np.ones(self.num_envs, bool)  # nothing has begun
        self._action: NDArray[Any] = np.zeros(self.num_envs, np.int64)
        self._is_new, self._is_plain = True, False
        self._seen: tuple[TimeStep, Any] | None = None

    @torch.no_grad()
    def act(
        self,
        obs: ArrayLike,
        reward: ArrayLike | None = None,
        terminated: ArrayLike | None = None,
        truncated: ArrayLike | None = None,
    ) -> Any:
        """The action to take at an observation.

        Args:
          obs: `[B, *obs_shape]`, or `[*obs_shape]` of one environment, as `make_env`'s environments give it.
          reward: `[B]`, or a number: what came with the observation, not scaled; None where all episodes begin.
          terminated: `[B]` bool, or one: with the reward.
          truncated: likewise.

        Returns:
          Actions `[B]` int64 for `env.step`; an int for a plain observation. `[B, ...]` where actions are not Discrete.

        Raises:
          ValueError: for another shape or kind of number, and for a missing reward while an episode is under way.
        """
        lanes = self._as_lanes(obs)
        flags = (reward, terminated, truncated)
        if all(x is None for x in flags):
            self._check_all_begin()
            flags = (np.zeros(self.num_envs),) + (np.zeros(self.num_envs, bool),) * 2
            self._is_new = True
        rewards, *ends = (
            self._per_lane(*each) for each in zip(("reward", "terminated", "truncated"), flags, strict=True)
        )
        steps = self._to_steps(lanes, rewards.astype(np.float32), *(end.astype(bool) for end in ends))
        self._seen = steps, self._state
        output, self._state = self.policy.step(steps, self._state)
        self._action = choose(self.policy, output, self._generator, self.deterministic).cpu().numpy()
        if not self._is_plain:
            return self._action
        return self._action[0] if self.spec.action_space else int(self._action[0])

    @property
    def attention(self) -> Tensor | None:
        """Where the memory looked in the last step: `Core.attention_weights`, without lanes for a plain observation.

        Of an rmc `[B, blocks, heads, slots, slots + 1]`, the input last. None before the first step, and for cores
        that do not attend.
        """
        look = getattr(self.policy, "attention", None)
        if look is None or self._seen is None:
            return None
        weights: Tensor | None = look(*self._seen)
        return weights[0] if weights is not None and self._is_plain else weights

    def _to_steps(
        self, obs: NDArray[Any], reward: NDArray[Any], terminated: NDArray[Any], truncated: NDArray[Any]
    ) -> TimeStep:
        """The time step of all lanes `[B, ...]`, as training would see it."""
        default = AutoresetMode.DISABLED if self._is_plain else AutoresetMode.NEXT_STEP
        mode = default if self.autoreset_mode is None else self.autoreset_mode
        ended = terminated | truncated
        is_first = self._ended if mode == AutoresetMode.NEXT_STEP or self._is_new else ended
        self._ended, self._is_new = ended, False
        fields = (obs, is_first, self._action, np.where(is_first, 0, reward), terminated & ~is_first)
        tensors = [torch.tensor(field, device=self.device) for field in fields]  # copies: `attention` may come later
        truncation = torch.tensor(truncated & ~terminated & ~is_first, device=self.device)
        return TimeStep(tensors[0], tensors[1], tensors[2].long(), tensors[3].float(), tensors[4], truncation)

    def _as_lanes(self, obs: ArrayLike) -> NDArray[Any]:
        """The observations `[B, *obs_shape]` in their dtype; whether they came without the axis of lanes is noted."""
        array, shape, dtype = np.asarray(obs), self.spec.obs_shape, np.dtype(self.spec.obs_dtype)
        is_plain = self.num_envs == 1 and array.shape == shape
        if not (is_plain or array.shape == (self.num_envs, *shape)) or not np.can_cast(array.dtype, dtype, "same_kind"):
            plain = f"{list(shape)} or " if self.num_envs == 1 else ""
            got = f"{list(array.shape)} of {array.dtype}" if array.dtype != object else type(obs).__name__
            raise ValueError(
                f"obs: expected {plain}{[self.num_envs, *shape]} of {dtype}, as rmc.make_env's environments give them, "
                f"got {got}"
            )
        self._is_plain = is_plain
        return (array[None] if is_plain else array).astype(dtype)

    def _per_lane(self, name: str, values: ArrayLike | None) -> NDArray[Any]:
        """One number for each lane, [B]."""
        array = np.asarray(values)
        if (
            values is None
            or array.dtype.kind not in "biuf"
            or array.shape not in ((), (self.num_envs,))
            or (array.ndim == 0 and not self._is_plain)
        ):
            expected = "a number" if self._is_plain else f"[{self.num_envs}]"
            got = "None" if values is None else f"{list(array.shape)} of {array.dtype}"
            raise ValueError(f"{name}: expected {expected}, as env.step gave it with the observation, got {got}")
        return array.reshape(self.num_envs)

    def _check_all_begin(self) -> None:
        if not self._ended.all():
            raise ValueError(
                "reward, terminated, truncated: expected what env.step gave with the observation, got None while an "
                "episode is under way; after env.reset(), call the player's reset() first"
            )


def device_of(policy: Policy) -> torch.device:
    """Where a policy lives: with its parameters, the CPU if it has none."""
    parameters = policy.parameters() if isinstance(policy, nn.Module) else iter(())
    return next((parameter.device for parameter in parameters), torch.device("cpu"))
