"""The GRU in plain torch; see `kernels.reference`."""

import torch
import torch.nn.functional as F
from torch import Tensor

from rmc_agents.kernels.reference import scan
from rmc_agents.kernels.weights import GRUGates, HiddenState, RecurrentWeights


def gru_unroll(
    inputs: Tensor,
    should_reset: Tensor,
    state: HiddenState,
    initial_state: HiddenState,
    weights: RecurrentWeights,
) -> tuple[Tensor, HiddenState]:
    """GRU: n = tanh(W_n x + b_n + σ(r) (U_n h + c_n)), h' = (1 - σ(z)) n + σ(z) h."""

    def cell(inputs_t: list[Tensor], state: HiddenState) -> tuple[Tensor, HiddenState]:
        size = state.hidden.shape[-1]
        from_hidden = F.linear(state.hidden, weights.hidden, weights.hidden_bias)
        gates_x, new_x = inputs_t[0].split([2 * size, size], -1)
        gates_h, new_h = from_hidden.split([2 * size, size], -1)
        gates = gru_gates(gates_x, gates_h)
        new = torch.tanh(torch.addcmul(new_x, gates.reset, new_h))
        hidden = torch.lerp(new, state.hidden, gates.update)
        return hidden, HiddenState(hidden)

    return scan(cell, (F.linear(inputs, *weights.input),), should_reset, state, initial_state)


def gru_gates(gates_x: Tensor, gates_h: Tensor) -> GRUGates:
    """σ of the two parts of the gates, `[B, 2H]` each: of the input and of h."""
    return GRUGates(*torch.sigmoid(gates_x + gates_h).chunk(2, -1))
