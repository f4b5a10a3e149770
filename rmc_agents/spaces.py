"""What an environment's spaces become: tensors of observations and actions, and the description of both that is saved.

An observation is one tensor, or, where the space is a Dict or a Tuple, a dict of tensors by the names of its leaves
(`camera`, `arm/0`). An action is one tensor: `[B]` int64 for Discrete, else `[B, W]` with a column for each number in
it. Categories count from 0, whatever a space's `start` is, and a Box is rescaled: -1 and 1 are its bounds.
"""

import logging
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Literal, NamedTuple, Self

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space, Tuple
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray
from torch import Tensor

from rmc_agents.distributions import Bernoulli, Categorical, Gaussian, Joint
from rmc_agents.envs.nested import Place, leaves, name_of, numbers, pick
from rmc_agents.types import Distribution

ACTION_MASK = "action_mask"
"""The key of masks in observations and infos."""
MOST_CATEGORIES = 2**16
"""Of one observation: each is a row of weights in the encoder's first layer."""

logger = logging.getLogger(__name__)


class ArraySpec(NamedTuple):
    """One array of an observation; plain values."""

    shape: tuple[int, ...]
    dtype: str  # in a time step: uint8 for pictures, int8 for bits, int64 or int32 for categories, else float32
    scale: float = 1.0  # observations are multiplied by this: 1/255 for pictures
    categories: tuple[int, ...] = ()  # of each entry, if all are names of categories instead of amounts: how many
    are_tokens: bool = False  # categories mean the same in whichever entry they are; the most important come first
    start: tuple[int, ...] = ()  # what the environment calls each entry's first category; (): 0
    path: Place = ()  # where it is in the observation

    @property
    def name(self) -> str:
        """Its key in a time step's observation."""
        return name_of(self.path)

    def described(self) -> str:
        """In words, for messages."""
        numbers = f"{sum(self.categories)} categories" if self.categories else f"times {self.scale:.3g}"
        return f"{self.name} {self.shape} of {self.dtype} ({numbers})".lstrip()

    def observe(self, obs: Any) -> Tensor:
        """This part `[B, *shape]` of the observation of all lanes. Raises ValueError if it is not there."""
        array = np.asarray(pick(obs, self.path))
        if array.shape[1:] != self.shape:
            raise ValueError(f"observation {self.name!r}: expected {self.shape} in each lane, got {array.shape[1:]}")
        return self.encode(array)

    @property
    def space(self) -> Space:
        """What `encode` gives, as a space."""
        if self.categories:
            return (
                MultiDiscrete(np.reshape(self.categories, self.shape)) if self.shape else Discrete(self.categories[0])
            )
        if self.dtype == "int8":
            return MultiBinary(self.shape)
        if self.dtype == "uint8":
            return Box(0, 255, self.shape, np.uint8)
        return Box(-np.inf, np.inf, self.shape, np.float32)

    def encode(self, array: NDArray[Any]) -> Tensor:
        """The environment's array `[B, *shape]` as a time step has it."""
        if self.start:
            array = array - np.reshape(self.start, self.shape)
        return torch.as_tensor(np.ascontiguousarray(array, self.dtype))


class ActionPart(NamedTuple):
    """One space of an action; plain values."""

    kind: Literal["discrete", "binary", "box"]
    shape: tuple[int, ...]
    dtype: str  # the environment's
    low: tuple[float, ...]  # the least value of each column
    high: tuple[float, ...]  # the largest
    path: Place = ()  # where it is in a Tuple

    @property
    def sizes(self) -> list[int]:
        """How many values each column has, if it has categories or bits."""
        return [int(high - low) + 1 for low, high in zip(self.low, self.high, strict=True)]

    @property
    def num_outputs(self) -> int:
        """Logits or means."""
        return sum(self.sizes) if self.kind == "discrete" else len(self.low)

    def described(self) -> str:
        """In words, for messages."""
        limits = f"{list(self.low)} to {list(self.high)}" if self.shape else f"{self.low[0]} to {self.high[0]}"
        return f"{self.kind} actions from {limits}"

    def to_env(self, columns: NDArray[Any]) -> NDArray[Any]:
        """The environment's actions `[B, *shape]` of columns `[B, W]`; a Box's are clipped at its bounds."""
        low, high = np.array(self.low), np.array(self.high)
        if self.kind == "box":
            columns = np.clip(low + (columns + 1.0) / 2.0 * (high - low), low, high)
        elif self.kind == "discrete":
            columns = columns + low
        return columns.astype(self.dtype).reshape(-1, *self.shape)


