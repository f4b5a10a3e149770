"""The first layers of an encoder, for each kind of array: images, numbers, categories, tokens."""

import logging
import math
from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn

from rmc_agents.kernels.lookup import rectified_lookup
from rmc_agents.spaces.parts import ArraySpec

CONV_FROM = 36  # pixels: the smallest image side that the three convolutions can take
GRID_FROM = 3  # pixels: the smallest image side that two convolutions of 2x2 can take
GRID_CHANNELS = 32, 64
LARGE = 84 * 84  # numbers: images of this size or more should not be flattened
LOOKUP_SIZE = 128  # embedding width of categories and tokens
FIRST_TOKENS = 16  # these are also summed separately

logger = logging.getLogger(__name__)


class Trunk(nn.Module):
    """The first layers: from `[N, *shape]` to `[N, width]`."""

    width: int


def make_trunk(array: ArraySpec, trunk: str, sizes: Sequence[int]) -> Trunk:
    """Make the trunk of one array, whose inputs are scaled unless categorical.

    Args:
      array: the input.
      trunk: conv, grid, mlp or auto; see `Encoder`.
      sizes: widths of the fully connected layers.

    Raises:
      ValueError: if the observation is not an image, or is too small for the convolutions.
    """
    if trunk == "grid":
        return _grid(array.shape)
    if array.categories and trunk != "conv":
        if array.dtype == "int64":
            return OneHot(array.categories)
        return _Tokens(array.categories) if array.are_tokens else _Lookup(array.categories)
    channels_axis = find_channels(array.shape)
    if trunk == "conv" and channels_axis is None:
        raise ValueError(
            f"encoder conv: expected images [H, W], [H, W, C] or [C, H, W] of at least {CONV_FROM}x{CONV_FROM} "
            f"pixels, got observations of shape {array.shape}; use encoder mlp"
        )
    if trunk == "mlp" or channels_axis is None:
        _warn_of_flattening(array.shape, sizes)
        return _Flat(array.shape)
    layers = [(32, 8, 4), (64, 4, 2), (64, 3, 1)]  # Mnih et al., 2015
    return _Convolutions(array.shape, channels_axis, layers)


def _grid(shape: tuple[int, ...]) -> Trunk:
    """The convolutions of Santoro et al. (2018) for BoxWorld, with more channels, on centred inputs."""
    if not is_image(shape, "grid"):
        raise ValueError(
            f"encoder grid: expected images [H, W] or [H, W, C] of at least {GRID_FROM}x{GRID_FROM} pixels, got "
            f"observations of shape {shape}; use encoder mlp"
        )
    return _Convolutions(shape, 2, [(channels, 2, 1) for channels in GRID_CHANNELS], _Centred())


def is_image(shape: tuple[int, ...], trunk: str) -> bool:
    """Whether observations of this shape are images that this trunk, conv or grid, can take."""
    if trunk == "grid":
        return len(shape) in (2, 3) and min(shape[:2]) >= GRID_FROM
    return find_channels(shape) is not None


def find_channels(shape: tuple[int, ...]) -> int | None:
    """The channel axis of an observation, if it is an image that convolutions can take.

    Returns:
      2 for `[H, W, C]`; 0 for `[C, H, W]`, such as stacked frames; 2 for `[H, W]`, with one implicit channel; None if
      it is not an image or is too small.
    """
    if len(shape) in (2, 3) and min(shape[:2]) >= CONV_FROM:
        return 2
    return 0 if len(shape) == 3 and min(shape[1:]) >= CONV_FROM else None


def _warn_of_flattening(shape: tuple[int, ...], sizes: Sequence[int]) -> None:
    numbers = math.prod(shape)
    if len(shape) > 1 and numbers >= LARGE and sizes:
        logger.warning(
            "observations of shape %s are flattened to %s numbers, for which the encoder's first layer alone has %s "
            "parameters; --encoder conv takes images of at least %dx%d pixels",
            shape,
            f"{numbers:,}",
            f"{numbers * sizes[0]:,}",
            CONV_FROM,
            CONV_FROM,
        )


class Trunks(Trunk):
    """A trunk for each array of a nested observation; their outputs are concatenated.

    Args:
      arrays: the inputs.
      trunk: auto, mlp, or conv or grid, which apply to the images.
      sizes: as in `make_trunk`.

    Raises:
      ValueError: for trunk conv or grid if none of the inputs is an image that it can take.
    """

    def __init__(self, arrays: Sequence[ArraySpec], trunk: str, sizes: Sequence[int]) -> None:
        super().__init__()
        images = [is_image(array.shape, trunk) and not array.categories for array in arrays]
        if trunk in ("conv", "grid") and not any(images):
            shapes = ", ".join(f"{array.name!r} {array.shape}" if array.name else str(array.shape) for array in arrays)
            raise ValueError(
                f"encoder {trunk}: expected an image among the observations, got {shapes}; use encoder mlp"
            )
        self.arrays = arrays
        each = [
            make_trunk(array, trunk if image or trunk == "mlp" else "auto", sizes)
            for array, image in zip(arrays, images, strict=True)
        ]
        self.each, self.width = nn.ModuleList(each), sum(one.width for one in each)

    def forward(self, obs: dict[str, Tensor]) -> Tensor:  # each [N, ...] -> [N, width]
        seen = []
        for array, trunk in zip(self.arrays, self.each, strict=True):
            x = obs[array.name]
            seen.append(trunk(x if array.categories else x.float() * array.scale))
        return torch.cat(seen, dim=-1)


