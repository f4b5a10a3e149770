"""The parts of a nested observation as entries of Stable-Baselines3's flat dictionary."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium.spaces import Space
from numpy.typing import NDArray
from stable_baselines3.common.preprocessing import is_image_space

from rmc_agents.spaces.parts import ArraySpec


class Entry(NamedTuple):
    """A part of a nested observation, in a shape that Stable-Baselines3 takes."""

    part: ArraySpec
    shape: tuple[int, ...]
    channels: int = 0  # the axis of an image that becomes its first

    @property
    def name(self) -> str:
        """The key in the flat dictionary."""
        return self.part.name

    @property
    def space(self) -> Space:
        """The space of one lane's arrays."""
        return self.part._replace(shape=self.shape).space

    def arrange(self, array: NDArray[Any]) -> NDArray[Any]:
        """The part's array `[B, *part.shape]` as `[B, *shape]`."""
        if self.channels:
            array = np.moveaxis(array, 1 + self.channels, 1)
        return array.reshape(len(array), *self.shape)


def entries(parts: Sequence[ArraySpec]) -> tuple[Entry, ...]:
    """The entries of a nested observation; other shapes than the parts' only where Stable-Baselines3 fails with those.

    Categories and single numbers become vectors. Images whose channels come first in some and last in others all get
    them first; like Stable-Baselines3, this takes the smallest axis for the channels.
    """
    channels = {part: int(np.argmin(part.shape)) for part in parts if is_image_space(part.space)}
    if all(channels.values()):  # Stable-Baselines3 itself moves them
        channels = {}
    return tuple(Entry(part, _shape(part, channels.get(part, 0)), channels.get(part, 0)) for part in parts)


def _shape(part: ArraySpec, channels: int) -> tuple[int, ...]:
    if part.categories:
        return part.shape and (math.prod(part.shape),)
    if not part.shape:
        return (1,)
    return (part.shape[channels], *part.shape[:channels], *part.shape[channels + 1 :])
