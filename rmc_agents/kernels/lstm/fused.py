"""The LSTM's scan."""

from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from rmc_agents.kernels.pointwise import buffer, float32, jit, select_state, select_state_backward, sigmoid, tanh, view
from rmc_agents.kernels.products import product
from rmc_agents.kernels.recurrent_tape import RecurrentTape
from rmc_agents.kernels.tape import stepping, unroll
from rmc_agents.kernels.weights import LSTMState


class LSTMTape(RecurrentTape):
    """Buffers: h and c before each step; `sums`: the gates (at first the inputs' part, in the end their gradients)."""

    def __init__(self, steps: int, lanes: int, sizes: tuple[int, ...]) -> None:
        super().__init__(steps, lanes, sizes)
        (size,) = sizes
        self.sums = buffer(steps, lanes, 4 * size)
        self.hidden = buffer(steps, lanes, size)
        self.cell = buffer(steps + 1, lanes, size)  # before each step, and after the last
        self._gates, self._hidden, self._cell = map(view, (self.sums, self.hidden, self.cell))

    def begin(self, state: LSTMState) -> None:
        super().begin(state)
        self.cell[0] = state.cell

    def forward(self, t: int) -> None:
        """One step; the cell state after it is stored as the next step's, until that step's reset."""
        from_hidden = self.sums_of_hidden(t)
        select_state(self.should_reset[t], self._initial[1], self._cell[t], self._cell[t])
        _forward(from_hidden, self._gates[t], self._cell[t], self._cell[t + 1], self._outputs[t])

    def final_state(self) -> LSTMState:
        return LSTMState(self.outputs[-1].clone(), self.cell[-1].clone())

    def backward(self, inputs: Tensor, d_outputs: Tensor, d_final: LSTMState) -> tuple[Tensor, Any, Any, Any]:
        d_hidden, d_cell = (x.clone() for x in d_final)
        d_initial = tuple(x.new_zeros(1, *self.sizes) for x in d_final)
        _d_outputs, _d_cell, weight = view(d_outputs), d_cell.numpy(), self.factors.hidden.t()
        for t in reversed(range(self.steps)):
            _backward(_d_outputs[t], d_hidden.numpy(), _d_cell, self._gates[t], self._cell[t])
            d_hidden = product(self.sums[t], weight)
            select_state_backward(self.should_reset[t], d_hidden.numpy(), d_initial[0].numpy())
            select_state_backward(self.should_reset[t], _d_cell, d_initial[1].numpy())
        d_inputs, d_weights = self.gradients(inputs, self.sums)
        return d_inputs, (d_hidden, d_cell), d_initial, d_weights


lstm_unroll = partial(unroll, LSTMTape)  # see `lstm.reference.lstm_unroll`
lstm_stepping = partial(stepping, LSTMTape)


@jit
def _forward(from_hidden, gates, cell, cell_after, hidden_after):
    size = cell.shape[1]
    for b in range(len(cell)):  # several short loops: each is simple enough to be vectorised
        i, f, g, o = gates[b, :size], gates[b, size : 2 * size], gates[b, 2 * size : 3 * size], gates[b, 3 * size :]
        sum_g, sum_o = from_hidden[b, 2 * size : 3 * size], from_hidden[b, 3 * size :]
        for j in range(2 * size):
            gates[b, j] = sigmoid(gates[b, j] + from_hidden[b, j])
        for j in range(size):
            g[j] = tanh(g[j] + sum_g[j])
        for j in range(size):
            o[j] = sigmoid(o[j] + sum_o[j])
        for j in range(size):
            cell_after[b, j] = f[j] * cell[b, j] + i[j] * g[j]
        for j in range(size):
            hidden_after[b, j] = o[j] * tanh(cell_after[b, j])


@jit
def _backward(d_output, d_hidden, d_cell, gates, cell):
    """Gates to their gradients before activation, d_cell to that before the step."""
    size, one = cell.shape[1], float32(1.0)
    d_h, tanh_c = np.empty(size, np.float32), np.empty(size, np.float32)
    for b in range(len(cell)):
        i, f, g, o = gates[b, :size], gates[b, size : 2 * size], gates[b, 2 * size : 3 * size], gates[b, 3 * size :]
        for j in range(size):
            d_h[j] = d_output[b, j] + d_hidden[b, j]
        for j in range(size):
            tanh_c[j] = tanh(f[j] * cell[b, j] + i[j] * g[j])
        for j in range(size):
            d_cell[b, j] += d_h[j] * o[j] * (one - tanh_c[j] * tanh_c[j])
        for j in range(size):
            o[j] = d_h[j] * tanh_c[j] * o[j] * (one - o[j])
        for j in range(size):
            before = d_cell[b, j] * f[j]
            f[j] = d_cell[b, j] * cell[b, j] * f[j] * (one - f[j])
            d_h[j] = before
        for j in range(size):
            d_i = d_cell[b, j] * g[j] * i[j] * (one - i[j])
            g[j] = d_cell[b, j] * i[j] * (one - g[j] * g[j])
            i[j] = d_i
        for j in range(size):
            d_cell[b, j] = d_h[j]