class SpaceSpec(NamedTuple):
    """What an agent needs to know of an environment's spaces to be built; plain values, so that it can be saved."""

    obs_shape: tuple[int, ...]
    obs_dtype: str  # a numpy name, 'uint8' or 'float32'
    obs_scale: float  # observations are multiplied by this: 1/255 for pictures
    num_actions: int  # of a Discrete space; 0 for others
    obs_categories: tuple[int, ...] = ()  # see `ArraySpec`
    obs_are_tokens: bool = False
    action_parts: tuple[ActionPart, ...] = ()  # several for a Tuple; none for a Discrete space that starts at 0
    obs_parts: tuple[ArraySpec, ...] = ()  # of a nested observation, of which the other fields say nothing

    @classmethod
    def of(cls, env: gym.Env | VectorEnv) -> Self:
        """The spec of an environment, or of one lane of a vector environment. Raises ValueError as `from_spaces`."""
        if isinstance(env, VectorEnv):
            return cls.from_spaces(env.single_observation_space, env.single_action_space)
        return cls.from_spaces(env.observation_space, env.action_space)

    @classmethod
    def from_spaces(cls, observation_space: Space, action_space: Space) -> Self:
        """The spec of one lane's spaces.

        Raises:
          ValueError: for a part of either that cannot be encoded; it says which, and why.
        """
        num_actions = int(action_space.n) if isinstance(action_space, Discrete) else 0
        is_plain = isinstance(action_space, Discrete) and action_space.start == 0
        parts = () if is_plain else action_parts(action_space)
        if isinstance(observation_space, Box) or _is_vector_of_names(observation_space):
            one = _array_spec(observation_space, ())
            return cls(*one[:3], num_actions, one.categories, one.are_tokens, parts)
        spec = cls((), "", 1.0, num_actions, action_parts=parts)
        mask = numbers(observation_space).get((ACTION_MASK,)) if spec.mask_sizes else None
        if mask is not None and mask.shape != (sum(spec.mask_sizes),):
            raise ValueError(f"observation 'action_mask': expected {sum(spec.mask_sizes)} flags, got {mask}")
        return spec._replace(obs_parts=_obs_parts(observation_space, set() if mask is None else {(ACTION_MASK,)}))

    @classmethod
    def from_fields(cls, fields: Sequence[Any]) -> Self:
        """A spec that was saved as a list, in which tuples have become lists."""
        spec = cls(*map(_frozen, fields))
        # Before there were parts, their place had the action space in words.
        actions = () if isinstance(spec.action_parts, str) else (ActionPart(*part) for part in spec.action_parts)
        return spec._replace(action_parts=tuple(actions), obs_parts=tuple(ArraySpec(*part) for part in spec.obs_parts))

    def described(self) -> str:
        """In words, for messages."""
        arrays = ", ".join(array.described() for array in self.arrays.values())
        parts = ", ".join(part.described() for part in self.action_parts)
        return f"observations {arrays} and {parts or f'{self.num_actions} actions'}"

    @property
    def array(self) -> ArraySpec:
        """The observation, if it is not nested."""
        return ArraySpec(self.obs_shape, self.obs_dtype, self.obs_scale, self.obs_categories, self.obs_are_tokens)

    @property
    def arrays(self) -> dict[str, ArraySpec]:
        """The arrays of an observation by name; '' for the only one of an observation that is not nested."""
        return {part.name: part for part in self.obs_parts or (self.array,)}

    @property
    def num_outputs(self) -> int:
        """Of a policy's head: a logit or a mean for each choice or number."""
        return self.num_actions or sum(part.num_outputs for part in self.action_parts)

    @property
    def num_scales(self) -> int:
        """Standard deviations that are learned beside: of all numbers in a Box."""
        return sum(len(part.low) for part in self.action_parts if part.kind == "box")

    @property
    def is_mean(self) -> list[bool]:
        """Which of the outputs are means of numbers in a Box."""
        return [part.kind == "box" for part in self.action_parts for _ in range(part.num_outputs)]

    def observe(self, obs: Any) -> Any:
        """An environment's observations of all lanes as a time step has them. Raises ValueError if they do not fit."""
        if not self.obs_parts:
            return self.array.encode(obs)
        return {part.name: part.observe(obs) for part in self.obs_parts}

    @property
    def mask_sizes(self) -> list[int]:
        """How many flags an action mask has for each choice: of Discrete and MultiDiscrete actions; else none."""
        if self.num_actions:
            return [self.num_actions]
        is_one = len(self.action_parts) == 1 and self.action_parts[0].kind == "discrete"
        return self.action_parts[0].sizes if is_one and not self.action_parts[0].path else []

    def action_mask(self, obs: Any, infos: Mapping[str, Any]) -> NDArray[np.bool_] | None:
        """Which actions the environment allows, `[B, sum of mask_sizes]`, in its observations or infos; None: all.

        Raises:
          ValueError: for a mask of another shape.
        """
        in_obs = isinstance(obs, Mapping) and not any(part.path == (ACTION_MASK,) for part in self.obs_parts)
        mask = obs.get(ACTION_MASK) if in_obs else None
        if mask is None:
            mask = infos.get(ACTION_MASK)
        if mask is None or not self.mask_sizes:
            return None
        allowed: NDArray[Any] = np.asarray(mask)
        if allowed.ndim != 2 or allowed.shape[1] != sum(self.mask_sizes) or allowed.dtype.kind not in "biuf":
            raise ValueError(
                f"action_mask: expected {sum(self.mask_sizes)} flags in each lane, got {allowed.dtype} {allowed.shape}"
            )
        told = np.asarray(infos.get(f"_{ACTION_MASK}", True)) if mask is infos.get(ACTION_MASK) else np.True_
        return allowed.astype(bool) | ~told.reshape(-1, 1)

    @property
    def action_limits(self) -> list[int | None]:
        """How many values each column of an action takes, from 0; None: any number."""
        if self.num_actions:
            return [self.num_actions]
        limits: list[int | None] = []
        for part in self.action_parts:
            limits += part.sizes if part.kind != "box" else [None] * len(part.low)
        return limits

    def no_action(self, lanes: int) -> Tensor:
        """What stands for the previous action where there is none."""
        shape = (lanes,) if self.num_actions else (lanes, len(self.action_limits))
        return torch.zeros(shape, dtype=torch.float32 if self.num_scales else torch.int64)

    def to_env(self, action: NDArray[Any]) -> Any:
        """An agent's actions `[B]` or `[B, W]` as the environment takes those of all lanes."""
        if not self.action_parts:
            return action
        ends = np.cumsum([len(part.low) for part in self.action_parts])[:-1]
        columns = np.split(action.reshape(len(action), -1), ends, axis=1)
        actions = tuple(part.to_env(own) for part, own in zip(self.action_parts, columns, strict=True))
        return actions if self.action_parts[0].path else actions[0]

    def distribution(self, parameters: Tensor) -> Distribution:
        """Of actions, by `[..., P]`: `num_outputs` logits and means, then the logarithms of the deviations."""
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


