"""Encoders: from time steps `[N, ...]` to features `[N, D]` for the core."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rmc_agents.config import ENCODERS
from rmc_agents.kernels.products import rectified_linear
from rmc_agents.kernels.weights import affine
from rmc_agents.registry import Registry, check_module
from rmc_agents.spaces import SpaceSpec
from rmc_agents.spaces.parts import ActionPart
from rmc_agents.types import TimeStep

from .contract import check_encoder
from .trunks import OneHot, Trunks, make_trunk

BuildEncoder = Callable[..., nn.Module]
"""Builds an encoder from a `SpaceSpec` and further keyword arguments."""
_registry = Registry("encoder", ENCODERS)


def register_encoder(name: str, build: BuildEncoder) -> None:
    """Register an encoder under a name, for `ActorCritic(encoder=name)`, the setting `encoder` and checkpoints.

    An encoder is a module that is called with a `TimeStep` whose fields are `[N, *obs_shape]` and `[N]` (time and lanes
    are one axis, so it keeps no state) and returns features `[N, D]` float32. Its attribute `output_size` is D.
    Observations have the dtypes of `spec.arrays`, nested ones are dicts with the names there; an array's `scale` maps
    images to 0..1. Where `is_first` is set, `prev_action` is meaningless and `prev_reward` is 0: use neither there.

    Args:
      name: the encoder's name; registering it again replaces the builder.
      build: a class or function that takes a `SpaceSpec` and returns a new encoder. Further keyword arguments come from
        `encoder_args`, a setting and an argument of `ActorCritic`.

    Raises:
      ValueError: for the name of a built-in encoder, or a `build` that cannot be called.
    """
    _registry.register(name, build)


def make_encoder(
    encoder: str | nn.Module | BuildEncoder,
    spec: SpaceSpec,
    sizes: Sequence[int],
    arguments: Mapping[str, Any] | None = None,
) -> nn.Module:
    """Build the encoder.

    Args:
      encoder: a name, a module, or a function or class that takes the spec; see `register_encoder`.
      spec: the environment's spaces.
      sizes: widths of the fully connected layers of a built-in encoder.
      arguments: further arguments of a function or class, registered or not.

    Raises:
      NotRegistered: for a name that is not registered; the message suggests the nearest.
      ValueError: if it is not an encoder, does not fit the observations, or fails `check_encoder`.
    """
    arguments = arguments or {}
    is_built_in = isinstance(encoder, str) and encoder in ENCODERS
    name = encoder if isinstance(encoder, str) else getattr(encoder, "__name__", type(encoder).__name__)
    if arguments and (is_built_in or isinstance(encoder, nn.Module)):
        raise ValueError(f"encoder_args: expected none for encoder {name}, got {', '.join(arguments)}")
    if is_built_in:
        return Encoder(spec, name, sizes)
    if not callable(encoder) and not isinstance(encoder, str):
        raise ValueError(f"encoder: expected a name, a class, a function or a module, got {name}")
    made = encoder
    if not isinstance(encoder, nn.Module):
        build = _registry.find(encoder) if isinstance(encoder, str) else encoder
        _registry.check_arguments(name, build, spec, arguments)
        made = build(spec, **arguments)
    if isinstance(made, nn.Module):
        check_module("encoder", made)
    size = getattr(made, "output_size", None)
    if not isinstance(made, nn.Module) or not isinstance(size, int | np.integer):
        raise ValueError(
            f"encoder: expected a module with an attribute output_size, the width of its features, got "
            f"{type(made).__name__}" + (f" with output_size {size!r}" if isinstance(made, nn.Module) else "")
        )
    check_encoder(made, spec)
    return made


class Encoder(nn.Module):
    """Maps observation, previous action and previous reward to one feature vector.

    Each array of a nested observation has its own trunk, and their outputs are concatenated. The previous action
    (one-hot, bits, or numbers clipped to -1..1) and reward are zero at an episode's first observation, because they
    belong to the previous episode.

    Args:
      spec: the environment's spaces.
      trunk: conv: three strided convolutions, for images; grid: two small ones, for images with one pixel per cell of
        a grid; mlp: flattened; auto: conv or mlp, chosen by the observations.
      sizes: widths of the fully connected layers.

    Raises:
      ValueError: for trunk conv or grid if the observations are not images that it can take.
    """

    def __init__(self, spec: SpaceSpec, trunk: str = "auto", sizes: Sequence[int] = (256, 128)) -> None:
        super().__init__()
        check_widths("encoder_sizes", sizes)
        self.action = _ActionFeatures(spec)
        self.scale = None if spec.obs_categories or spec.obs_parts else spec.obs_scale
        self.trunk = Trunks(spec.obs_parts, trunk, sizes) if spec.obs_parts else make_trunk(spec.array, trunk, sizes)
        width = self.trunk.width + self.action.width + 1
        self.layers, self.output_size = hidden_layers("encoder_sizes", width, sizes)

    def forward(self, steps: TimeStep) -> Tensor:
        """Features `[N, D]` of time steps whose fields are `[N, *obs_shape]` and `[N]`."""
        is_first = steps.is_first.unsqueeze(1)
        action = self.action(steps.prev_action).float().masked_fill(is_first, 0)
        reward = steps.prev_reward.unsqueeze(1).masked_fill(is_first, 0)
        obs: Any = steps.obs
        seen = self.trunk(obs if self.scale is None else obs.float() * self.scale)
        return rectified(self.layers, torch.cat([seen, action, reward], dim=-1))


class _ActionFeatures(nn.Module):
    """Encodes actions `[N]` or `[N, W]`: categories one-hot, bits unchanged, numbers clipped to their bounds."""

    def __init__(self, spec: SpaceSpec) -> None:
        super().__init__()
        parts = () if spec.num_actions else spec.action_parts
        self.widths = [len(part.low) for part in parts] or [1]
        self.parts = nn.ModuleList(map(_encoding, parts) if parts else [OneHot([spec.num_actions])])
        self.width = spec.num_outputs

    def forward(self, action: Tensor) -> Tensor:
        if len(self.parts) == 1:
            return self.parts[0](action)
        columns = action.split(self.widths, dim=-1)
        return torch.cat([part(own) for part, own in zip(self.parts, columns, strict=True)], dim=-1)


def _encoding(part: ActionPart) -> nn.Module:
    if part.kind == "discrete":
        return OneHot(part.sizes)
    return nn.Hardtanh() if part.kind == "box" else nn.Identity()


def hidden_layers(name: str, inputs: int, sizes: Sequence[int]) -> tuple[nn.ModuleList, int]:
    """Fully connected layers of these widths, and the width of the last one's outputs.

    Raises:
      ValueError: unless `sizes`, the argument `name`, is a sequence of positive integers.
    """
    check_widths(name, sizes)
    widths = [inputs, *sizes]
    return nn.ModuleList(orthogonal_layer(*pair) for pair in pairwise(widths)), widths[-1]


def check_widths(name: str, sizes: Sequence[int]) -> None:
    """Raises ValueError unless `sizes`, the argument `name`, is a sequence of positive integers."""
    if not isinstance(sizes, Sequence) or not all(isinstance(size, int | np.integer) and size > 0 for size in sizes):
        raise ValueError(f"{name}: expected a sequence of positive integers, got {sizes!r}")


MANY = 2**16


def orthogonal_layer(inputs: int, outputs: int, gain: float = math.sqrt(2)) -> nn.Linear:
    """A layer with orthogonal weights and biases 0; the default gain is for a layer before a ReLU.

    With more than `MANY` outputs the weights are normal: nearly orthogonal, and drawn in seconds instead of minutes.
    """
    layer = nn.Linear(inputs, outputs)
    if outputs > MANY:
        nn.init.normal_(layer.weight, std=gain * outputs**-0.5)
    else:
        nn.init.orthogonal_(layer.weight, gain=gain)
    nn.init.zeros_(layer.bias)
    return layer


def rectified(layers: Iterable[nn.Module], features: Tensor) -> Tensor:
    """Features `[..., D]` through linear layers, each followed by a ReLU."""
    leading = features.shape[:-1]
    features = features.flatten(0, -2)  # [N, D]
    for layer in layers:
        features = rectified_linear(features, *affine(layer))
    return features.unflatten(0, leading)
