"""Encoders: what an observation becomes before the core. Time steps `[N, ...]` in, features `[N, D]` out."""

import difflib
import inspect
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from rmc_agents import plugins
from rmc_agents.kernels.lookup import rectified_lookup
from rmc_agents.kernels.products import rectified_linear
from rmc_agents.kernels.weights import affine
from rmc_agents.types import NotRegistered, SpaceSpec, TimeStep

CONV_FROM = 36  # pixels: the smallest picture that the three convolutions leave something of
LARGE = 84 * 84  # numbers: pictures from here on are better not flattened
LOOKUP_SIZE = 128  # width of what categories or tokens become
FIRST_TOKENS = 16  # how many are added up by themselves as well

BUILT_IN = ("auto", "mlp", "conv")
"""Names of `Encoder` with that trunk."""

BuildEncoder = Callable[..., nn.Module]
"""From a `SpaceSpec`, and further arguments by name, to an encoder."""
_registered: dict[str, BuildEncoder] = {}

logger = logging.getLogger(__name__)


def register_encoder(name: str, build: BuildEncoder) -> None:
    """Give an encoder a name, for `ActorCritic(encoder=name)`, the setting `encoder` and checkpoints.

    An encoder is a module that is called with a `TimeStep` whose fields are `[N, *obs_shape]` and `[N]` (time and lanes
    are one axis, so it keeps no state) and returns features `[N, D]` float32. Its attribute `output_size` is D.
    Observations come in the environment's own dtype: `spec.obs_scale` brings pictures to 0..1. Where `is_first` is
    set, `prev_action` is meaningless and `prev_reward` is 0: use neither there.

    Args:
      name: what it is called; a name registered before is replaced.
      build: a function, or the encoder's class, from a `SpaceSpec` to a new encoder. Further arguments are taken by
        name from `encoder_args`, the setting and the argument of `ActorCritic`.

    Raises:
      ValueError: for the name of a built-in encoder, or a `build` that cannot be called.
    """
    if name in BUILT_IN:
        raise ValueError(f"encoder {name!r}: expected another name than those of the built-in ones, {_or(BUILT_IN)}")
    if isinstance(build, nn.Module) or not callable(build):
        raise ValueError(
            f"encoder {name!r}: expected a class or a function from a SpaceSpec to a module, got {type(build).__name__}"
        )
    _registered[name] = build


def make_encoder(
    encoder: str | nn.Module | BuildEncoder,
    spec: SpaceSpec,
    sizes: Sequence[int],
    arguments: Mapping[str, Any] | None = None,
) -> nn.Module:
    """The encoder that was asked for.

    Args:
      encoder: a name, a module, or a function (or class) from the spec to a module; see `register_encoder`.
      spec: the environment's spaces.
      sizes: widths of the fully connected layers of a built-in one.
      arguments: further ones of a function or class that was registered.

    Raises:
      NotRegistered: for a name that is not registered, with the nearest that is.
      ValueError: for what is no encoder, or does not fit the observations.
    """
    if isinstance(encoder, str):
        if encoder in BUILT_IN:
            if arguments:
                raise ValueError(f"encoder_args: expected none for encoder {encoder}, got {', '.join(arguments)}")
            return Encoder(spec, encoder, sizes)
        name, encoder = encoder, _find(encoder)
        try:
            inspect.signature(encoder).bind(spec, **(arguments or {}))
        except TypeError as error:
            raise ValueError(f"encoder_args: {name}: {error}") from None
        encoder = partial(encoder, **(arguments or {}))
    made = encoder if isinstance(encoder, nn.Module) else encoder(spec)
    if isinstance(made, nn.Module) and any(is_lazy(each) for each in made.parameters()):
        raise ValueError(
            f"encoder: expected initialised parameters, got lazy ones in {type(made).__name__}; call it once"
        )
    size = getattr(made, "output_size", None)
    if not isinstance(made, nn.Module) or not isinstance(size, int):
        raise ValueError(
            f"encoder: expected a module with an attribute output_size, the width of its features, got "
            f"{type(made).__name__}" + (f" with output_size {size!r}" if isinstance(made, nn.Module) else "")
        )
    return made


