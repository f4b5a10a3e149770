"""The Relational Memory Core's scan."""

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rmc_agents.kernels.pointwise import buffer, rectify, rectify_backward, view
from rmc_agents.kernels.products import BLOCK, add_transposed_product, multiplier, product, transposed_product
from rmc_agents.kernels.rmc import fused_pointwise as pointwise
from rmc_agents.kernels.rmc.fused_attention import attention_kernels
from rmc_agents.kernels.rmc.reference import rmc_gate_bias
from rmc_agents.kernels.tape import StepwiseTape, stepping, unroll
from rmc_agents.kernels.weights import RMCState, RMCWeights


class Buffers(NamedTuple):
    """What the backward pass needs of every step; 10 D a slot with 'unit' gates and one hidden layer.

    R = B N rows, slot by slot of each lane. `normal` is what a LayerNorm has before its gain and bias, `scale` its 1/σ.
    """

    memory: Any  # [R, D], before the step
    tanh_memory: Any  # [R, D]; no rows without gates
    qkv_normal: Any  # [R, Q]
    qkv_scale: Any  # [R]
    attention: Any  # [B, H, N, N+1]
    attended_normal: Any  # [R, D]
    attended_scale: Any  # [R]
    mlp_normal: Any  # [R, D]
    mlp_scale: Any  # [R]
    gates: Any  # [R, G]
    input_row: Any  # [B, D]
    input_normal: Any  # [B, Q]
    input_scale: Any  # [B]
    input_attended: Any  # [B, Q], the input row's queries, keys and values; on the way back, their gradient
    input_gates: Any  # [B, G]; on the way back, their gradient

    @classmethod
    def empty(cls, steps: int, lanes: int, slots: int, size: int, heads: int, width: int, gates: int) -> "Buffers":
        """New ones, `[T, ...]`."""
        rows = lanes * slots
        shapes = cls(
            memory=(rows, size),
            tanh_memory=(rows if gates else 0, size),
            qkv_normal=(rows, width),
            qkv_scale=(rows,),
            attention=(lanes, heads, slots, slots + 1),
            attended_normal=(rows, size),
            attended_scale=(rows,),
            mlp_normal=(rows, size),
            mlp_scale=(rows,),
            gates=(rows, gates),
            input_row=(lanes, size),
            input_normal=(lanes, width),
            input_scale=(lanes,),
            input_attended=(lanes, width),
            input_gates=(lanes, gates),
        )
        return cls(*(buffer(steps, *shape) for shape in shapes))


class Gradients(NamedTuple):
    """Gradients of vectors; for the arrays that the passes add to, and in the end for the sums over them."""

    qkv_bias: Any  # [Q]
    qkv_gain: Any
    qkv_norm_bias: Any
    attended_gain: Any  # [D]
    attended_bias: Any
    mlp_gain: Any
    mlp_norm_bias: Any
    mlp_biases: Any  # [L, D]
    slot_embedding: Any  # [N, D]