def _is_vector_of_names(space: Space) -> bool:
    """Whether observations are vectors in which each entry names one of its categories, counted from 0.

    In uint8 the categories of each entry are its own, in int32 they are tokens, the same for all entries.
    """
    is_vector = isinstance(space, MultiDiscrete) and len(space.shape) == 1 and not space.start.any()
    return is_vector and space.dtype in (np.uint8, np.int32)


def _obs_parts(space: Space, without: set[Place]) -> tuple[ArraySpec, ...]:
    found = numbers(space)
    for path in leaves(space).keys() - found.keys():
        _tell_left_out(name_of(path))
    parts = tuple(_array_spec(leaf, path) for path, leaf in found.items() if path not in without)
    if not parts or len({part.name for part in parts}) < len(parts):
        raise ValueError(f"observations: expected parts with numbers, each with a name of its own, got {space}")
    return parts


@cache
def _tell_left_out(name: str) -> None:
    logger.warning("observation %r is a text, which agents do not read: it is left out", name)


def _array_spec(space: Space, path: Place) -> ArraySpec:
    """Raises ValueError for what is no array of numbers."""
    name = f"observation {name_of(path)!r}" if path else "observations"
    match space:
        case Box() if space.dtype.kind in "buif" and 0 not in space.shape:
            if space.dtype != np.uint8:
                return ArraySpec(space.shape, "uint8" if space.dtype == np.bool_ else "float32", path=path)
            return ArraySpec(space.shape, "uint8", 1.0 / float(max(space.high.max(), 1)), path=path)
        case MultiBinary():
            return ArraySpec(space.shape, "int8", path=path)
        case Discrete() | MultiDiscrete():
            sizes = np.ravel(space.n if isinstance(space, Discrete) else space.nvec)
            categories, start = tuple(sizes.tolist()), tuple(np.ravel(space.start).tolist())
            shape = space.shape or ()
            if _is_vector_of_names(space):
                return ArraySpec(shape, str(space.dtype), 1.0, categories, space.dtype == np.int32, path=path)
            if sum(categories) > MOST_CATEGORIES:
                raise ValueError(f"{name}: expected at most {MOST_CATEGORIES:,} categories, got {sum(categories):,}")
            return ArraySpec(shape, "int64", 1.0, categories, start=start if any(start) else (), path=path)
    raise ValueError(
        f"{name}: expected numbers in a Box, Discrete, MultiDiscrete or MultiBinary space, or a Dict or Tuple of "
        f"these, got {space}; wrap the environment"
    )


