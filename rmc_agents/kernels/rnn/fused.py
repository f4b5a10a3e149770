"""The scan of the Elman network."""

from functools import partial
from typing import Any

from torch import Tensor

from rmc_agents.kernels.pointwise import buffer, float32, jit, select_state_backward, tanh, view
from rmc_agents.kernels.products import product
from rmc_agents.kernels.recurrent_tape import RecurrentTape
from rmc_agents.kernels.tape import stepping, unroll
from rmc_agents.kernels.weights import HiddenState


class RNNTape(RecurrentTape):
    """Buffers: h before each step; `sums`: h after it (at first the inputs' part of the sum, then its gradient)."""

    def __init__(self, steps: int, lanes: int, sizes: tuple[int, ...]) -> None:
        super().__init__(steps, lanes, sizes)
        (size,) = sizes
        self.hidden, self.sums = buffer(2, steps, lanes, size)
        self._hidden, self._units = map(view, (self.hidden, self.sums))

    def forward(self, t: int) -> None:
        _forward(self.sums_of_hidden(t), self._units[t], self._outputs[t])

    def backward(self, inputs: Tensor, d_outputs: Tensor, d_final: HiddenState) -> tuple[Tensor, Any, Any, Any]:
        d_hidden = d_final[0]
        d_initial = d_hidden.new_zeros(1, *self.sizes)
        _d_outputs = view(d_outputs)
        for t in reversed(range(self.steps)):
            _backward(_d_outputs[t], view(d_hidden), self._units[t])
            d_hidden = product(self.sums[t], self.factors.hidden.t())
            select_state_backward(self.should_reset[t], d_hidden.numpy(), d_initial.numpy())
        d_inputs, d_weights = self.gradients(inputs, self.sums)
        return d_inputs, (d_hidden,), (d_initial,), d_weights


rnn_unroll = partial(unroll, RNNTape)  # see `rnn.reference.rnn_unroll`
rnn_stepping = partial(stepping, RNNTape)


@jit
def _forward(from_hidden, units, hidden_after):
    for b in range(len(units)):
        for j in range(units.shape[1]):
            units[b, j] = tanh(units[b, j] + from_hidden[b, j])
            hidden_after[b, j] = units[b, j]


@jit
def _backward(d_output, d_hidden, units):
    for b in range(len(units)):
        for j in range(units.shape[1]):
            h = units[b, j]
            units[b, j] = (d_output[b, j] + d_hidden[b, j]) * (float32(1.0) - h * h)