def _find(name: str) -> BuildEncoder:
    if name in _registered:
        return _registered[name]
    if (own := plugins.find(name)) is not None:
        return own
    if ":" in name:
        raise NotRegistered(
            f"encoder: {name!r} is not registered: {plugins.remedy(name)}, or in Python call "
            f"rmc.register_encoder({name!r}, build) first"
        )
    known = [*BUILT_IN, *_registered]
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"expected {_or(known)}."
    raise NotRegistered(
        f"encoder: there is no encoder {name!r}: {hint} Own ones are to be registered first, by "
        f"rmc.register_encoder({name!r}, build); on the command line, {plugins.remedy(name)}"
    )


def _or(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"


class Encoder(nn.Module):
    """Observation, previous action and previous reward to one feature vector.

    The previous action (one-hot) and reward are zero on an episode's first observation: they would otherwise tell of
    the episode before.

    Args:
      spec: the environment's spaces.
      trunk: conv: three strided convolutions, for pictures; mlp: flat; auto: what suits the observations.
      sizes: widths of the fully connected layers.

    Raises:
      ValueError: for convolutions of what is no picture.
    """

    actions: Tensor  # [A], 0 to A - 1

    def __init__(self, spec: SpaceSpec, trunk: str = "auto", sizes: Sequence[int] = (256, 128)) -> None:
        super().__init__()
        self.register_buffer("actions", torch.arange(spec.num_actions), persistent=False)
        self.scale = None if spec.obs_categories else spec.obs_scale
        self.trunk = _make_trunk(spec, trunk, sizes)
        width = _trunk_size(self.trunk, spec) + spec.num_actions + 1
        widths = [width, *sizes]
        self.layers = nn.ModuleList(_linear(*sizes) for sizes in pairwise(widths))
        self.output_size = widths[-1]

    def forward(self, steps: TimeStep) -> Tensor:
        """Features `[..., D]` of time steps whose fields are `[..., *obs_shape]` and `[...]`."""
        leading = steps.is_first.shape
        obs = steps.obs.reshape(-1, *steps.obs.shape[len(leading) :])  # [N, ...]
        continues = ~steps.is_first.reshape(-1, 1)
        action = (steps.prev_action.reshape(-1, 1) == self.actions) & continues  # one-hot
        reward = steps.prev_reward.reshape(-1, 1) * continues
        seen = self.trunk(obs if self.scale is None else obs.float() * self.scale)
        features = torch.cat([seen, action, reward], dim=-1)
        for layer in self.layers:
            features = rectified_linear(features, *affine(layer))
        return features.reshape(*leading, self.output_size)


def _make_trunk(spec: SpaceSpec, trunk: str, sizes: Sequence[int]) -> nn.Module:
    if spec.obs_categories and trunk != "conv":
        return _Tokens(spec.obs_categories) if spec.obs_are_tokens else _Lookup(spec.obs_categories)
    channels_axis = find_channels(spec.obs_shape)
    if trunk == "conv" and channels_axis is None:
        raise ValueError(
            f"encoder conv: expected pictures [H, W], [H, W, C] or [C, H, W] of at least {CONV_FROM}x{CONV_FROM} "
            f"pixels, got observations of shape {spec.obs_shape}; use encoder mlp"
        )
    if trunk == "mlp" or channels_axis is None:
        _warn_of_flattening(spec.obs_shape, sizes)
        return nn.Flatten()
    channels = (*spec.obs_shape, 1)[channels_axis]
    return nn.Sequential(  # Mnih et al., 2015
        _ChannelsFirst(spec.obs_shape, channels_axis),
        nn.Conv2d(channels, 32, 8, stride=4),
        nn.ReLU(),
        nn.Conv2d(32, 64, 4, stride=2),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, stride=1),
        nn.ReLU(),
        nn.Flatten(),
    )


