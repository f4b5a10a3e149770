"""The minGRU's scan: matrix products of all steps together, and one pass over time between them."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from rmc_agents.kernels.pointwise import buffer, float32, jit, sigmoid, view
from rmc_agents.kernels.products import product, transposed_product
from rmc_agents.kernels.tape import Tape, unroll
from rmc_agents.kernels.weights import HiddenState, MinGRULayer

from .reference import by_layers


class MinGRUTape(Tape):
    """One layer. Buffers: σ(z), n and σ(o) `[T, B, 3H]`, in the end the gradients before activation; h after each step;
    skip(x), if it is a map, in the end its gradient."""

    def __init__(self, steps: int, lanes: int, sizes: tuple[int, ...]) -> None:
        super().__init__(steps, lanes, sizes)
        size, skipped = sizes
        self.maps, self.hidden = buffer(steps, lanes, 3 * size), buffer(steps, lanes, size)
        self.skipped = buffer(steps, lanes, skipped)

    @staticmethod
    def sizes_of(initial_state: HiddenState, weights: MinGRULayer) -> tuple[int, ...]:
        size = initial_state.hidden.shape[1]
        return size, 0 if weights.skip is None else size

    def begin(self, state: HiddenState) -> None:
        super().begin(state)
        self.outputs = buffer(*self.hidden.shape)
        self._states = view(self.initial_state.hidden).copy(), view(state.hidden).copy()  # backward reads them

    def write(self, inputs: Tensor) -> None:
        x, skip = inputs.flatten(0, 1), self.factors.skip
        sums = product(x, self.factors.maps.weight).view_as(self.maps)
        if skip is not None:
            torch.add(product(x, skip.weight), skip.bias, out=self.skipped.flatten(0, 1))
        sources = view(sums), view(self.weights.maps.bias)
        _forward(self.should_reset, *self._states, *sources, *self._written(inputs), view(self.outputs))

    def final_state(self) -> HiddenState:
        return HiddenState(self.hidden[-1].clone())

    def backward(self, inputs: Tensor, d_outputs: Tensor, d_final: HiddenState) -> tuple[Tensor, Any, Any, Any]:
        d_hidden, d_skipped = d_final[0].clone(), torch.empty_like(d_outputs)
        d_initial = d_hidden.new_zeros(1, self.sizes[0])
        gradients = view(d_outputs), d_hidden.numpy(), d_initial.numpy(), d_skipped.numpy()
        _backward(self.should_reset, *self._states, *self._written(inputs), *gradients)
        x, d_maps, d_skipped = inputs.flatten(0, 1), self.maps.flatten(0, 1), d_skipped.flatten(0, 1)
        d_inputs = product(d_maps, self.factors.maps.weight.t())
        d_weights = [*self._d_affine(x, d_maps)]
        if self.factors.skip is None:
            d_inputs += d_skipped
        else:
            d_inputs += product(d_skipped, self.factors.skip.weight.t())
            d_weights += self._d_affine(x, d_skipped)
        return d_inputs.view_as(inputs), (d_hidden,), (d_initial,), d_weights

    def _written(self, inputs: Tensor) -> tuple[Any, ...]:
        """The arrays that both passes go over."""
        return view(self.maps), view(inputs if self.factors.skip is None else self.skipped), view(self.hidden)

    def _d_affine(self, x: Tensor, d_y: Tensor) -> tuple[Tensor, Tensor]:
        return transposed_product(x, d_y, self.dtype).t(), d_y.sum(0)


mingru_unroll = partial(by_layers, partial(unroll, MinGRUTape))  # see `mingru.reference.mingru_unroll`


@jit
def _forward(should_reset, initial, state, sums, bias, maps, skipped, hidden, outputs):
    steps, lanes, size = hidden.shape
    one = float32(1.0)
    for t in range(steps):
        for b in range(lanes):  # several short loops: each is simple enough to be vectorised
            before = initial[0] if should_reset[t, b] else hidden[t - 1, b] if t else state[b]
            z, new, o = maps[t, b, :size], maps[t, b, size : 2 * size], maps[t, b, 2 * size :]
            after, x, y, row = hidden[t, b], skipped[t, b], outputs[t, b], sums[t, b]
            for j in range(size):
                z[j] = sigmoid(row[j] + bias[j])
            for j in range(size):
                new[j] = row[size + j] + bias[size + j]
            for j in range(size):
                o[j] = sigmoid(row[2 * size + j] + bias[2 * size + j])
            for j in range(size):
                after[j] = (one - z[j]) * before[j] + z[j] * new[j]
            for j in range(size):
                y[j] = o[j] * after[j] + (one - o[j]) * x[j]


@jit
def _backward(should_reset, initial, state, maps, skipped, hidden, d_outputs, d_hidden, d_initial, d_skipped):
    """d_hidden [B, H]: on entry the gradient of the final state, on return that of the state before the first step."""
    steps, lanes, size = hidden.shape
    one = float32(1.0)
    for t in range(steps - 1, -1, -1):
        for b in range(lanes):
            before = initial[0] if should_reset[t, b] else hidden[t - 1, b] if t else state[b]
            z, new, o = maps[t, b, :size], maps[t, b, size : 2 * size], maps[t, b, 2 * size :]
            after, x, d_y, d_h, d_x = hidden[t, b], skipped[t, b], d_outputs[t, b], d_hidden[b], d_skipped[t, b]
            for j in range(size):
                d_h[j] += d_y[j] * o[j]
                d_x[j] = d_y[j] * (one - o[j])
            for j in range(size):
                o[j] = d_x[j] * o[j] * (after[j] - x[j])
            for j in range(size):
                kept, d_new = d_h[j] * (one - z[j]), d_h[j] * z[j]
                z[j] = kept * z[j] * (new[j] - before[j])
                new[j], d_h[j] = d_new, kept
            if should_reset[t, b]:
                for j in range(size):
                    d_initial[0, j] += d_h[j]
                    d_h[j] = float32(0.0)
