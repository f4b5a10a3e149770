"""Spaces of observations that are categories for an embedding."""

import numpy as np
from gymnasium.spaces import MultiDiscrete, Space


class Tokens(MultiDiscrete):
    """A vector of tokens, of which an agent adds up the embeddings: all entries share the categories.

    The most important tokens come first. In an ordinary `MultiDiscrete` each entry has categories of its own.
    """

    def __init__(self, nvec: np.ndarray) -> None:
        super().__init__(nvec, dtype=np.int32)  # type: ignore[arg-type]  # it takes any integer


def is_vector_of_names(space: Space) -> bool:
    """Whether observations are vectors of categories for an embedding: `Tokens`, or entries in uint8, from 0."""
    is_vector = isinstance(space, MultiDiscrete) and len(space.shape) == 1 and not space.start.any()
    return is_vector and (isinstance(space, Tokens) or space.dtype == np.uint8)
