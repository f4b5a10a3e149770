"""What an observation becomes before the core, in Stable-Baselines3's terms."""

from collections.abc import Sequence
from itertools import pairwise

from gymnasium import spaces
from stable_baselines3.common.torch_layers import FlattenExtractor
from torch import Tensor, nn


class MlpFeatures(FlattenExtractor):
    """Fully connected layers with ReLUs on the flattened observation, as in this project's own agent.

    Args:
      observation_space: any but a dictionary.
      sizes: the layers' widths; with none, the observation is flattened only.
    """

    def __init__(self, observation_space: spaces.Space, sizes: Sequence[int]) -> None:
        super().__init__(observation_space)
        widths = [int(self.features_dim), *sizes]  # of a MultiDiscrete space, a number of numpy's: no nn.LSTM takes it
        self.layers = nn.Sequential(*(m for pair in pairwise(widths) for m in (nn.Linear(*pair), nn.ReLU())))
        self._features_dim = widths[-1]

    def forward(self, observations: Tensor) -> Tensor:
        """Features `[B, sizes[-1]]` of observations `[B, ...]`."""
        return self.layers(super().forward(observations))
