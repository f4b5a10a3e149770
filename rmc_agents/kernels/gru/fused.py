"""The GRU's scan."""

from functools import partial
from typing import Any

from torch import Tensor

from rmc_agents.kernels.pointwise import buffer, float32, jit, select_state_backward, sigmoid, tanh, view
from rmc_agents.kernels.products import product
from rmc_agents.kernels.recurrent_tape import RecurrentTape
from rmc_agents.kernels.tape import stepping, unroll
from rmc_agents.kernels.weights import HiddenState, RecurrentWeights


class GRUTape(RecurrentTape):
    """Buffers: h before each step; `sums`: r, z, n `[T, B, 3H]` (at first the inputs' part, then the gates, in the end
    their gradients before activation); `from_hidden`: the part of h (forward keeps only n's; in the end the gradients
    of all three)."""

    def __init__(self, steps: int, lanes: int, sizes: tuple[int, ...]) -> None:
        super().__init__(steps, lanes, sizes)
        (size,) = sizes
        self.hidden = buffer(steps, lanes, size)
        self.sums, self.from_hidden = buffer(2, steps, lanes, 3 * size)
        self._hidden, self._gates, self._from_hidden = map(view, (self.hidden, self.sums, self.from_hidden))

    def prepare(self, initial_state: HiddenState, weights: RecurrentWeights) -> None:
        super().prepare(initial_state, weights)
        assert weights.hidden_bias is not None
        self._hidden_bias = view(weights.hidden_bias)

    def forward(self, t: int) -> None:
        sums = self.sums_of_hidden(t)
        _forward(sums, self._hidden_bias, self._hidden[t], self._gates[t], self._from_hidden[t], self._outputs[t])

    def backward(self, inputs: Tensor, d_outputs: Tensor, d_final: HiddenState) -> tuple[Tensor, Any, Any, Any]:
        d_hidden = d_final[0].clone()
        d_initial = d_hidden.new_zeros(1, *self.sizes)
        _d_outputs, _d_hidden, weight = view(d_outputs), d_hidden.numpy(), self.factors.hidden.t()
        for t in reversed(range(self.steps)):
            _backward(_d_outputs[t], _d_hidden, self._hidden[t], self._gates[t], self._from_hidden[t])
            d_hidden += product(self.from_hidden[t], weight)
            select_state_backward(self.should_reset[t], _d_hidden, d_initial.numpy())
        d_inputs, d_weights = self.gradients(inputs, self.from_hidden)
        return d_inputs, (d_hidden,), (d_initial,), (*d_weights, self.from_hidden.flatten(0, 1).sum(0))


gru_unroll = partial(unroll, GRUTape)  # see `gru.reference.gru_unroll`
gru_stepping = partial(stepping, GRUTape)


@jit
def _forward(sums, bias, hidden, gates, from_hidden, hidden_after):
    size, one = hidden.shape[1], float32(1.0)
    for b in range(len(hidden)):  # several short loops: each is simple enough to be vectorised
        for j in range(2 * size):
            gates[b, j] = sigmoid(gates[b, j] + sums[b, j] + bias[j])
        r, z, n = gates[b, :size], gates[b, size : 2 * size], gates[b, 2 * size :]
        new_h = from_hidden[b, 2 * size :]
        for j in range(size):
            new_h[j] = sums[b, 2 * size + j] + bias[2 * size + j]
        for j in range(size):
            n[j] = tanh(n[j] + r[j] * new_h[j])
        for j in range(size):
            hidden_after[b, j] = (one - z[j]) * n[j] + z[j] * hidden[b, j]


@jit
def _backward(d_output, d_hidden, hidden, gates, from_hidden):
    """On return, d_hidden is the part of the gradient that bypasses the gates."""
    size, one = hidden.shape[1], float32(1.0)
    for b in range(len(hidden)):
        for j in range(size):
            r, z, n = gates[b, j], gates[b, size + j], gates[b, 2 * size + j]
            d_h, new_h = d_output[b, j] + d_hidden[b, j], from_hidden[b, 2 * size + j]
            d_n = d_h * (one - z) * (one - n * n)
            d_r, d_z = d_n * new_h * r * (one - r), d_h * (hidden[b, j] - n) * z * (one - z)
            gates[b, j], gates[b, size + j], gates[b, 2 * size + j] = d_r, d_z, d_n
            from_hidden[b, j], from_hidden[b, size + j], from_hidden[b, 2 * size + j] = d_r, d_z, d_n * r
            d_hidden[b, j] = d_h * z
