"""A Transformer over the last steps of the episode."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from rmc_agents.kernels.modes import no_autocast
from rmc_agents.kernels.operations import Product, Use, linear_products
from rmc_agents.kernels.weights import TransformerState
from rmc_agents.types import State

from .base import Core, linear, truncated_normal
from .checks import check_sizes


class Transformer(Core):
    """Attention over a window: each layer looks at its inputs of this and the last M steps of the episode.

        u = LayerNorm(x);  x = x + W_o attention(u_t; u_{t-M} ... u_t);  x = x + MLP(LayerNorm(x))

    per head with softmax weights of (q_t · k_s + q_t · r_{t-s}) / √head_size, where r is a linear map of the sinusoids
    of the distance t - s (Transformer-XL, Dai et al. 2019, arXiv:1901.02860, with one bias for both terms). The norms
    come before attention and MLP, as in the agents of Parisotto et al. (2020, arXiv:1910.06764), and both maps back to
    x start at 0, so a new Transformer is a linear map of its input: policies first learn without memory.

    The state holds the u of the last M steps, so no gradient is cut between keys or values and their weights. Steps
    before the episode are zeros: their keys have no content and their values are 0, but they take part in the softmax.
    An average over the window therefore counts.

    An unroll computes all steps together: a matrix of steps x (M + steps) for each head and lane. Other steps are
    excluded by a factor 0, so a NaN in a lane's inputs reaches all steps of the lane's unroll, and one in its state
    those of an unroll that does not begin with a reset.

    Args:
      input_size: width of the inputs.
      num_layers: number of layers; together they see num_layers * M steps.
      num_heads: attention heads.
      head_size: width of one head; the output has width D = num_heads * head_size.
      memory_length: M, steps that a layer looks back.

    Raises:
      ValueError: for a size that is not a positive integer.
    """

    layers: Any  # a ModuleList of _Layer

    def __init__(
        self,
        input_size: int,
        *,
        num_layers: int = 2,
        num_heads: int = 2,
        head_size: int = 32,
        memory_length: int = 64,
    ) -> None:
        check_sizes(num_layers=num_layers, num_heads=num_heads, head_size=head_size, memory_length=memory_length)
        super().__init__(input_size, output_size=num_heads * head_size)
        self.memory_length = memory_length
        self.input = linear(input_size, self.output_size)
        self.layers = nn.ModuleList(_Layer(self.output_size, num_heads, memory_length) for _ in range(num_layers))

    def initial_leaves(self) -> TransformerState:
        """The memory of all layers, zero, `[1, layers, M, D]`."""
        return TransformerState(self._like.new_zeros(1, len(self.layers), self.memory_length, self.output_size))

    def cell(self, x: Tensor, state: TransformerState) -> tuple[Tensor, TransformerState]:
        """See `Core.cell`. Each layer multiplies its queries, not the whole memory, with the weights of the keys."""
        x, after = self.input(x), []
        for layer, before in zip(self.layers, state.memory.unbind(1), strict=True):
            x, memory = layer.step(x, before)
            after.append(memory)
        return x, TransformerState(torch.stack(after, 1))

    def scan(self, inputs: Tensor, should_reset: Tensor, state: State) -> tuple[Tensor, State]:
        """See `Core.scan`: all steps together; a loop over `cell` for one step, or if a subclass has its own start."""
        if len(inputs) == 1 or not self._is_built_in():
            return super().scan(inputs, should_reset, state)
        self.chosen_backend()
        episode = should_reset.cumsum(0)  # [T, B]: 0 until the first reset
        memories = self.cast(state.memory).masked_fill(should_reset[0, :, None, None, None], 0.0)  # and no NaN stays
        with no_autocast(inputs.device.type):
            x, after = self.input(self.cast(inputs)), []
            for layer, before in zip(self.layers, memories.unbind(1), strict=True):
                x, memory = layer.unroll(x, before, episode)
                after.append(memory)
        return x, TransformerState(torch.stack(after, 1))

    def attention_weights(self, inputs: Tensor, should_reset: Tensor, state: TransformerState) -> Tensor:
        """`[B, num_layers, num_heads, 1, M+1]`: of one step, to the last M steps and, last, to itself."""
        inputs, (memory,) = self._after_reset(inputs, should_reset, state)
        with no_autocast(inputs.device.type):
            x, found = self.input(inputs), []
            for layer, before in zip(self.layers, memory.unbind(1), strict=True):
                u = layer.norm(x)
                found.append(layer.attention(u, torch.cat([before, u.unsqueeze(1)], 1)))
                x, _ = layer.step(x, before)
        return torch.stack(found, 1).unsqueeze(3)

    def matrix_products(self, steps: int, lanes: int) -> list[Product]:
        """See `Core.matrix_products`; keys and values are computed of the steps in memory too."""
        rows = Use(steps * lanes, 1)
        products = linear_products(self.input.weight, rows)
        for layer in self.layers:
            for weight in (layer.key, layer.value):
                products += linear_products(weight, Use((steps + self.memory_length) * lanes, 1))
            for each in (layer.query, layer.output, *layer.mlp):
                products += linear_products(each.weight, rows)
        return products

    def _is_built_in(self) -> bool:
        kind = type(self)
        own = any(getattr(kind, name) is not getattr(Transformer, name) for name in ("cell", "initial_leaves"))
        return not own and "initial_leaves" not in vars(self)


class _Layer(nn.Module):
    """One layer; the memory is `[B, M, D]`, its oldest step first."""

    mlp: Any  # a ModuleList of two linear layers

    def __init__(self, width: int, num_heads: int, memory_length: int) -> None:
        super().__init__()
        self.num_heads, self.memory_length = num_heads, memory_length
        self.norm = nn.LayerNorm(width)
        self.query = linear(width, width)
        self.key = truncated_normal(width, width, fan_in=width)
        self.value = truncated_normal(width, width, fan_in=width)
        self.distance = truncated_normal(width, width, fan_in=width)
        self.output = linear(width, width)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = nn.ModuleList([linear(width, 2 * width), linear(2 * width, width)])
        for last in (self.output, self.mlp[1]):
            nn.init.zeros_(last.weight)

    def step(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """x `[B, D]`; returns the output `[B, D]` and the next memory."""
        u = self.norm(x)
        seen = torch.cat([memory, u.unsqueeze(1)], 1)  # [B, M+1, D]
        sums = torch.einsum("bhi,hdi->bhd", self.attention(u, seen) @ seen, self._heads(self.value))
        return self._outputs(x, sums.flatten(1)), seen[:, 1:]

    def attention(self, u: Tensor, seen: Tensor) -> Tensor:
        """The attention weights of one step, `[B, heads, M+1]`, from u `[B, D]` to seen `[B, M+1, D]`."""
        query = self._queries(u)  # [B, heads, head_size]
        by_content = torch.einsum("bhd,hdi->bhi", query, self._heads(self.key)) @ seen.transpose(1, 2)
        by_distance = torch.einsum("bhd,hda->bha", query, self._distance_keys())
        return (by_content + by_distance).softmax(-1)

    def unroll(self, x: Tensor, memory: Tensor, episode: Tensor) -> tuple[Tensor, Tensor]:
        """x `[T, B, D]`, and of each step the number of resets before it, `[T, B]`; returns as `step` does."""
        steps = len(x)
        u = self.norm(x)
        seen = torch.cat([memory.transpose(0, 1), u])  # [M+T, B, D]
        episodes = functional.pad(episode, (0, 0, self.memory_length, 0))  # [M+T, B]
        is_same = (episode.t().unsqueeze(2) == episodes.t().unsqueeze(1)).unsqueeze(1).to(x.dtype)  # [B, 1, T, M+T]
        query = self._queries(u).permute(1, 2, 0, 3)  # [B, heads, T, head_size]
        key, value = (self._split(functional.linear(seen, each)) for each in (self.key, self.value))
        by_content = query @ key.permute(1, 2, 3, 0)  # [B, heads, T, M+T]
        by_distance = _to_columns(query @ self._distance_keys())
        weights = torch.addcmul(by_distance, by_content, is_same).softmax(-1) * is_same
        sums = weights @ value.permute(1, 2, 0, 3)  # [B, heads, T, head_size]
        after = seen[steps:].masked_fill((episodes[steps:] != episode[-1]).unsqueeze(2), 0.0)
        return self._outputs(x, sums.permute(2, 0, 1, 3).flatten(2)), after.transpose(0, 1)

    def _queries(self, u: Tensor) -> Tensor:
        """Scaled queries, `[..., heads, head_size]`."""
        queries = self._split(self.query(u))
        return queries * queries.shape[-1] ** -0.5

    def _distance_keys(self) -> Tensor:
        """The r of all distances, `[heads, head_size, M+1]`."""
        return torch.einsum("hdi,ai->hda", self._heads(self.distance), _sinusoids(self.memory_length, self.distance))

    def _outputs(self, x: Tensor, sums: Tensor) -> Tensor:
        x = x + self.output(sums)
        up, down = self.mlp
        return x + down(up(self.mlp_norm(x)).relu())

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.num_heads, -1))

    def _heads(self, weight: Tensor) -> Tensor:
        return weight.unflatten(0, (self.num_heads, -1))  # [heads, head_size, D]


def _sinusoids(longest: int, like: Tensor) -> Tensor:
    """Sines and cosines `[longest + 1, D]` of the distances longest, ..., 0 (Vaswani et al. 2017); like `[..., D]`.

    Computed in float32 at least: above 256, bfloat16 does not hold every whole number.
    """
    width, dtype = like.shape[-1], torch.promote_types(like.dtype, torch.float32)
    distances = torch.arange(longest, -1, -1, dtype=dtype, device=like.device).unsqueeze(1)
    angles = distances * 10_000.0 ** -(torch.arange(0, width, 2, dtype=dtype, device=like.device) / width)
    return torch.cat([angles.sin(), angles.cos()], 1)[:, :width].to(like.dtype)


def _to_columns(scores: Tensor) -> Tensor:
    """Scores by distance `[..., T, M+1]` to scores by step, `[..., T, M+T]`; -inf where a step is out of reach.

    Step t sees the columns t to t + M, so row t moves t columns to the right. With T columns of padding the rows
    are one column longer than the result's, and each therefore begins one column further right.
    """
    steps, reach = scores.shape[-2:]
    columns = reach - 1 + steps
    padded = functional.pad(scores, (0, steps), value=-torch.inf).flatten(-2)
    return padded[..., : steps * columns].unflatten(-1, (steps, columns))
