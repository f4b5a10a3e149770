"""Feature extractors for Stable-Baselines3: from observations to features for the core."""

from collections.abc import Sequence
from itertools import pairwise

from gymnasium import spaces
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.torch_layers import CombinedExtractor, FlattenExtractor, NatureCNN
from torch import Tensor, nn

CONVOLUTIONS_FROM = 36  # pixels: the smallest image side that NatureCNN can take
RESERVED = frozenset(dir(nn.ModuleDict()))  # names that its modules cannot have


class MlpFeatures(FlattenExtractor):
    """Fully connected layers with ReLUs on the flattened observation, as in this project's own agent.

    Args:
      observation_space: any but a dictionary.
      sizes: the layers' widths; empty: the observation is only flattened.
    """

    def __init__(self, observation_space: spaces.Space, sizes: Sequence[int]) -> None:
        super().__init__(observation_space)
        self.layers, self._features_dim = _layers(self.features_dim, sizes)

    def forward(self, observations: Tensor) -> Tensor:
        """Features `[B, sizes[-1]]` of observations `[B, ...]`."""
        return self.layers(super().forward(observations))


class ImageFeatures(NatureCNN):
    """Convolutions, then fully connected layers with ReLUs, as in this project's own agent.

    Args:
      observation_space: images.
      sizes: the layers' widths; empty: one of 512.
    """

    def __init__(self, observation_space: spaces.Space, sizes: Sequence[int]) -> None:
        super().__init__(observation_space, *sizes[:1])
        self.layers, self._features_dim = _layers(self.features_dim, sizes[1:])

    def forward(self, observations: Tensor) -> Tensor:
        """Features `[B, sizes[-1]]` of images `[B, C, H, W]`."""
        return self.layers(super().forward(observations))


class DictFeatures(CombinedExtractor):
    """Features of each dictionary entry, concatenated: convolutions for images of 36x36 or more, others flattened.

    Args:
      observation_space: a dictionary.
      cnn_output_dim: features of each convolved image.
      normalized_image: images are already in 0..1, in any dtype.
      sizes: widths of the fully connected layers with ReLUs that follow; empty: none.
      convolve: whether images are convolved.
    """

    def __init__(
        self,
        observation_space: spaces.Dict,
        cnn_output_dim: int = 256,
        normalized_image: bool = False,
        sizes: Sequence[int] = (),
        convolve: bool = True,
    ) -> None:
        entries = {
            _module_name(name): space
            if convolve and is_large_picture(space, normalized_image)
            else spaces.flatten_space(space)
            if isinstance(space, spaces.Box)
            else space
            for name, space in observation_space.items()
        }
        super().__init__(spaces.Dict(entries), cnn_output_dim, normalized_image)
        self.layers, self._features_dim = _layers(self.features_dim, sizes)

    def forward(self, observations: dict[str, Tensor]) -> Tensor:
        """Features `[B, D]` of observations `[B, ...]`."""
        return self.layers(super().forward({_module_name(name): part for name, part in observations.items()}))


def _module_name(entry: str) -> str:
    """The name of an entry's module: its own, unless torch does not allow that."""
    is_allowed = entry and "." not in entry and entry not in RESERVED
    return entry if is_allowed else "%" + entry.replace(".", "%2E")


def _layers(inputs: int, sizes: Sequence[int]) -> tuple[nn.Sequential, int]:
    """Fully connected layers with ReLUs, and the width of their output."""
    widths = [int(inputs), *sizes]  # int: for MultiDiscrete it is a NumPy integer, which nn.LSTM rejects
    return nn.Sequential(*(m for pair in pairwise(widths) for m in (nn.Linear(*pair), nn.ReLU()))), widths[-1]


def is_large_picture(space: spaces.Space, normalized_image: bool = False) -> bool:
    """Whether observations are images, channels first or last, large enough for the convolutions."""
    if not is_image_space(space, check_channels=False, normalized_image=normalized_image):
        return False
    return sorted(space.shape or ())[1] >= CONVOLUTIONS_FROM
