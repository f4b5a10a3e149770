"""The LSTM with a relational memory in plain torch; see `kernels.reference`."""

import torch
import torch.nn.functional as F
from torch import Tensor

from rmc_agents.kernels.lstm.reference import lstm_cell
from rmc_agents.kernels.reference import attend, by_slots, mlp, scan
from rmc_agents.kernels.weights import RelationalRNNState, RelationalRNNWeights


def relational_rnn_unroll(
    inputs: Tensor,
    should_reset: Tensor,
    state: RelationalRNNState,
    initial_state: RelationalRNNState,
    weights: RelationalRNNWeights,
) -> tuple[Tensor, RelationalRNNState]:
    """An LSTM with a relational memory: the proposed h reads the memory before it becomes the output and the next h."""

    def cell(inputs_t: list[Tensor], state: RelationalRNNState) -> tuple[Tensor, RelationalRNNState]:
        proposed = lstm_cell(inputs_t[0], state.hidden, state.cell, weights.lstm.hidden)
        read, memory = _read_memory(proposed.hidden, state.memory.transpose(0, 1), weights)
        hidden = torch.tanh(F.linear(torch.cat([proposed.hidden, read], -1), *weights.output))
        return hidden, RelationalRNNState(hidden, proposed.cell, memory.transpose(0, 1))

    prepared = (F.linear(inputs, *weights.lstm.input),)
    state = state._replace(memory=by_slots(state.memory))
    outputs, final = scan(cell, prepared, should_reset, state, initial_state)
    return outputs, final._replace(memory=final.memory.contiguous())


def _read_memory(hidden: Tensor, memory: Tensor, weights: RelationalRNNWeights) -> tuple[Tensor, Tensor]:
    """The read vector `[B, D]` for h `[B, H]`, and the updated memory `[N, B, D]`."""
    rows = torch.cat([memory, F.linear(hidden, *weights.row).unsqueeze(0)])  # [N+1, B, D]
    query, key, value = F.linear(rows, *weights.qkv).chunk(3, -1)
    attended, _ = attend(query, key, value, weights.num_heads)
    rows = mlp(rows + F.linear(attended, *weights.attended), weights.mlp)
    written, read = rows.split([len(memory), 1])
    input_gate, forget_gate, output_gate = torch.sigmoid(F.linear(written, *weights.gates)).chunk(3, -1)
    memory = torch.addcmul(forget_gate * memory, input_gate, torch.tanh(written))
    return read.squeeze(0), output_gate * torch.tanh(memory)
