"""The scan over time under every core, in plain torch: the specification that faster kernels have to match.

Each `*_unroll` is a pure function with the same arguments:

  inputs `[T, B, I]`, should_reset `[T, B]` bool, state before the first step (leaves `[B, ...]`),
  initial_state (leaves `[1, ...]`, the same for every lane), weights

and returns the outputs `[T, B, H]` and the state after the last step. Whatever does not depend on the memory
is computed for all T steps in one matrix product before the loop. A single step is an unroll of length 1.

Inside the loop the lanes are the axis before the last of every leaf: `[B, H]`, and memories slot by slot as
`[N, B, D]`. So flags broadcast as `[B, 1]`, the input row joins the memory as one more contiguous block, and
lanes and heads are one axis of the attention's matrix products without a transposition.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rmc_agents.kernels.weights import (
    Affine,
    GRUGates,
    HiddenState,
    LSTMGates,
    LSTMState,
    RecurrentWeights,
    RelationalRNNState,
    RelationalRNNWeights,
    RMCBlock,
    RMCGates,
    RMCState,
    RMCWeights,
)


def reset(should_reset: Tensor, initial_state: Any, state: Any) -> Any:
    """Puts the initial state where an episode begins: selected, so that not even a NaN survives.

    Args:
      should_reset: `[B]` bool.
      initial_state: leaves `[..., 1 or B, width]`.
      state: leaves `[..., B, width]`.
    """
    lanes = should_reset[:, None]  # [B, 1]
    return type(state)(*(torch.where(lanes, *leaves) for leaves in zip(initial_state, state, strict=True)))


def scan(
    cell: Callable[[Any, Any], tuple[Tensor, Any]],
    inputs: tuple[Tensor, ...],
    should_reset: Tensor,
    state: Any,
    initial_state: Any,
) -> tuple[Tensor, Any]:
    """Runs `cell(inputs_t, state) -> (output, state)` over time; before every step, resets where it is due.

    Args:
      cell: one step of a core; takes a list of the tensors of `inputs` at one step.
      inputs: tensors `[T, ...]`.
      should_reset: `[T, B]` bool.
      state: before the first step, leaves `[..., B, width]`.
      initial_state: leaves `[..., 1, width]`.

    Returns:
      The outputs, `[T, ...]`, and the state after the last step.
    """
    outputs = []
    for should_reset_t, *inputs_t in zip(should_reset.unbind(), *(x.unbind() for x in inputs), strict=True):
        output, state = cell(inputs_t, reset(should_reset_t, initial_state, state))
        outputs.append(output)
    return torch.stack(outputs), state


def lstm_unroll(
    inputs: Tensor,
    should_reset: Tensor,
    state: LSTMState,
    initial_state: LSTMState,
    weights: RecurrentWeights,
) -> tuple[Tensor, LSTMState]:
    """LSTM: c' = σ(f) c + σ(i) tanh(g), h' = σ(o) tanh(c'), where [i, f, g, o] = W_x x + W_h h + b."""

    def cell(inputs_t: list[Tensor], state: LSTMState) -> tuple[Tensor, LSTMState]:
        state = _lstm_cell(inputs_t[0], state.hidden, state.cell, weights.hidden)
        return state.hidden, state

    return scan(cell, (F.linear(inputs, *weights.input),), should_reset, state, initial_state)


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
        memory, _ = _rmc_cell(inputs_t, state.memory, weights)
        return memory.transpose(0, 1).flatten(1), RMCState(memory)

    prepared = rmc_inputs(inputs, weights)
    outputs, final = scan(cell, prepared, should_reset, _slots_first(state), _slots_first(initial_state))
    return outputs, _lanes_first(final)


def rmc_attention(
    inputs: Tensor, should_reset: Tensor, state: RMCState, initial_state: RMCState, weights: RMCWeights
) -> Tensor:
    """Where each memory slot looks in one step: softmax weights over the N slots and, last, the input row.

    Takes a single step's `inputs [B, I]` and `should_reset [B]`; returns `[B, num_blocks, heads, N, N+1]`.
    """
    prepared = [x.squeeze(0) for x in rmc_inputs(inputs.unsqueeze(0), weights)]
    memory = reset(should_reset, _slots_first(initial_state), _slots_first(state)).memory  # [N, B, D]
    _, attention = _rmc_cell(prepared, memory, weights)
    slots, lanes, _ = memory.shape
    rows = [block.unflatten(0, (lanes, weights.num_heads))[:, :, :slots] for block in attention]
    return torch.stack(rows, 1)


def relational_rnn_unroll(
    inputs: Tensor,
    should_reset: Tensor,
    state: RelationalRNNState,
    initial_state: RelationalRNNState,
    weights: RelationalRNNWeights,
) -> tuple[Tensor, RelationalRNNState]:
    """An LSTM whose proposed h consults a relational memory before it becomes the output and the next h."""

    def cell(inputs_t: list[Tensor], state: RelationalRNNState) -> tuple[Tensor, RelationalRNNState]:
        proposed = _lstm_cell(inputs_t[0], state.hidden, state.cell, weights.lstm.hidden)
        read, memory = _relational_memory(proposed.hidden, state.memory, weights)
        hidden = torch.tanh(F.linear(torch.cat([proposed.hidden, read], -1), *weights.output))
        return hidden, RelationalRNNState(hidden, proposed.cell, memory)

    prepared = (F.linear(inputs, *weights.lstm.input),)
    outputs, final = scan(cell, prepared, should_reset, _slots_first(state), _slots_first(initial_state))
    return outputs, _lanes_first(final)


def _lstm_cell(gates_x: Tensor, hidden: Tensor, cell: Tensor, hidden_weight: Tensor) -> LSTMState:
    gates, new = lstm_gates(gates_x, hidden, hidden_weight)
    cell = torch.addcmul(gates.forget * cell, gates.input, new)
    return LSTMState(gates.output * torch.tanh(cell), cell)


def lstm_gates(gates_x: Tensor, hidden: Tensor, hidden_weight: Tensor) -> tuple[LSTMGates, Tensor]:
    """The gates, and the tanh(g) that the input gate lets in, from the input's part `[B, 4H]` and h `[B, H]`."""
    i, f, g, o = torch.addmm(gates_x, hidden, hidden_weight.t()).chunk(4, -1)  # [B, H] each
    return LSTMGates(torch.sigmoid(i), torch.sigmoid(f), torch.sigmoid(o)), torch.tanh(g)


def rmc_inputs(inputs: Tensor, weights: RMCWeights) -> tuple[Tensor, ...]:
    """The input row, its query, key and value in the first block, and its part of the gates, at all steps."""
    row = F.linear(inputs, *weights.input).unsqueeze(1)  # [T, 1, B, D]
    prepared = (row, *_query_key_value(row, weights.blocks[0], weights))
    if weights.gates is None:
        return prepared
    return *prepared, F.linear(row, weights.gates[0].weight, rmc_gate_bias(*weights.gates, weights))  # [T, 1, B, G]


def rmc_gate_bias(from_input: Affine, from_memory: Affine, weights: RMCWeights) -> Tensor:
    """All that is added to the gates whatever input and memory are, `[G]`."""
    bias = from_input.bias + from_memory.bias
    if weights.coupled:
        return bias + weights.forget_bias
    input_bias, forget_bias = bias.chunk(2)
    return torch.cat([input_bias + weights.input_bias, forget_bias + weights.forget_bias])


def _rmc_cell(prepared: list[Tensor], memory: Tensor, weights: RMCWeights) -> tuple[Tensor, list[Tensor]]:
    """One step from memory `[N, B, D]` to the next, and each block's attention `[B * heads, rows, N+1]`."""
    input_row, input_query, input_key, input_value, *input_gates = prepared
    seen = rmc_embedded(memory, weights)
    slots, rows, attention = len(memory), seen, []
    for number, block in enumerate(weights.blocks, start=1):
        query, key, value = _query_key_value(rows, block, weights)
        if number == 1:
            key, value = torch.cat([key, input_key]), torch.cat([value, input_value])  # [N+1, B, ...]
            if len(weights.blocks) > 1:  # else only its key and value ever reach the memory
                query, rows = torch.cat([query, input_query]), torch.cat([rows, input_row])
        elif number == len(weights.blocks):  # the input row's result would be dropped
            query, rows = query[:slots], rows[:slots]
        attended, block_attention = _attend(query, key, value, weights.num_heads)
        rows = _layer_norm(rows + attended, block.attention_norm)
        rows = _layer_norm(rows + _mlp(rows, weights.mlp), block.mlp_norm)
        attention.append(block_attention)
    if weights.gates is None:
        return rows, attention
    gates = rmc_gates(input_gates[0], seen, weights.gates[1].weight, weights.coupled)
    return torch.addcmul(gates.forget * memory, gates.input, torch.tanh(rows)), attention


def rmc_embedded(memory: Tensor, weights: RMCWeights) -> Tensor:
    """The memory `[N, B, D]` as a step sees it: each slot plus what tells it apart from the others.

    The forget gate carries the memory without it: added up step after step, it would outgrow all else.
    """
    return memory if weights.slot_embedding is None else memory + weights.slot_embedding.unsqueeze(1)


def rmc_gates(gates_x: Tensor, memory: Tensor, memory_weight: Tensor, coupled: bool) -> RMCGates:
    """The gates from the input's part `[1, B, G]`, all biases included, and the memory `[N, B, D]`."""
    gates = torch.sigmoid(F.linear(torch.tanh(memory), memory_weight) + gates_x)  # [N, B, G]
    return RMCGates(1.0 - gates, gates) if coupled else RMCGates(*gates.chunk(2, -1))


def _relational_memory(hidden: Tensor, memory: Tensor, weights: RelationalRNNWeights) -> tuple[Tensor, Tensor]:
    """What h `[B, H]` reads, `[B, D]`, and the memory `[N, B, D]` after it."""
    rows = torch.cat([memory, F.linear(hidden, *weights.row).unsqueeze(0)])  # [N+1, B, D]
    query, key, value = F.linear(rows, *weights.qkv).chunk(3, -1)
    attended, _ = _attend(query, key, value, weights.num_heads)
    rows = _mlp(rows + F.linear(attended, *weights.attended), weights.mlp)
    written, read = rows.split([len(memory), 1])
    input_gate, forget_gate, output_gate = torch.sigmoid(F.linear(written, *weights.gates)).chunk(3, -1)
    memory = torch.addcmul(forget_gate * memory, input_gate, torch.tanh(written))
    return read.squeeze(0), output_gate * torch.tanh(memory)


def _query_key_value(rows: Tensor, block: RMCBlock, weights: RMCWeights) -> Sequence[Tensor]:
    """Queries, keys and values `[..., heads * size]` of rows `[..., D]`, under one common LayerNorm."""
    qkv = _layer_norm(F.linear(rows, *block.qkv), block.qkv_norm)
    keys = weights.num_heads * weights.key_size
    return qkv.split([keys, keys, qkv.shape[-1] - 2 * keys], -1)


def _attend(query: Tensor, key: Tensor, value: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """Multi-head dot-product attention: per head softmax(q kᵀ / √key_size) v, heads side by side.

    query `[R, B, heads * key_size]`, key and value `[S, B, ...]`; returns `[R, B, heads * head_size]` and the
    attention weights `[B * heads, R, S]`.
    """
    lanes = query.shape[1]
    q, k, v = (x.reshape(len(x), lanes * heads, -1).transpose(0, 1) for x in (query, key, value))
    scores = torch.bmm(q, k.transpose(1, 2)) * q.shape[-1] ** -0.5  # [B * heads, R, S]
    attention = scores.movedim(2, 0).softmax(0).movedim(0, 2)  # rows are short: vectorised across them
    return torch.bmm(attention, v).transpose(0, 1).reshape(len(query), lanes, -1), attention


def _layer_norm(x: Tensor, affine: Affine) -> Tensor:
    return F.layer_norm(x, affine.weight.shape, *affine)


def _mlp(x: Tensor, layers: tuple[Affine, ...]) -> Tensor:
    for layer in layers[:-1]:
        x = F.relu(F.linear(x, *layer))
    return F.linear(x, *layers[-1])


def _slots_first(state: Any) -> Any:
    """Memories `[B, N, D]` to `[N, B, D]`, the layout inside the loop; other leaves as they are."""
    return type(state)(*(x.transpose(0, 1).contiguous() if x.dim() == 3 else x for x in state))


_lanes_first = _slots_first  # swapping the two axes is its own inverse