def action_parts(space: Space) -> tuple[ActionPart, ...]:
    """The parts of an action. Raises ValueError for one that no policy of this package draws."""
    if isinstance(space, Tuple) and space.spaces:
        return tuple(_action_part(part, (str(i),)) for i, part in enumerate(space.spaces))
    return (_action_part(space, ()),)


def _action_part(space: Space, path: Place) -> ActionPart:
    """Raises ValueError for actions that no policy of this package draws."""
    name = f"actions, part {name_of(path)}" if path else "actions"
    match space:
        case Discrete() | MultiDiscrete():
            low = np.ravel(space.start)
            high = low + np.ravel(space.n if isinstance(space, Discrete) else space.nvec) - 1
            return ActionPart("discrete", space.shape or (), str(space.dtype), _plain(low), _plain(high), path)
        case MultiBinary():
            size = int(np.prod(space.shape))
            return ActionPart("binary", space.shape, str(space.dtype), (0,) * size, (1,) * size, path)
        case Box() if space.dtype.kind == "f" and not space.is_bounded():
            raise ValueError(f"{name}: expected a Box with finite bounds, got {space}; wrap the environment")
        case Box() if space.dtype.kind == "f" and 0 not in space.shape:
            return ActionPart("box", space.shape, str(space.dtype), _plain(space.low), _plain(space.high), path)
    raise ValueError(
        f"{name}: expected a Discrete, MultiDiscrete or MultiBinary action space, a Box of floats, or a Tuple of "
        f"these, got {space}"
    )


def _plain(bounds: NDArray[Any]) -> tuple[float, ...]:
    return tuple(np.ravel(bounds).tolist())


def _frozen(field: Any) -> Any:
    return tuple(map(_frozen, field)) if isinstance(field, list | tuple) else field
