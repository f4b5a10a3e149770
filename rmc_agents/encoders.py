"""What an observation becomes before the core: numbers in [N, ...] in, features [N, D] out."""

import math
from itertools import pairwise
from typing import Self

import torch
from torch import Tensor, nn

from rmc_agents.config import AgentConfig
from rmc_agents.kernels.lookup import rectified_lookup
from rmc_agents.kernels.products import rectified_linear
from rmc_agents.kernels.weights import affine
from rmc_agents.types import SpaceSpec, TimeStep

CONV_FROM = 36  # pixels: the smallest picture that the three convolutions leave something of
LOOKUP_SIZE = 128  # width of what an observation of categories becomes
FIRST_TOKENS = 16  # how many are looked up by themselves as well


class Encoder(nn.Module):
    """Observation, previous action and previous reward to one feature vector.

    The previous action (one-hot) and reward are zero on an episode's first observation: they would otherwise tell of
    the episode before.

    Args:
      spec: the environment's spaces.
      config: which trunk, and the widths of the fully connected layers.
    """

    actions: Tensor  # [A], 0 to A - 1

    def __init__(self, spec: SpaceSpec, config: AgentConfig) -> None:
        super().__init__()
        self.register_buffer("actions", torch.arange(spec.num_actions), persistent=False)
        self.scale = None if spec.obs_categories else spec.obs_scale
        self.trunk = _make_trunk(spec, config)
        width = _trunk_size(self.trunk, spec) + spec.num_actions + 1
        widths = [width, *config.encoder_sizes]
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


def _make_trunk(spec: SpaceSpec, config: AgentConfig) -> nn.Module:
    if spec.obs_categories and config.encoder != "conv":
        return _Tokens(spec.obs_categories) if spec.obs_are_tokens else _Lookup.of_categories(spec.obs_categories)
    is_picture = len(spec.obs_shape) == 3
    fits = is_picture and min(spec.obs_shape[:2]) >= CONV_FROM
    if config.encoder == "conv" and not fits:
        raise ValueError(
            f"encoder conv: expected pictures of at least {CONV_FROM}x{CONV_FROM} pixels, got observations of shape "
            f"{spec.obs_shape}; use encoder mlp"
        )
    if config.encoder == "mlp" or not fits:
        return nn.Flatten()
    return nn.Sequential(  # Mnih et al., 2015
        _ChannelsFirst(),
        nn.Conv2d(spec.obs_shape[2], 32, 8, stride=4),
        nn.ReLU(),
        nn.Conv2d(32, 64, 4, stride=2),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, stride=1),
        nn.ReLU(),
        nn.Flatten(),
    )


class _Lookup(nn.Module):
    """Learned vectors, one for each name that an entry of an observation can be, added up and rectified.

    What a linear layer would make of the names one-hot, without the products with 0.

    Args:
      first: of each entry, the row in the table of its name 0, `[E]`.
      rows: of the table.
      gain: of the table, which is orthogonal.
    """

    first: Tensor

    def __init__(self, first: Tensor, rows: int, gain: float) -> None:
        super().__init__()
        self.register_buffer("first", first.int(), persistent=False)
        self.table = nn.Parameter(torch.empty(rows, LOOKUP_SIZE))
        self.bias = nn.Parameter(torch.zeros(LOOKUP_SIZE))
        nn.init.orthogonal_(self.table, gain=gain)

    @classmethod
    def of_categories(cls, categories: tuple[int, ...]) -> Self:
        """Of entries that each have names of their own, so many."""
        counts = torch.tensor(categories)
        return cls(counts.cumsum(0) - counts, sum(categories), math.sqrt(2))

    @classmethod
    def of_tokens(cls, categories: tuple[int, ...]) -> Self:
        """Of entries that share names, and have the first so many of them; sums have a variance of 2 at first."""
        entries, rows = len(categories), max(categories)
        return cls(torch.zeros(entries), rows, math.sqrt(2 * rows / entries))

    def forward(self, entries: Tensor) -> Tensor:  # [N, E] -> [N, LOOKUP_SIZE]
        return rectified_lookup(entries + self.first, self.table, self.bias)


class _Tokens(nn.Module):
    """Tokens, the most important first: a sum over the first of them beside the sum over all.

    Most of what is far away says nothing and changes all the time. The first tokens alone are learned from undisturbed.
    """

    def __init__(self, categories: tuple[int, ...]) -> None:
        super().__init__()
        self.first = _Lookup.of_tokens(categories[:FIRST_TOKENS])
        self.all = _Lookup.of_tokens(categories)

    def forward(self, tokens: Tensor) -> Tensor:  # [N, E] -> [N, 2 * LOOKUP_SIZE]
        return torch.cat([self.first(tokens[:, :FIRST_TOKENS]), self.all(tokens)], dim=-1)


class _ChannelsFirst(nn.Module):
    def forward(self, picture: Tensor) -> Tensor:  # [N, H, W, C] -> [N, C, H, W]
        return picture.movedim(-1, 1)


def _trunk_size(trunk: nn.Module, spec: SpaceSpec) -> int:
    with torch.no_grad():
        return trunk(torch.zeros(1, *spec.obs_shape, dtype=torch.int32 if spec.obs_categories else None)).shape[1]


def _linear(inputs: int, outputs: int) -> nn.Linear:
    """A layer before a ReLU: orthogonal with gain sqrt(2), biases 0."""
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain=math.sqrt(2))
    nn.init.zeros_(layer.bias)
    return layer
