"""The LSTM in plain torch; see `kernels.reference`."""

import torch
import torch.nn.functional as F
from torch import Tensor

from rmc_agents.kernels.reference import scan
from rmc_agents.kernels.weights import LSTMGates, LSTMState, RecurrentWeights


def lstm_unroll(
    inputs: Tensor,
    should_reset: Tensor,
    state: LSTMState,
    initial_state: LSTMState,
    weights: RecurrentWeights,
) -> tuple[Tensor, LSTMState]:
    """LSTM: c' = σ(f) c + σ(i) tanh(g), h' = σ(o) tanh(c'), where [i, f, g, o] = W_x x + W_h h + b."""

    def cell(inputs_t: list[Tensor], state: LSTMState) -> tuple[Tensor, LSTMState]:
        state = lstm_cell(inputs_t[0], state.hidden, state.cell, weights.hidden)
        return state.hidden, state

    return scan(cell, (F.linear(inputs, *weights.input),), should_reset, state, initial_state)


def lstm_cell(gates_x: Tensor, hidden: Tensor, cell: Tensor, hidden_weight: Tensor) -> LSTMState:
    """The next h and c, from the input's part of the gates `[B, 4H]` and the last h and c `[B, H]`."""
    gates, new = lstm_gates(gates_x, hidden, hidden_weight)
    cell = torch.addcmul(gates.forget * cell, gates.input, new)
    return LSTMState(gates.output * torch.tanh(cell), cell)


def lstm_gates(gates_x: Tensor, hidden: Tensor, hidden_weight: Tensor) -> tuple[LSTMGates, Tensor]:
    """The gates, and the tanh(g) that the input gate lets in, from the input's part `[B, 4H]` and h `[B, H]`."""
    i, f, g, o = torch.addmm(gates_x, hidden, hidden_weight.t()).chunk(4, -1)  # [B, H] each
    return LSTMGates(torch.sigmoid(i), torch.sigmoid(f), torch.sigmoid(o)), torch.tanh(g)