class RMCTape(StepwiseTape):
    """See `Tape`. Names with an underscore in front are arrays of the same memory as their tensors."""

    def __init__(self, steps: int, lanes: int, sizes: tuple[int, ...]) -> None:
        super().__init__(steps, lanes, sizes)
        slots, heads, key_size, head_size, gates, layers = sizes
        rows, size, width = lanes * slots, heads * head_size, heads * (2 * key_size + head_size)
        self.buffers = Buffers.empty(steps, lanes, slots, size, heads, width, gates)
        self.hidden = [buffer(steps, rows, size) for _ in range(layers - 1)]
        self.attended = buffer(rows, size)  # of one step, as are the matrix products:
        self.qkv, self.layer, self.gates = (buffer(rows, n) for n in (width, size, gates))
        self._attended, self._qkv, self._layer, self._gates = map(
            view, (self.attended, self.qkv, self.layer, self.gates)
        )
        self.attention = attention_kernels(slots, heads, key_size, head_size)
        # Step by step, once for all: making views is slow beside what a step does with them.
        self.memory, self.tanh_memory = self.buffers.memory.unbind(), self.buffers.tanh_memory.unbind()
        self.hidden_at = [x.unbind() for x in self.hidden]
        self._hidden_at = [[view(x) for x in layer] for layer in self.hidden_at]
        self._at = [Buffers(*step) for step in zip(*map(view, self.buffers), strict=True)]
        self.input_rows = Buffers(*(x.flatten(0, 1) for x in self.buffers))  # of all steps
        self._input_rows = Buffers(*map(view, self.input_rows))
        self.way_back: _Backward | None = None  # made when it is first gone

    @staticmethod
    def sizes_of(initial_state: RMCState, weights: RMCWeights) -> tuple[int, ...]:
        """See `Tape.sizes_of`."""
        _, slots, size = initial_state.memory.shape
        gates = 0 if weights.gates is None else len(weights.gates[0].bias)
        return slots, weights.num_heads, weights.key_size, size // weights.num_heads, gates, len(weights.mlp)

    def start(self, initial_state: RMCState, weights: RMCWeights) -> None:
        """See `Tape.start`."""
        super().start(initial_state, weights)
        block, embedding = weights.blocks[0], weights.slot_embedding
        self._initial = view(initial_state.memory[0])
        self._embedding = view(torch.zeros_like(initial_state.memory[0]) if embedding is None else embedding)
        self._qkv_bias, self._mlp_biases = view(block.qkv.bias), [view(layer.bias) for layer in weights.mlp]
        self._qkv_norm, self._attended_norm, self._mlp_norm = (
            tuple(map(view, norm)) for norm in (block.qkv_norm, block.attention_norm, block.mlp_norm)
        )
        self.to_qkv = multiplier(self.factors.blocks[0].qkv.weight)
        self.to_layers = [multiplier(layer.weight) for layer in self.factors.mlp]
        if weights.gates is not None:
            self._gate_bias = rmc_gate_bias(*weights.gates, weights).detach()
            self.to_gates = multiplier(self.factors.gates[1].weight)

    def begin(self, state: RMCState) -> None:
        """See `Tape.begin`."""
        super().begin(state)
        rows, size = self.attended.shape
        self.outputs = buffer(self.steps, self.lanes, rows // self.lanes * size)
        self._outputs = view(self.outputs.view(self.steps, rows, size))
        self._state = view(state.memory.flatten(0, 1))

    def write_inputs(self, inputs: Tensor) -> None:
        """The input row, what the slots see of it, and its part of the gates with all biases."""
        weights, qkv_weight = self.factors, self.factors.blocks[0].qkv.weight
        x, a = self.input_rows, self._input_rows
        torch.add(product(inputs.flatten(0, 1), weights.input.weight), weights.input.bias, out=x.input_row)
        qkv = product(x.input_row, qkv_weight).numpy()
        pointwise.input_rows(qkv, self._qkv_bias, *self._qkv_norm, a.input_normal, a.input_scale, a.input_attended)
        if weights.gates is not None:
            torch.add(product(x.input_row, weights.gates[0].weight), self._gate_bias, out=x.input_gates)

    def forward(self, t: int) -> None:
        """See `StepwiseTape.forward`."""
        a, weights = self._at[t], self.weights
        before = self._outputs[t - 1] if t else self._state
        pointwise.enter(self.should_reset[t], self._initial, before, self._embedding, a.memory, a.tanh_memory)
        self.to_qkv(self.memory[t], self.qkv)
        self.attention.forward(
            a.memory,
            self._qkv,
            self._qkv_bias,
            *self._qkv_norm,
            a.input_attended,
            *self._attended_norm,
            a.qkv_normal,
            a.qkv_scale,
            a.attention,
            a.attended_normal,
            a.attended_scale,
            self._attended,
        )
        layer = self.attended
        for number, hidden in enumerate(self.hidden_at):
            self.to_layers[number](layer, self.layer)
            rectify(self._layer, self._mlp_biases[number], self._hidden_at[number][t])
            layer = hidden[t]
        self.to_layers[-1](layer, self.layer)
        if weights.gates is not None:
            self.to_gates(self.tanh_memory[t], self.gates)
        pointwise.write(
            a.memory,
            self._embedding,
            self._attended,
            self._layer,
            self._mlp_biases[-1],
            self._gates,
            a.input_gates,
            weights.coupled,
            *self._mlp_norm,
            a.mlp_normal,
            a.mlp_scale,
            a.gates,
            self._outputs[t],
        )

    def final_state(self) -> RMCState:
        """See `Tape.final_state`."""
        return RMCState(self.outputs[-1].view(self.lanes, -1, self.attended.shape[1]).clone())

    def backward(self, inputs: Tensor, d_outputs: Tensor, d_final: RMCState) -> tuple[Tensor, Any, Any, Any]:
        """See `Tape.backward`."""
        self.way_back = self.way_back or _Backward(self)
        return self.way_back.run(self, inputs, d_outputs, d_final[0])


rmc_unroll = partial(unroll, RMCTape)  # see `rmc.reference.rmc_unroll`
rmc_stepping = partial(stepping, RMCTape)


class _Backward:
    """The way back over a tape.

    Gradients of the sums under activations are kept for a block of steps, until there are enough rows for a good matrix
    product with what the weights were multiplied with; they are then still in the cache. Underscores: see `RMCTape`.
    """

    tape: RMCTape  # only in `run`: no cycle of references keeps its memory

    def __init__(self, tape: RMCTape) -> None:
        (rows, size), layers = tape.attended.shape, len(tape.hidden) + 1
        width, gates = tape.qkv.shape[-1], tape.gates.shape[-1]
        self.block = min(max(1, BLOCK // rows), tape.steps)  # steps
        self.d_sums = [buffer(self.block, rows, n) for n in (width, gates, *[size] * layers)]  # d_layers last
        self.d_qkv, self.d_gates, *self.d_layers = (x.unbind() for x in self.d_sums)
        self._d_qkv, self._d_gates, *self._d_layers = (
            [view(x) for x in steps] for steps in map(torch.unbind, self.d_sums)
        )
        # One row for each step, and one for the input rows: sums of many small terms lose less so.
        shapes = [(width,)] * 3 + [(size,)] * 4 + [(layers, size), (rows // tape.lanes, size)]
        self.vectors = Gradients(*(buffer(tape.steps + 1, *shape) for shape in shapes))
        self._vectors = [Gradients(*step) for step in zip(*map(view, self.vectors), strict=True)]

    def _begin(self, tape: RMCTape, d_outputs: Tensor, d_final: Tensor) -> None:
        self.tape = tape
        self.weights = weights = tape.factors
        (rows, size), width, gates = tape.attended.shape, tape.qkv.shape[-1], tape.gates.shape[-1]
        self.d_outputs = view(d_outputs.view(tape.steps, rows, size))
        self.d_memory = d_final.flatten(0, 1).clone()
        self.d_initial = d_final.new_zeros(rows // tape.lanes, size)
        self._d_memory, self._d_initial = self.d_memory.numpy(), self.d_initial.numpy()
        for vector in self.vectors:
            vector.zero_()
        self.d_qkv_weight = d_final.new_zeros(size, width)
        self.d_gate_weight = d_final.new_zeros(size, gates)
        self.d_mlp_weights = [d_final.new_zeros(size, size) for _ in weights.mlp]
        self.from_qkv = multiplier(weights.blocks[0].qkv.weight.t())
        self.from_layers = [multiplier(layer.weight.t()) for layer in weights.mlp]
        if weights.gates is not None:
            self.from_gates = multiplier(weights.gates[1].weight.t())

    def run(self, tape: RMCTape, inputs: Tensor, d_outputs: Tensor, d_final: Tensor) -> tuple[Tensor, Any, Any, Any]:
        """All gradients, as `Tape.backward` returns them."""
        self._begin(tape, d_outputs, d_final)
        for first in reversed(range(0, self.tape.steps, self.block)):
            last = min(first + self.block, self.tape.steps)
            for t in reversed(range(first, last)):
                self._step(t, t - first)
            self._weights(first, last)
        d_inputs, d_input, d_input_gates = self._inputs(inputs)
        vectors = Gradients(*(x.sum(0) for x in self.vectors))
        norm = self.weights.blocks[0].attention_norm  # the MLP's first layer took gain * normal + bias
        self.d_mlp_weights[0].mul_(norm.weight[:, None]).addr_(norm.bias, vectors.mlp_biases[0])
        d_mlp = [x for w, b in zip(self.d_mlp_weights, vectors.mlp_biases, strict=True) for x in (w.t(), b)]
        d_gates: list[Tensor] = []
        if self.weights.gates is not None:
            d_gates = [*d_input_gates, self.d_gate_weight.t(), d_input_gates[1]]
        d_embedding = [] if self.weights.slot_embedding is None else [vectors.slot_embedding]
        d_weights = *d_input, self.d_qkv_weight.t(), *vectors[:-2], *d_mlp, *d_gates, *d_embedding
        d_state = self.d_memory.view(tape.lanes, *self.d_initial.shape)
        del self.tape
        return d_inputs, (d_state,), (self.d_initial.unsqueeze(0),), d_weights

    def _step(self, t: int, place: int) -> None:
        """From the gradient of the memory after step t to that of the memory before it."""
        tape, weights = self.tape, self.weights
        a, vectors, d_memory = tape._at[t], self._vectors[t], self._d_memory
        _d_layers = [x[place] for x in self._d_layers]
        pointwise.write_backward(
            self.d_outputs[t],
            d_memory,
            a.memory,
            tape._embedding,
            a.mlp_normal,
            a.mlp_scale,
            a.gates,
            weights.coupled,
            *tape._mlp_norm,
            _d_layers[-1],
            self._d_gates[place],
            a.input_gates,
            vectors.mlp_gain,
            vectors.mlp_norm_bias,
            vectors.mlp_biases[-1],
            vectors.slot_embedding,
        )
        for number in reversed(range(len(tape.hidden))):
            self.from_layers[number + 1](self.d_layers[number + 1][place], tape.layer)
            rectify_backward(tape._layer, tape._hidden_at[number][t], _d_layers[number], vectors.mlp_biases[number])
        self.from_layers[0](self.d_layers[0][place], tape.layer)
        tape.attention.backward(
            tape._layer,
            _d_layers[-1],
            a.qkv_normal,
            a.qkv_scale,
            a.attention,
            a.attended_normal,
            a.attended_scale,
            *tape._qkv_norm,
            tape._attended_norm[0],
            a.input_attended,
            d_memory,
            self._d_qkv[place],
            *vectors[:5],
        )
        self.d_memory.add_(self.from_qkv(self.d_qkv[place], tape.layer))
        if weights.gates is not None:
            self.from_gates(self.d_gates[place], tape.layer)
        pointwise.leave_backward(
            tape.should_reset[t], d_memory, tape._layer, a.tanh_memory, self._d_initial, vectors.slot_embedding
        )

    def _weights(self, first: int, last: int) -> None:
        """Adds the gradients of the weights from steps first to last - 1."""
        tape, (d_qkv, d_gates, *d_layers) = self.tape, self.d_sums
        x = tape.buffers
        layers = zip([x.attended_normal, *tape.hidden], d_layers, self.d_mlp_weights, strict=True)
        terms = [(x.memory, d_qkv, self.d_qkv_weight), *layers]
        if self.weights.gates is not None:
            terms.append((x.tanh_memory, d_gates, self.d_gate_weight))
        for y, d_sums, d_weight in terms:
            rows, d_rows = y[first:last].flatten(0, 1), d_sums[: last - first].flatten(0, 1)
            add_transposed_product(d_weight, rows, d_rows, tape.dtype)

    def _inputs(self, inputs: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Gradients of the inputs, of their linear map and of the gates' input part."""
        tape, weights = self.tape, self.weights
        x, a = tape.input_rows, tape._input_rows
        norms = a.input_attended, a.input_normal, a.input_scale, tape._qkv_norm[0]
        pointwise.input_rows_backward(*norms, *self._vectors[-1][:3])
        d_qkv = x.input_attended
        d_row = product(d_qkv, weights.blocks[0].qkv.weight.t())
        add_transposed_product(self.d_qkv_weight, x.input_row, d_qkv, tape.dtype)
        d_gates = []
        if weights.gates is not None:
            d_row.add_(product(x.input_gates, weights.gates[0].weight.t()))
            d_gates = [transposed_product(x.input_row, x.input_gates, tape.dtype).t(), x.input_gates.sum(0)]
        d_inputs = product(d_row, weights.input.weight.t()).view_as(inputs)
        return d_inputs, [transposed_product(d_row, inputs.flatten(0, 1), tape.dtype), d_row.sum(0)], d_gates
