"""What an observation becomes before the core, in Stable-Baselines3's terms."""

from collections.abc import Sequence
from itertools import pairwise

from gymnasium import spaces
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.torch_layers import CombinedExtractor, FlattenExtractor
from torch import Tensor, nn

CONVOLUTIONS_FROM = 36  # pixels: the smallest picture that NatureCNN leaves something of


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


class DictFeatures(CombinedExtractor):
    """Each entry of a dictionary by itself, side by side: pictures from 36x36 on convolved, all others flattened.

    Args:
      observation_space: a dictionary.
      cnn_output_dim: features of each convolved picture.
      normalized_image: pictures are in 0..1 already, in any dtype.
    """

    def __init__(
        self, observation_space: spaces.Dict, cnn_output_dim: int = 256, normalized_image: bool = False
    ) -> None:
        entries = {
            name: space
            if is_large_picture(space, normalized_image)
            else spaces.flatten_space(space)
            if isinstance(space, spaces.Box)
            else space
            for name, space in observation_space.items()
        }
        super().__init__(spaces.Dict(entries), cnn_output_dim, normalized_image)
        self._features_dim = int(self.features_dim)  # of MultiDiscrete entries, a number of numpy's


def is_large_picture(space: spaces.Space, normalized_image: bool = False) -> bool:
    """Whether observations are pictures, channels first or last, that convolutions leave something of."""
    if not is_image_space(space, check_channels=False, normalized_image=normalized_image):
        return False
    return sorted(space.shape or ())[1] >= CONVOLUTIONS_FROM
