"""The Elman network in plain torch; see `kernels.reference`."""

import torch
import torch.nn.functional as F
from torch import Tensor

from rmc_agents.kernels.reference import scan
from rmc_agents.kernels.weights import HiddenState, RecurrentWeights


def rnn_unroll(
    inputs: Tensor,
    should_reset: Tensor,
    state: HiddenState,
    initial_state: HiddenState,
    weights: RecurrentWeights,
) -> tuple[Tensor, HiddenState]:
    """Elman network: h' = tanh(W_x x + W_h h + b)."""

    def cell(inputs_t: list[Tensor], state: HiddenState) -> tuple[Tensor, HiddenState]:
        hidden = torch.tanh(torch.addmm(inputs_t[0], state.hidden, weights.hidden.t()))
        return hidden, HiddenState(hidden)

    return scan(cell, (F.linear(inputs, *weights.input),), should_reset, state, initial_state)
