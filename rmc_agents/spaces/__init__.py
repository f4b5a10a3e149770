"""From an environment's spaces to tensors of observations and actions, with a description that is saved."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete, Space
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray
from torch import Tensor

from rmc_agents.distributions import Bernoulli, Categorical, Gaussian, Joint
from rmc_agents.envs.nested import numeric_leaves
from rmc_agents.envs.token_space import is_vector_of_names
from rmc_agents.types import Distribution

from .parts import ActionPart, ArraySpec, action_parts, array_spec, observation_parts

ACTION_MASK = "action_mask"
"""The key of action masks in observations and infos."""


class SpaceSpec(NamedTuple):
    """An environment's spaces, as an agent is built for them; only plain values, to be saved.

    An observation is one tensor, or, if the space is a Dict or a Tuple, a dict of tensors keyed by the names of its
    leaves (`camera`, `arm/0`). An action is one tensor: `[B]` int64 for Discrete, else `[B, W]` with one column per
    number, float32 if one of them is continuous. Categories and actions count from 0, whatever a space's `start` is. An
    action of a Box is the policy's own number: -1 and 1 are the bounds, and only what the environment gets is clipped.

    Attributes:
      obs_shape: of one observation that is not nested.
      obs_dtype: see `ArraySpec`.
      obs_scale: observations are multiplied by this: 1/255 for images.
      num_actions: of a Discrete space; 0 for other spaces.
      obs_categories: see `ArraySpec`.
      obs_are_tokens: see `ArraySpec`.
      action_parts: several for a Tuple; empty for a Discrete space of int64 that starts at 0.
      obs_parts: the arrays of a nested observation; the other obs fields are then unused.
      vocabulary: a fingerprint of the categories' meanings: metadata["vocabulary"]; '': not known.
      is_masked: the agent was trained with action masks; False in `of`, which only sees the spaces.
    """

    obs_shape: tuple[int, ...]
    obs_dtype: str
    obs_scale: float
    num_actions: int
    obs_categories: tuple[int, ...] = ()
    obs_are_tokens: bool = False
    action_parts: tuple[ActionPart, ...] = ()
    obs_parts: tuple[ArraySpec, ...] = ()
    vocabulary: str = ""
    is_masked: bool = False

    @classmethod
    def of(cls, env: gym.Env | VectorEnv) -> Self:
        """The spec of an environment, or of one lane of a vector environment. Raises ValueError as `from_spaces`."""
        if not isinstance(env, gym.Env | VectorEnv):
            raise ValueError(f"env: expected an environment, such as rmc.make_env(...), got {env!r}")
        spaces = (
            (env.single_observation_space, env.single_action_space)
            if isinstance(env, VectorEnv)
            else (env.observation_space, env.action_space)
        )
        vocabulary = env.metadata.get("vocabulary")
        return cls.from_spaces(*spaces)._replace(vocabulary=vocabulary if isinstance(vocabulary, str) else "")

    @classmethod
    def from_spaces(cls, observation_space: Space, action_space: Space) -> Self:
        """The spec of one lane's spaces.

        Raises:
          ValueError: if a part of either cannot be encoded; the message says which, and why.
        """
        num_actions = int(action_space.n) if isinstance(action_space, Discrete) else 0
        is_plain = isinstance(action_space, Discrete) and action_space.start == 0 and action_space.dtype == np.int64
        parts = () if is_plain else action_parts(action_space)
        if isinstance(observation_space, Box) or is_vector_of_names(observation_space):
            one = array_spec(observation_space, ())
            return cls(*one[:3], num_actions, one.categories, one.are_tokens, parts)
        spec = cls((), "", 1.0, num_actions, action_parts=parts)
        mask = numeric_leaves(observation_space).get((ACTION_MASK,)) if spec.mask_sizes else None
        if mask is not None and mask.shape != (sum(spec.mask_sizes),):
            raise ValueError(f"observation 'action_mask': expected {sum(spec.mask_sizes)} flags, got {mask}")
        return spec._replace(
            obs_parts=observation_parts(observation_space, set() if mask is None else {(ACTION_MASK,)})
        )

    @classmethod
    def from_fields(cls, fields: Sequence[Any]) -> Self:
        """Restore a spec that was saved as a list, with tuples saved as lists."""
        spec = cls(*map(_frozen, fields))
        if not isinstance(spec.obs_parts, tuple) or not isinstance(spec.action_parts, tuple | str):
            raise TypeError(f"spec: expected lists of parts, got {fields}")
        if not isinstance(spec.vocabulary, str) or not isinstance(spec.is_masked, bool):
            raise TypeError(f"spec: expected a text and a bool at the end, got {fields}")
        # Older files have the action space in words in place of the parts.
        actions = () if isinstance(spec.action_parts, str) else (ActionPart(*part) for part in spec.action_parts)
        return spec._replace(action_parts=tuple(actions), obs_parts=tuple(ArraySpec(*part) for part in spec.obs_parts))

    def described(self) -> str:
        """In words, for messages."""
        arrays = ", ".join(array.described() for array in self.arrays.values())
        parts = ", ".join(part.described() for part in self.action_parts)
        vocabulary = f", vocabulary {self.vocabulary}" if self.vocabulary else ""
        return f"observations {arrays} and {parts or f'{self.num_actions} actions'}{vocabulary}"

    def fits(self, env: "SpaceSpec") -> bool:
        """Whether an agent with these spaces fits an environment's; an unknown vocabulary of the agent fits any."""
        env = env._replace(is_masked=self.is_masked, vocabulary=env.vocabulary if self.vocabulary else "")
        if env.num_actions and not env.first_action and not self.action_parts:
            env = env._replace(action_parts=())  # older files do not have the dtype of such actions
        return self == env

    @property
    def array(self) -> ArraySpec:
        """The only array of an observation that is not nested."""
        return ArraySpec(self.obs_shape, self.obs_dtype, self.obs_scale, self.obs_categories, self.obs_are_tokens)

    @property
    def arrays(self) -> dict[str, ArraySpec]:
        """The arrays of an observation by name; '' if it is not nested."""
        return {part.name: part for part in self.obs_parts or (self.array,)}

    @property
    def first_action(self) -> int:
        """The `start` of a Discrete action space."""
        return int(self.action_parts[0].low[0]) if self.num_actions and self.action_parts else 0

    @property
    def num_outputs(self) -> int:
        """Outputs of a policy head: one logit per choice, one mean per continuous number."""
        return self.num_actions or sum(part.num_outputs for part in self.action_parts)

    @property
    def num_scales(self) -> int:
        """Number of learned standard deviations: one per continuous number."""
        return sum(len(part.low) for part in self.action_parts if part.kind == "box")

    @property
    def is_mean(self) -> list[bool]:
        """Which outputs are means of continuous numbers."""
        return [part.kind == "box" for part in self.action_parts for _ in range(part.num_outputs)]

    def observe(self, obs: Any) -> Any:
        """Convert the observations of all lanes to their form in a time step. Raises ValueError if they do not fit."""
        if not self.obs_parts:
            return self.array.encode(obs)
        return {part.name: part.observe(obs) for part in self.obs_parts}

    @property
    def mask_sizes(self) -> list[int]:
        """Flags per choice in an action mask, for Discrete and MultiDiscrete actions; empty for others."""
        if self.num_actions:
            return [self.num_actions]
        is_one = len(self.action_parts) == 1 and self.action_parts[0].kind == "discrete"
        return self.action_parts[0].sizes if is_one and not self.action_parts[0].path else []

    def action_mask(self, obs: Any, infos: Mapping[str, Any]) -> NDArray[np.bool_] | None:
        """The allowed actions `[B, sum of mask_sizes]` from observations or infos; None: all.

        Raises:
          ValueError: for a mask of the wrong shape, or of other values than 0 and 1.
        """
        in_obs = isinstance(obs, Mapping) and not any(part.path == (ACTION_MASK,) for part in self.obs_parts)
        mask = obs.get(ACTION_MASK) if in_obs else None
        if mask is None:
            mask = infos.get(ACTION_MASK)
        if mask is None or not self.mask_sizes:
            return None
        allowed: NDArray[Any] = np.asarray(mask)
        is_right = allowed.ndim == 2 and allowed.shape[1] == sum(self.mask_sizes) and allowed.dtype.kind in "biuf"
        flags = allowed.astype(bool) if is_right else allowed
        if not is_right or (wrong := allowed[allowed != flags]).size:
            raise ValueError(
                f"action_mask: expected {sum(self.mask_sizes)} flags, 0 or 1, in each lane, got "
                + (f"{wrong[0]}" if is_right else f"{allowed.dtype} {allowed.shape}")
            )
        return flags

    @property
    def action_limits(self) -> list[int | None]:
        """The number of values of each action column, counted from 0; None: continuous."""
        if self.num_actions:
            return [self.num_actions]
        limits: list[int | None] = []
        for part in self.action_parts:
            limits += part.sizes if part.kind != "box" else [None] * len(part.low)
        return limits

    def no_action(self, lanes: int) -> Tensor:
        """The placeholder for the previous action at the start of an episode."""
        shape = (lanes,) if self.num_actions else (lanes, len(self.action_limits))
        return torch.zeros(shape, dtype=torch.float32 if self.num_scales else torch.int64)

    def to_env(self, action: NDArray[Any]) -> Any:
        """The actions of all lanes as the environment takes them, in new arrays; an agent's are `[B]` or `[B, W]`."""
        if not self.action_parts:
            return action.copy()
        ends = np.cumsum([len(part.low) for part in self.action_parts])[:-1]
        columns = np.split(action.reshape(len(action), -1), ends, axis=1)
        actions = tuple(part.to_env(own) for part, own in zip(self.action_parts, columns, strict=True))
        return actions if self.action_parts[0].path else actions[0]

    def distribution(self, parameters: Tensor) -> Distribution:
        """The distribution with parameters `[..., P]`: `num_outputs` logits and means, then log standard deviations."""
        if self.num_actions:
            return Categorical(parameters)
        outputs, log_std = parameters.split([self.num_outputs, self.num_scales], dim=-1)
        made: list[Distribution] = []
        widths: list[int] = []
        for part in self.action_parts:
            own, outputs = outputs.tensor_split([part.num_outputs], dim=-1)
            if part.kind == "discrete":
                made += [Categorical(logits) for logits in own.split(part.sizes, dim=-1)]
                widths += [1] * len(part.sizes)
                continue
            widths.append(len(part.low))
            if part.kind == "binary":
                made.append(Bernoulli(own))
            else:
                scales, log_std = log_std.tensor_split([len(part.low)], dim=-1)
                made.append(Gaussian(own, scales))
        return Joint(made, widths)


def _frozen(field: Any) -> Any:
    return tuple(map(_frozen, field)) if isinstance(field, list | tuple) else field
