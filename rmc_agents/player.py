"""An agent at play outside of this project's loops: the one place that keeps a recurrent state between calls."""

from collections.abc import Mapping
from typing import Any, Self

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from rmc_agents.collect import choose
from rmc_agents.envs.nested import pick
from rmc_agents.runs.saved import SavedAgent
from rmc_agents.spaces import ACTION_MASK, SpaceSpec
from rmc_agents.types import Observation, Policy, TimeStep, map_leaves


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
        self._action = self.spec.no_action(self.num_envs)
        self._is_new, self._is_plain = True, False
        self._seen: tuple[TimeStep, Any] | None = None

    @torch.no_grad()
    def act(
        self,
        obs: Any,
        reward: ArrayLike | None = None,
        terminated: ArrayLike | None = None,
        truncated: ArrayLike | None = None,
        action_mask: ArrayLike | None = None,
    ) -> Any:
        """The action to take at an observation.

        Args:
          obs: `[B, *obs_shape]`, or `[*obs_shape]` of one environment, as `make_env`'s environments give it; nested
            observations likewise, `[B, ...]` or plain in every part.
          reward: `[B]`, or a number: what came with the observation, not scaled; None where all episodes begin.
          terminated: `[B]` bool, or one: with the reward.
          truncated: likewise.
          action_mask: `[B, A]` or `[A]`: the allowed actions, in some environments `info["action_mask"]`; a mask in the
            observation is found there. None: all.

        Returns:
          Actions for `env.step`: `[B]` int64, where they are not Discrete `[B, ...]`, or a tuple of these. For a plain
          observation an int, or the plain action.

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
        steps = steps._replace(action_mask=self._to_mask(obs, action_mask, steps))
        self._seen = steps, self._state
        output, self._state = self.policy.step(steps, self._state)
        policy = self.spec.distribution(output.policy_logits)
        self._action = choose(policy, self._generator, self.deterministic)
        action = self.spec.to_env(self._action.cpu().numpy())
        if not self._is_plain:
            return action
        if self.spec.num_actions:
            return int(action[0])
        return tuple(part[0] for part in action) if isinstance(action, tuple) else action[0]

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
        self, obs: Observation, reward: NDArray[Any], terminated: NDArray[Any], truncated: NDArray[Any]
    ) -> TimeStep:
        """The time step of all lanes `[B, ...]`, as training would see it."""
        default = AutoresetMode.DISABLED if self._is_plain else AutoresetMode.NEXT_STEP
        mode = default if self.autoreset_mode is None else self.autoreset_mode
        ended = terminated | truncated
        is_first = self._ended if mode == AutoresetMode.NEXT_STEP or self._is_new else ended
        self._ended, self._is_new = ended, False
        rewards = np.where(is_first, 0, reward).astype(np.float32)
        fields = (is_first, rewards, terminated & ~is_first, truncated & ~terminated & ~is_first)
        firsts, rewards_, terminations, truncations = (torch.from_numpy(field) for field in fields)
        steps = TimeStep(obs, firsts, self._action, rewards_, terminations, truncations)
        return map_leaves(lambda x: x.clone().to(self.device), steps)  # copies: `attention` may come later

    def _to_mask(self, obs: Any, given: ArrayLike | None, steps: TimeStep) -> Tensor | None:
        """The allowed actions `[B, A]`; None: all. Raises ValueError for none at all, and for another shape."""
        if isinstance(obs, Mapping) and self._is_plain and ACTION_MASK in obs:
            obs = {ACTION_MASK: np.asarray(obs[ACTION_MASK])[None]}
        infos = {} if given is None else {ACTION_MASK: np.asarray(given).reshape(self.num_envs, -1)}
        allowed = self.spec.action_mask(obs, infos)
        if allowed is None:
            return None
        mask = torch.as_tensor(allowed, device=self.device) | (steps.terminated | steps.truncated).unsqueeze(-1)
        if not all(choice.any(dim=-1).all() for choice in mask.split(self.spec.mask_sizes, dim=-1)):
            raise ValueError("action_mask: expected at least one allowed action for each choice, got none")
        return mask

    def _as_lanes(self, obs: Any) -> Observation:
        """The observations as time steps have them; whether they came without the axis of lanes is noted."""
        lanes, is_plain = {}, True
        for name, array in self.spec.arrays.items():
            part, shape, dtype = np.asarray(pick(obs, array.path)), array.shape, np.dtype(array.dtype)
            is_plain = is_plain and self.num_envs == 1 and part.shape == shape
            fits = is_plain or part.shape == (self.num_envs, *shape)
            if not fits or not np.can_cast(part.dtype, dtype, "same_kind"):
                plain = f"{list(shape)} or " if self.num_envs == 1 else ""
                got = f"{list(part.shape)} of {part.dtype}" if part.dtype != object else type(obs).__name__
                raise ValueError(
                    f"obs{name and ' '}{name}: expected {plain}{[self.num_envs, *shape]} of {dtype}, as rmc.make_env's "
                    f"environments give them, got {got}"
                )
            lanes[name] = array.encode(part[None] if is_plain else part)
        self._is_plain = is_plain
        return lanes if self.spec.obs_parts else lanes[""]

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
