"""The space of observations that are tokens."""

import numpy as np
from gymnasium.spaces import MultiDiscrete


class Tokens(MultiDiscrete):
    """A vector of tokens, of which an agent adds up the embeddings: all entries share the categories.

    The most important tokens come first. In an ordinary `MultiDiscrete` each entry has categories of its own.
    """

    def __init__(self, nvec: np.ndarray) -> None:
        super().__init__(nvec, dtype=np.int32)  # type: ignore[arg-type]  # it takes any integer
