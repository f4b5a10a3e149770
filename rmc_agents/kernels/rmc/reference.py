"""The Relational Memory Core in plain torch; see `kernels.reference`."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from rmc_agents.kernels.reference import attend, by_slots, layer_norm, mlp, scan
from rmc_agents.kernels.weights import Affine, RMCBlock, RMCGates, RMCState, RMCWeights


def rmc_unroll(
    inputs: Tensor,
    should_reset: Tensor,
    state: RMCState,
    initial_state: RMCState,
    weights: RMCWeights,
) -> tuple[Tensor, RMCState]:
    """Relational Memory Core (Santoro et al. 2018, section 3; the arithmetic of Sonnet v1).

    Per step: every memory slot attends over all slots and the input row, `num_blocks` times; the result is
    gated into the memory slot by slot, like an LSTM's cell. The output is the memory, flattened: `[T, B, N * D]`.
    """

    def cell(inputs_t: list[Tensor], state: RMCState) -> tuple[Tensor, RMCState]:
        memory = _cell(inputs_t, state.memory.transpose(0, 1), weights)[0].transpose(0, 1)
        return memory.flatten(1), RMCState(memory)

    state = RMCState(by_slots(state.memory))
    outputs, final = scan(cell, rmc_inputs(inputs, weights), should_reset, state, initial_state)
    return outputs, RMCState(final.memory.contiguous())


def rmc_attention(inputs: Tensor, state: RMCState, weights: RMCWeights) -> Tensor:
    """The attention weights of one step: from each memory slot to the N slots and, last, the input row.

    Takes a single step's inputs `[B, I]` and the state after its reset; returns `[B, num_blocks, heads, N, N+1]`.
    """
    prepared = [x.squeeze(0) for x in rmc_inputs(inputs.unsqueeze(0), weights)]
    memory = by_slots(state.memory).transpose(0, 1)  # [N, B, D]
    _, attention = _cell(prepared, memory, weights)
    slots, lanes, _ = memory.shape
    rows = [block.unflatten(0, (lanes, weights.num_heads))[:, :, :slots] for block in attention]
    return torch.stack(rows, 1)


def rmc_gates(inputs: Tensor, state: RMCState, weights: RMCWeights) -> RMCGates | None:
    """The gates of one step, `[B, N, D or 1]`; arguments as in `rmc_attention`; None if there are none."""
    if weights.gates is None:
        return None
    *_, from_inputs = rmc_inputs(inputs.unsqueeze(0), weights)
    memory = _embedded(by_slots(state.memory).transpose(0, 1), weights)  # [N, B, D]
    gates = _gates(from_inputs.squeeze(0), memory, weights.gates[1].weight, weights.coupled)
    return RMCGates(gates.input.transpose(0, 1), gates.forget.transpose(0, 1))


def rmc_inputs(inputs: Tensor, weights: RMCWeights) -> tuple[Tensor, ...]:
    """The input row, its query, key and value in the first block, and its part of the gates, at all steps."""
    row = F.linear(inputs, *weights.input).unsqueeze(1)  # [T, 1, B, D]
    prepared = (row, *_query_key_value(row, weights.blocks[0], weights))
    if weights.gates is None:
        return prepared
    return *prepared, F.linear(row, weights.gates[0].weight, rmc_gate_bias(*weights.gates, weights))  # [T, 1, B, G]


def rmc_gate_bias(from_input: Affine, from_memory: Affine, weights: RMCWeights) -> Tensor:
    """The sum of the gates' constant terms, `[G]`."""
    bias = from_input.bias + from_memory.bias
    if weights.coupled:
        return bias + weights.forget_bias
    input_bias, forget_bias = bias.chunk(2)
    return torch.cat([input_bias + weights.input_bias, forget_bias + weights.forget_bias])


def _cell(prepared: list[Tensor], memory: Tensor, weights: RMCWeights) -> tuple[Tensor, list[Tensor]]:
    """One step from memory `[N, B, D]` to the next, and each block's attention `[B * heads, rows, N+1]`."""
    input_row, input_query, input_key, input_value, *input_gates = prepared
    seen = _embedded(memory, weights)
    slots, rows, attention = len(memory), seen, []
    for number, block in enumerate(weights.blocks, start=1):
        query, key, value = _query_key_value(rows, block, weights)
        if number == 1:
            key, value = torch.cat([key, input_key]), torch.cat([value, input_value])  # [N+1, B, ...]
            if len(weights.blocks) > 1:  # otherwise only its key and value reach the memory
                query, rows = torch.cat([query, input_query]), torch.cat([rows, input_row])
        elif number == len(weights.blocks):  # the input row's result would be dropped
            query, rows = query[:slots], rows[:slots]
        attended, block_attention = attend(query, key, value, weights.num_heads)
        rows = layer_norm(rows + attended, block.attention_norm)
        rows = layer_norm(rows + mlp(rows, weights.mlp), block.mlp_norm)
        attention.append(block_attention)
    if weights.gates is None:
        return rows, attention
    gates = _gates(input_gates[0], seen, weights.gates[1].weight, weights.coupled)
    return torch.addcmul(gates.forget * memory, gates.input, torch.tanh(rows)), attention


def _embedded(memory: Tensor, weights: RMCWeights) -> Tensor:
    """The memory `[N, B, D]` that a step reads: each slot plus its embedding.

    The forget gate carries over the memory without it; otherwise the embedding would accumulate.
    """
    return memory if weights.slot_embedding is None else memory + weights.slot_embedding.unsqueeze(1)


def _gates(gates_x: Tensor, memory: Tensor, memory_weight: Tensor, coupled: bool) -> RMCGates:
    """The gates from the input's part `[1, B, G]`, all biases included, and the memory `[N, B, D]`."""
    gates = torch.sigmoid(F.linear(torch.tanh(memory), memory_weight) + gates_x)  # [N, B, G]
    return RMCGates(1.0 - gates, gates) if coupled else RMCGates(*gates.chunk(2, -1))


def _query_key_value(rows: Tensor, block: RMCBlock, weights: RMCWeights) -> Sequence[Tensor]:
    """Queries, keys and values `[..., heads * size]` of rows `[..., D]`, under one common LayerNorm."""
    qkv = layer_norm(F.linear(rows, *block.qkv), block.qkv_norm)
    keys = weights.num_heads * weights.key_size
    return qkv.split([keys, keys, qkv.shape[-1] - 2 * keys], -1)
