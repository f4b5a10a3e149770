"""The minGRU in plain torch; see `kernels.reference`."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from rmc_agents.kernels.reference import scan
from rmc_agents.kernels.weights import HiddenState, MinGRUGates, MinGRULayer


def mingru_unroll(
    inputs: Tensor,
    should_reset: Tensor,
    state: HiddenState,
    initial_state: HiddenState,
    weights: tuple[MinGRULayer, ...],
) -> tuple[Tensor, HiddenState]:
    """minGRU with highway outputs and stacked layers: each takes the outputs y of the one below as its x.

    z, n, o = W x + b;  h' = (1 - σ(z)) h + σ(z) n;  y = σ(o) h' + (1 - σ(o)) skip(x)
    """
    return by_layers(_unroll, inputs, should_reset, state, initial_state, weights)


def by_layers(
    unroll: Callable[..., tuple[Tensor, HiddenState]],
    inputs: Tensor,
    should_reset: Tensor,
    state: HiddenState,
    initial_state: HiddenState,
    weights: tuple[MinGRULayer, ...],
    **options: Any,
) -> tuple[Tensor, HiddenState]:
    """Run all layers with the scan of one; the states hold h of all layers, concatenated, `[B, layers * H]`."""
    after = []
    states = (each.hidden.chunk(len(weights), -1) for each in (state, initial_state))
    for layer, hidden, initial in zip(weights, *states, strict=True):
        inputs, final = unroll(inputs, should_reset, HiddenState(hidden), HiddenState(initial), layer, **options)
        after.append(final.hidden)
    return inputs, HiddenState(torch.cat(after, -1))


def mingru_gates(inputs: Tensor, state: HiddenState, weights: tuple[MinGRULayer, ...]) -> MinGRUGates:
    """The gates of all layers in one step, concatenated, `[B, layers * H]`; inputs `[B, I]`."""
    gates = []
    for layer, hidden in zip(weights, state.hidden.chunk(len(weights), -1), strict=True):
        maps = _Maps.of(inputs, layer)
        inputs = maps.output(maps.next(hidden))
        gates.append((maps.input_gate, maps.output_gate))
    return MinGRUGates(*(torch.cat(each, -1) for each in zip(*gates, strict=True)))


class _Maps(NamedTuple):
    """The linear maps of a layer's inputs, `[..., H]` each."""

    input_gate: Tensor
    new: Tensor
    output_gate: Tensor
    skipped: Tensor

    @classmethod
    def of(cls, inputs: Tensor, layer: MinGRULayer) -> "_Maps":
        z, new, o = F.linear(inputs, *layer.maps).chunk(3, -1)
        return cls(z.sigmoid(), new, o.sigmoid(), inputs if layer.skip is None else F.linear(inputs, *layer.skip))

    def next(self, hidden: Tensor) -> Tensor:
        return torch.lerp(hidden, self.new, self.input_gate)

    def output(self, hidden: Tensor) -> Tensor:
        return torch.lerp(self.skipped, hidden, self.output_gate)


def _unroll(
    inputs: Tensor, should_reset: Tensor, state: HiddenState, initial_state: HiddenState, weights: MinGRULayer
) -> tuple[Tensor, HiddenState]:
    """One layer; its outputs are computed after the scan, for all steps together."""
    maps = _Maps.of(inputs, weights)

    def cell(maps_t: list[Tensor], state: HiddenState) -> tuple[Tensor, HiddenState]:
        hidden = _Maps(*maps_t).next(state.hidden)
        return hidden, HiddenState(hidden)

    hidden, final = scan(cell, maps, should_reset, state, initial_state)
    return maps.output(hidden), final