class OneHot(Trunk):
    """One-hot encoding of categories `[N, ...]`, counted from 0, to `[N, sum of sizes]`, the first entry first.

    Args:
      sizes: the number of categories of each entry.
    """

    entry: Tensor  # [sum of sizes]: the entry of each column
    category: Tensor  # [sum of sizes]: the category of each column

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        for name in ("entry", "category"):
            self.register_buffer(name, torch.empty(sum(sizes), dtype=torch.int64), persistent=False)
        columns = zip(self.entry.split(list(sizes)), self.category.split(list(sizes)), strict=True)
        for i, (entry, category) in enumerate(columns):
            entry[:], category[:] = i, torch.arange(len(category))
        self.is_one, self.width = len(sizes) == 1, sum(sizes)

    def forward(self, categories: Tensor) -> Tensor:
        rows = _rows(categories)  # [N, E]
        return (rows if self.is_one else rows[:, self.entry]) == self.category


class _Lookup(Trunk):
    """Sum of learned embeddings, one for each category of each entry, then ReLU.

    Equal to a linear layer on the one-hot entries, without the multiplications by 0.
    """

    first: Tensor  # [E], each entry's first row in the table
    width = LOOKUP_SIZE

    def __init__(self, categories: tuple[int, ...]) -> None:
        super().__init__()
        first = torch.tensor([0, *accumulate(categories[:-1])], dtype=torch.int32)
        self.register_buffer("first", first, persistent=False)
        self.table = nn.Parameter(torch.empty(sum(categories), LOOKUP_SIZE))
        self.bias = nn.Parameter(torch.zeros(LOOKUP_SIZE))
        nn.init.orthogonal_(self.table, gain=math.sqrt(2))

    def forward(self, entries: Tensor) -> Tensor:  # [N, E] -> [N, LOOKUP_SIZE]
        return rectified_lookup(entries + self.first, self.table, self.bias)


class _Tokens(Trunk):
    """Embedded tokens, most important first: ReLU of the sum of the first ones, and of the sum of all, concatenated.

    Tokens far away change all the time and carry little information; the separate sum of the first ones learns without
    this noise.
    """

    width = 2 * LOOKUP_SIZE

    def __init__(self, categories: tuple[int, ...]) -> None:
        super().__init__()
        self.first, self.all = _embedding(categories[:FIRST_TOKENS]), _embedding(categories)
        self.first_bias, self.all_bias = (nn.Parameter(torch.zeros(LOOKUP_SIZE)) for _ in range(2))

    def forward(self, tokens: Tensor) -> Tensor:  # [N, E] -> [N, 2 * LOOKUP_SIZE]
        first = rectified_lookup(tokens[:, :FIRST_TOKENS].contiguous(), self.first.weight, self.first_bias)
        return torch.cat([first, rectified_lookup(tokens, self.all.weight, self.all_bias)], dim=-1)


def _embedding(categories: tuple[int, ...]) -> nn.Embedding:
    """An embedding table shared by all entries; the sum over the entries has initial variance 2."""
    embedding = nn.Embedding(max(categories), LOOKUP_SIZE)
    nn.init.normal_(embedding.weight, std=math.sqrt(2 / len(categories)))
    return embedding


def _rows(x: Tensor) -> Tensor:  # [N, ...] -> [N, D]; also for [N]
    return x.flatten(1) if x.dim() > 1 else x.unsqueeze(1)


class _Flat(Trunk):
    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.width = math.prod(shape)

    def forward(self, x: Tensor) -> Tensor:
        return _rows(x)


class _Convolutions(nn.Sequential, Trunk):
    """Convolutions, each with a ReLU, and their outputs flattened.

    Args:
      shape, channels_axis: of the images.
      layers: output channels, side of the kernel and stride of each.
      before: modules between the images, channels first, and the convolutions.
    """

    def __init__(
        self, shape: tuple[int, ...], channels_axis: int, layers: Sequence[tuple[int, int, int]], *before: nn.Module
    ) -> None:
        channels, sides = (*shape, 1)[channels_axis], shape[1:] if channels_axis == 0 else shape[:2]
        convolutions: list[nn.Module] = []
        for out, kernel, stride in layers:
            convolutions += [nn.Conv2d(channels, out, kernel, stride), nn.ReLU()]
            channels, sides = out, tuple((side - kernel) // stride + 1 for side in sides)
        super().__init__(_ChannelsFirst(shape, channels_axis), *before, *convolutions, nn.Flatten())
        self.width = channels * math.prod(sides)


class _ChannelsFirst(nn.Module):
    def __init__(self, shape: tuple[int, ...], channels_axis: int) -> None:
        super().__init__()
        self.has_channels, self.axis = len(shape) == 3, 1 + channels_axis

    def forward(self, picture: Tensor) -> Tensor:  # [N, H, W], [N, H, W, C] or [N, C, H, W] -> [N, C, H, W]
        return picture.movedim(self.axis, 1) if self.has_channels else picture[:, None]


class _Centred(nn.Module):
    """Brightness 0..1 to -1..1, with each channel in one piece: small convolutions take 0.6 times as long."""

    def forward(self, picture: Tensor) -> Tensor:
        return (2 * picture - 1).contiguous()
