"""Parts of an environment's spaces: arrays of an observation and columns of an action; see `spaces`."""

from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space, Tuple
from numpy.typing import NDArray
from torch import Tensor

from rmc_agents.envs.nested import MAX_CATEGORIES, KeyPath, leaves, numeric_leaves, path_name, pick
from rmc_agents.envs.token_space import Tokens, is_vector_of_names
from rmc_agents.envs.warn_once import warn_once


class ArraySpec(NamedTuple):
    """One array of an observation, as plain values.

    Attributes:
      shape: of one observation.
      dtype: in a time step: uint8 for images, int8 for bits, int64 or int32 for categories, else float32.
      scale: observations are multiplied by this: 1/255 for images.
      categories: if all entries are categorical: the number of categories of each.
      are_tokens: all entries share the categories; the most important come first.
      start: each entry's first category in the environment; (): 0.
      path: its position in the observation.
    """

    shape: tuple[int, ...]
    dtype: str
    scale: float = 1.0
    categories: tuple[int, ...] = ()
    are_tokens: bool = False
    start: tuple[int, ...] = ()
    path: KeyPath = ()

    @property
    def name(self) -> str:
        """The key in a time step's observation."""
        return path_name(self.path)

    def described(self) -> str:
        """In words, for messages."""
        numbers = f"{sum(self.categories)} categories" if self.categories else f"times {self.scale:.3g}"
        return f"{self.name} {self.shape} of {self.dtype} ({numbers})".lstrip()

    def observe(self, obs: Any) -> Tensor:
        """Extract this part `[B, *shape]` from the observation of all lanes. Raises ValueError if it is missing."""
        array = np.asarray(pick(obs, self.path))
        if array.shape[1:] != self.shape:
            raise ValueError(f"observation {self.name!r}: expected {self.shape} in each lane, got {array.shape[1:]}")
        return self.encode(array)

    @property
    def space(self) -> Space:
        """The space of the arrays that `encode` returns."""
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
        """Convert the environment's array `[B, *shape]` to its form in a time step."""
        if self.start:
            array = array - np.reshape(self.start, self.shape)
        array = np.ascontiguousarray(array, self.dtype)
        return torch.as_tensor(array if array.flags.writeable else array.copy())  # torch warns of read-only ones


class ActionPart(NamedTuple):
    """One space of an action, as plain values."""

    kind: Literal["discrete", "binary", "box"]
    shape: tuple[int, ...]
    dtype: str  # the environment's
    low: tuple[float, ...]  # the smallest value of each column
    high: tuple[float, ...]  # the largest
    path: KeyPath = ()  # its position in a Tuple

    @property
    def sizes(self) -> list[int]:
        """The number of values of each categorical or binary column."""
        return [int(high - low) + 1 for low, high in zip(self.low, self.high, strict=True)]

    @property
    def num_outputs(self) -> int:
        """Number of logits or means."""
        return sum(self.sizes) if self.kind == "discrete" else len(self.low)

    def described(self) -> str:
        """In words, for messages."""
        limits = f"{list(self.low)} to {list(self.high)}" if self.shape else f"{self.low[0]} to {self.high[0]}"
        return f"{self.kind} actions from {limits}"

    def to_env(self, columns: NDArray[Any]) -> NDArray[Any]:
        """Columns `[B, W]` as actions `[B, *shape]` of the environment; Box actions are clipped to the bounds."""
        low, high = np.array(self.low), np.array(self.high)
        if self.kind == "box":
            columns = np.clip(low + (columns + 1.0) / 2.0 * (high - low), low, high)
        elif self.kind == "discrete":
            columns = columns + low
        return columns.astype(self.dtype).reshape(-1, *self.shape)


def observation_parts(space: Space, without: set[KeyPath]) -> tuple[ArraySpec, ...]:
    """The arrays of an observation, except at paths in `without`. Raises ValueError if one cannot be encoded."""
    found = numeric_leaves(space)
    for path in leaves(space).keys() - found.keys():
        warn_once("observation %r is text, which agents cannot read: it is left out", path_name(path))
    parts = tuple(array_spec(leaf, path) for path, leaf in found.items() if path not in without)
    if not parts:
        raise ValueError(f"observations: expected at least one part of numbers, got {space}")
    if len({part.name for part in parts}) < len(parts):
        raise ValueError(f"observations: expected unique names of parts, joined by slashes, got {space}")
    return parts


def array_spec(space: Space, path: KeyPath) -> ArraySpec:
    """Describe a leaf space. Raises ValueError unless it is an array of numbers."""
    name = f"observation {path_name(path)!r}" if path else "observations"
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
            if is_vector_of_names(space):
                return ArraySpec(shape, str(space.dtype), 1.0, categories, isinstance(space, Tokens), path=path)
            if sum(categories) > MAX_CATEGORIES:
                raise ValueError(f"{name}: expected at most {MAX_CATEGORIES:,} categories, got {sum(categories):,}")
            return ArraySpec(shape, "int64", 1.0, categories, start=start if any(start) else (), path=path)
    raise ValueError(
        f"{name}: expected numbers in a Box, Discrete, MultiDiscrete or MultiBinary space, or a Dict or Tuple of "
        f"these, got {space}; wrap the environment"
    )


def action_parts(space: Space) -> tuple[ActionPart, ...]:
    """The parts of an action. Raises ValueError for an unsupported space."""
    if isinstance(space, Tuple) and space.spaces:
        return tuple(_action_part(part, (str(i),)) for i, part in enumerate(space.spaces))
    return (_action_part(space, ()),)


def _action_part(space: Space, path: KeyPath) -> ActionPart:
    """Describe a leaf space. Raises ValueError for an unsupported one."""
    name = f"actions, part {path_name(path)}" if path else "actions"
    alternative = "a Box of floats" if path else "a Box of floats, or a Tuple of these"
    match space:
        case Discrete() | MultiDiscrete():
            low = np.ravel(space.start)
            high = low + np.ravel(space.n if isinstance(space, Discrete) else space.nvec) - 1
            return ActionPart("discrete", space.shape or (), str(space.dtype), _plain(low), _plain(high), path)
        case MultiBinary():
            size = int(np.prod(space.shape))
            return ActionPart("binary", space.shape, str(space.dtype), (0,) * size, (1,) * size, path)
        case Box() if space.dtype.kind == "f" and not _has_finite_range(space):
            raise ValueError(f"{name}: expected a Box with finite bounds and ranges, got {space}; wrap the environment")
        case Box() if space.dtype.kind == "f" and 0 not in space.shape:
            return ActionPart("box", space.shape, str(space.dtype), _plain(space.low), _plain(space.high), path)
    raise ValueError(f"{name}: expected a Discrete, MultiDiscrete or MultiBinary space, or {alternative}, got {space}")


def _has_finite_range(space: Box) -> bool:
    """Whether bounds and the distance between them are finite in float32, as in the agent's computations."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(space.high.astype(np.float32) - space.low.astype(np.float32)).all())


def _plain(bounds: NDArray[Any]) -> tuple[float, ...]:
    return tuple(np.ravel(bounds).tolist())