def find_channels(shape: tuple[int, ...]) -> int | None:
    """Along which axis an observation is a picture's channels, if it is a picture that convolutions can take.

    Returns:
      2 for `[H, W, C]`, 0 for `[C, H, W]`, as stacks of frames are, 2 for `[H, W]`, which has one channel and no axis
      for it, None for what is no picture or too small a one.
    """
    if len(shape) in (2, 3) and min(shape[:2]) >= CONV_FROM:
        return 2
    return 0 if len(shape) == 3 and min(shape[1:]) >= CONV_FROM else None


def _warn_of_flattening(shape: tuple[int, ...], sizes: Sequence[int]) -> None:
    numbers = math.prod(shape)
    if len(shape) > 1 and numbers >= LARGE and sizes:
        logger.warning(
            "observations of shape %s are flattened to %s numbers, for which the encoder's first layer alone has %s "
            "parameters; --encoder conv takes pictures of at least %dx%d pixels",
            shape,
            f"{numbers:,}",
            f"{numbers * sizes[0]:,}",
            CONV_FROM,
            CONV_FROM,
        )


class _Lookup(nn.Module):
    """Learned vectors, one for each category of each entry of an observation, added up and rectified.

    What a linear layer would make of the entries one-hot, without the products with 0.
    """

    first: Tensor  # [E], each entry's first row in the table

    def __init__(self, categories: tuple[int, ...]) -> None:
        super().__init__()
        counts = torch.tensor(categories)
        self.register_buffer("first", (counts.cumsum(0) - counts).int(), persistent=False)
        self.table = nn.Parameter(torch.empty(sum(categories), LOOKUP_SIZE))
        self.bias = nn.Parameter(torch.zeros(LOOKUP_SIZE))
        nn.init.orthogonal_(self.table, gain=math.sqrt(2))

    def forward(self, entries: Tensor) -> Tensor:  # [N, E] -> [N, LOOKUP_SIZE]
        return rectified_lookup(entries + self.first, self.table, self.bias)


class _Tokens(nn.Module):
    """Embedded tokens, the most important first: the first of them added up and rectified, and beside it all of them.

    Most of what is far away says nothing and changes all the time. From the first alone is learned undisturbed.
    """

    def __init__(self, categories: tuple[int, ...]) -> None:
        super().__init__()
        self.first, self.all = _embedding(categories[:FIRST_TOKENS]), _embedding(categories)
        self.first_bias, self.all_bias = (nn.Parameter(torch.zeros(LOOKUP_SIZE)) for _ in range(2))

    def forward(self, tokens: Tensor) -> Tensor:  # [N, E] -> [N, 2 * LOOKUP_SIZE]
        first = rectified_lookup(tokens[:, :FIRST_TOKENS].contiguous(), self.first.weight, self.first_bias)
        return torch.cat([first, rectified_lookup(tokens, self.all.weight, self.all_bias)], dim=-1)


def _embedding(categories: tuple[int, ...]) -> nn.Embedding:
    """Of entries that share their tokens and have the first so many of them; sums have a variance of 2 at first."""
    embedding = nn.Embedding(max(categories), LOOKUP_SIZE)
    nn.init.normal_(embedding.weight, std=math.sqrt(2 / len(categories)))
    return embedding


class _ChannelsFirst(nn.Module):
    def __init__(self, shape: tuple[int, ...], channels_axis: int) -> None:
        super().__init__()
        self.has_channels, self.axis = len(shape) == 3, 1 + channels_axis

    def forward(self, picture: Tensor) -> Tensor:  # [N, H, W], [N, H, W, C] or [N, C, H, W] -> [N, C, H, W]
        return picture.movedim(self.axis, 1) if self.has_channels else picture[:, None]


def _trunk_size(trunk: nn.Module, spec: SpaceSpec) -> int:
    with torch.no_grad():
        return trunk(torch.zeros(1, *spec.obs_shape, dtype=torch.int32 if spec.obs_categories else None)).shape[1]


def _linear(inputs: int, outputs: int) -> nn.Linear:
    """A layer before a ReLU: orthogonal with gain sqrt(2), biases 0."""
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain=math.sqrt(2))
    nn.init.zeros_(layer.bias)
    return layer
