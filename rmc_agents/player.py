"""Acting with an agent in your own loop: the only class that stores a recurrent state between calls."""

from collections.abc import Mapping
from typing import Any, Self

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.wrappers import Autoreset
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from rmc_agents.collect import checked_step, choose
from rmc_agents.envs.checks import checked_int
from rmc_agents.envs.nested import pick
from rmc_agents.envs.saving import layers
from rmc_agents.envs.warn_once import warn_once
from rmc_agents.runs.saved import SavedAgent
from rmc_agents.spaces import ACTION_MASK, SpaceSpec
from rmc_agents.stream import check_categories
from rmc_agents.types import Observation, Policy, TimeStep, map_leaves


class Player:
    """Runs an agent one observation at a time and keeps its recurrent state.

    It stores the core's state, the previous action, and where episodes begin: there the state is reset before the
    observation is consumed, as in training. For one environment, observations and actions have no batch axis:

        player = Player(rmc.load("recall-rmc"))
        obs, _ = env.reset()
        action = player.act(obs)  # an episode's first observation comes without a reward
        while True:
            obs, reward, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                obs, _ = env.reset()
            action = player.act(obs, reward, terminated, truncated)

    With several, the lanes are the first axis of everything, and `autoreset_mode` says which observation comes with
    `terminated` or `truncated`. NEXT_STEP: the last one of the ended episode; the lane's next observation is the first
    of the next episode, and the action in between is ignored. SAME_STEP: the first one of the next episode. DISABLED:
    also the first one, because the caller resets the ended lanes before the agent acts again, with
    `env.reset(options={"reset_mask": terminated | truncated})`.

    torch's number of threads is the caller's: with several, steps are much slower while other programs use the cores.

    A single environment works like DISABLED: reset it before the call, as above, or after the call and then call
    `act(obs)` alone. Inside `gymnasium.wrappers.Autoreset` it needs NEXT_STEP.

    Args:
      agent: the result of `rmc.load`, or an `ActorCritic`, which keeps its current mode (train or eval).
      num_envs: number of lanes, B.
      deterministic: take the most likely action instead of sampling, as saved agents of --algo supervised always do.
      seed: of the action sampling; None: a random one.
      autoreset_mode: see above; None: DISABLED for plain observations, NEXT_STEP for lanes, gymnasium's default.

    Raises:
      ValueError: for fewer than one lane, or an agent without a `spec` of its observations.
    """

    def __init__(
        self,
        agent: SavedAgent[Any] | Policy,
        num_envs: int = 1,
        deterministic: bool = False,
        seed: int | None = 0,
        autoreset_mode: AutoresetMode | None = None,
    ) -> None:
        if not isinstance(autoreset_mode, AutoresetMode | None):
            raise ValueError(
                f"autoreset_mode: expected a gymnasium.vector.AutoresetMode, such as AutoresetMode.NEXT_STEP, got "
                f"{autoreset_mode!r}"
            )
        self.policy: Policy = agent.agent if isinstance(agent, SavedAgent) else agent
        self.spec: SpaceSpec = getattr(agent, "spec", None)  # type: ignore[assignment]
        if self.spec is None:
            raise ValueError(f"agent: expected an ActorCritic or the result of rmc.load, got {type(agent).__name__}")
        is_greedy = isinstance(agent, SavedAgent) and agent.config.train.is_supervised
        self.num_envs, self.autoreset_mode = checked_int("num_envs", num_envs, 1), autoreset_mode
        self.deterministic = deterministic or is_greedy
        self.device = device_of(self.policy)
        self._generator = torch.Generator(self.device)
        self._generator.seed()
        self.reset(seed)

    @classmethod
    def of(
        cls,
        agent: SavedAgent[Any] | Policy,
        env: gym.Env | VectorEnv,
        deterministic: bool = False,
        seed: int | None = 0,
    ) -> Self:
        """A player with an environment's number of lanes and autoreset mode."""
        if not isinstance(env, VectorEnv):
            resets_itself = any(isinstance(layer, Autoreset) for layer in layers(env))
            return cls(agent, 1, deterministic, seed, AutoresetMode.NEXT_STEP if resets_itself else None)
        return cls(agent, env.num_envs, deterministic, seed, env.metadata.get("autoreset_mode"))

    @torch.no_grad()
    def reset(self, seed: int | None = None) -> None:
        """Clear the state: the next observations begin new episodes. With a seed, seed the action sampling again."""
        if seed is not None:
            self._generator.manual_seed(checked_int("seed", seed, 0))
        self._state = self.policy.initial_state(self.num_envs)
        self._ended = np.ones(self.num_envs, bool)  # no episode has begun
        self._action = self.spec.no_action(self.num_envs)
        self._is_new, self._is_plain, self._is_masked = True, False, self.spec.is_masked
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
          obs: `[B, *obs_shape]`, or `[*obs_shape]` for one environment, as environments from `make_env` return it
            (or without the axis that it adds to a Box of shape ()); every part of a nested observation likewise.
          reward: `[B]`, or a number: the unscaled reward of the last step; None if all episodes begin.
          terminated: `[B]` bool, or one bool; None if all episodes begin.
          truncated: likewise.
          action_mask: `[B, A]` or `[A]`: the allowed actions, in some environments `info["action_mask"]`; a mask inside
            the observation is used without this. None: all actions, unless the agent was trained with masks.

        Returns:
          Actions for `env.step`: `[B]` int64 if Discrete, else `[B, ...]`, or a tuple of these; without the lane axis
          (an int if Discrete) for a plain observation.

        Raises:
          ValueError: for a wrong shape or dtype, NaN or infinity, a category out of range, a missing reward in the
            middle of an episode, or a missing mask.
        """
        lanes = self._as_lanes(obs)
        check_categories(lanes, self.spec)
        if all_begin := reward is None and terminated is None and truncated is None:
            self._check_all_begin()
            reward, terminated, truncated = np.zeros(self.num_envs), *np.zeros((2, self.num_envs), bool)
        rewards = self._per_lane("reward", reward, "biuf")
        if not (np.abs(rewards) <= np.finfo(np.float32).max).all():  # False for NaN
            raise ValueError(f"reward: expected finite numbers of float32, got {rewards.tolist()}")
        terminations = self._per_lane("terminated", terminated, "biu").astype(bool)
        truncations = self._per_lane("truncated", truncated, "biu").astype(bool)
        ended = terminations | truncations
        is_first = self._ended if all_begin or self._is_new or self._delays_resets() else ended
        steps = self._to_steps(lanes, is_first, rewards, terminations, truncations)
        steps = steps._replace(action_mask=self._to_mask(obs, action_mask, steps, ended))
        output, state = checked_step(self.policy, self.spec, steps, self._state)
        policy = self.spec.distribution(output.policy_logits)
        self._action = choose(policy, self._generator, self.deterministic)
        self._seen, self._state = (steps, self._state), state  # from here on, nothing is refused
        self._is_masked |= steps.action_mask is not None
        self._ended, self._is_new = ended, False
        action = self.spec.to_env(self._action.cpu().numpy())
        if not self._is_plain:
            return action
        if self.spec.num_actions:
            return int(action[0])
        return tuple(part[0] for part in action) if isinstance(action, tuple) else action[0]

    @property
    def attention(self) -> Tensor | None:
        """Attention weights of the last step: `Core.attention_weights`, without the lane axis for a plain observation.

        For an rmc `[B, blocks, heads, slots, slots + 1]`, the input last; for a transformer
        `[B, layers, heads, 1, M + 1]`, this step last. None before the first step and for cores without attention.
        """
        look = getattr(self.policy, "attention", None)
        if look is None or self._seen is None:
            return None
        weights: Tensor | None = look(*self._seen)
        return weights[0] if weights is not None and self._is_plain else weights

    def _delays_resets(self) -> bool:
        """Whether an episode's last observation comes before the first of the next."""
        default = AutoresetMode.DISABLED if self._is_plain else AutoresetMode.NEXT_STEP
        return (default if self.autoreset_mode is None else self.autoreset_mode) == AutoresetMode.NEXT_STEP

    def _to_steps(
        self,
        obs: Observation,
        is_first: NDArray[Any],
        reward: NDArray[Any],
        terminated: NDArray[Any],
        truncated: NDArray[Any],
    ) -> TimeStep:
        """The time step of all lanes `[B, ...]`, as training would see it."""
        rewards = np.where(is_first, 0, reward).astype(np.float32)
        fields = (is_first, rewards, terminated & ~is_first, truncated & ~terminated & ~is_first)
        firsts, rewards_, terminations, truncations = (torch.from_numpy(field) for field in fields)
        steps = TimeStep(obs, firsts, self._action, rewards_, terminations, truncations)
        return map_leaves(lambda x: x.clone().to(self.device), steps)  # copies: `attention` may be read later

    def _to_mask(self, obs: Any, given: ArrayLike | None, steps: TimeStep, ended: NDArray[np.bool_]) -> Tensor | None:
        """The allowed actions `[B, A]`; None: all. Raises ValueError for a wrong shape, or if none is allowed.

        At an episode's last observation, where the action is ignored, all are allowed. A plain observation that comes
        with an episode's end may be that one or the next episode's first: its mask counts unless it allows nothing.
        """
        if isinstance(obs, Mapping) and self._is_plain and ACTION_MASK in obs:
            obs = {ACTION_MASK: np.asarray(obs[ACTION_MASK])[None]}
        infos = {}
        if given is not None:
            if not self.spec.mask_sizes:
                warn_once("the action_mask of Player.act is ignored: masks are for Discrete and MultiDiscrete actions")
            flags = np.asarray(given)
            infos = {ACTION_MASK: flags[None] if self._is_plain and flags.ndim == 1 else flags}
        allowed = self.spec.action_mask(obs, infos)
        if allowed is None:
            if self._is_masked and not (steps.terminated | steps.truncated).all():
                raise ValueError(
                    "action_mask: expected one, as in the agent's training or the steps before, got none; pass "
                    "action_mask=info['action_mask'] of env.reset and env.step, or the observation with its own"
                )
            return None
        if len(allowed) != self.num_envs:
            raise ValueError(f"action_mask: expected one for each of {self.num_envs} lanes, got {len(allowed)}")
        mask = torch.as_tensor(allowed, device=self.device) | (steps.terminated | steps.truncated).unsqueeze(-1)
        if not all(choice.any(dim=-1).all() for choice in mask.split(self.spec.mask_sizes, dim=-1)):
            if self._is_plain and ended.all():
                return torch.ones_like(mask)
            raise ValueError("action_mask: expected at least one allowed action for each choice, got none")
        return mask

    def _as_lanes(self, obs: Any) -> Observation:
        """The observations as in time steps; also records whether they came without the lane axis."""
        lanes, forms = {}, set[bool]()
        lone = () if self.num_envs == 1 else (self.num_envs,)  # of a scalar Box, of which make_env makes a vector [1]
        for name, array in self.spec.arrays.items():
            part, shape, dtype = np.asarray(pick(obs, array.path)), array.shape, np.dtype(array.dtype)
            if not name and shape == (1,) and part.shape == lone:
                part = part[..., None]
            is_plain = self.num_envs == 1 and part.shape == shape
            forms.add(is_plain)
            fits = is_plain or part.shape == (self.num_envs, *shape)
            if not fits or len(forms) > 1 or not np.can_cast(part.dtype, dtype, "same_kind"):
                plain = f"{list(shape)} or " if self.num_envs == 1 else ""
                got = f"{list(part.shape)} of {part.dtype}" if part.dtype != object else type(obs).__name__
                is_number = not name and part.shape == lone and part.dtype.kind in "iu" and dtype == np.uint8
                one_hot = f"; Discrete ones as np.eye({shape[0]}, dtype=np.uint8)[obs]" if is_number and shape else ""
                raise ValueError(
                    f"obs{name and ' '}{name}: expected {plain}{[self.num_envs, *shape]} of {dtype}, as rmc.make_env's "
                    f"environments return them{one_hot}, got {got}"
                )
            with np.errstate(over="ignore"):
                if part.dtype.kind == "f" and not np.isfinite(part.astype(np.float32)).all():
                    raise ValueError(f"obs{name and ' '}{name}: expected finite numbers, got NaN or infinity")
            if part.dtype.kind in "iu" and dtype.kind in "iu" and (wrong := part != part.astype(dtype)).any():
                got = part[wrong][0]
                raise ValueError(f"obs{name and ' '}{name}: expected numbers that {dtype} can hold, got {got}")
            lanes[name] = array.encode(part[None] if is_plain else part)
        self._is_plain = False not in forms
        return lanes if self.spec.obs_parts else lanes[""]

    def _per_lane(self, name: str, values: ArrayLike | None, kinds: str) -> NDArray[Any]:
        """One number for each lane, [B], of one of numpy's kinds."""
        array = np.asarray(values)
        if (
            values is None
            or array.dtype.kind not in kinds
            or array.shape not in ((), (self.num_envs,))
            or (array.ndim == 0 and not self._is_plain)
        ):
            one = "a number" if "f" in kinds else "a bool"
            expected = one if self._is_plain else f"{one} per lane, [{self.num_envs}]"
            got = "None" if values is None else f"{list(array.shape)} of {array.dtype}"
            raise ValueError(f"{name}: expected {expected}, as returned by env.step with the observation, got {got}")
        return array.reshape(self.num_envs)

    def _check_all_begin(self) -> None:
        if not self._ended.all():
            raise ValueError(
                "reward, terminated, truncated: expected the values from env.step, got None in the middle of an "
                "episode; after env.reset(), call the player's reset() first"
            )


def device_of(policy: Policy) -> torch.device:
    """The device of a policy's parameters; the CPU if it has none."""
    parameters = policy.parameters() if isinstance(policy, nn.Module) else iter(())
    return next((parameter.device for parameter in parameters), torch.device("cpu"))
