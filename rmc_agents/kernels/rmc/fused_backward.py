"""The backward pass of the Relational Memory Core's scan."""

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from rmc_agents.kernels.pointwise import buffer, rectify_backward, view
from rmc_agents.kernels.products import BLOCK, add_transposed_product, multiplier, product, transposed_product

from . import fused_pointwise as pointwise

if TYPE_CHECKING:
    from .fused import RMCTape


class Gradients(NamedTuple):
    """Gradients of the vector parameters: one row for each step during the backward pass, their sums after it."""

    qkv_bias: Any  # [Q]
    qkv_gain: Any
    qkv_norm_bias: Any
    attended_gain: Any  # [D]
    attended_bias: Any
    mlp_gain: Any
    mlp_norm_bias: Any
    mlp_biases: Any  # [L, D]
    slot_embedding: Any  # [N, D]


class Backward:
    """The backward pass over a tape.

    Gradients of pre-activations are kept for a block of steps, until they have enough rows for an efficient matrix
    product with the weights' inputs. They are then still in the cache. For names with an underscore see `RMCTape`.
    """

    tape: "RMCTape"  # set only during `run`, so that no reference cycle keeps its memory alive

    def __init__(self, tape: "RMCTape") -> None:
        (rows, size), layers = tape.attended.shape, len(tape.hidden) + 1
        width, gates = tape.qkv.shape[-1], tape.gates.shape[-1]
        self.block = min(max(1, BLOCK // rows), tape.steps)  # steps
        self.d_sums = [buffer(self.block, rows, n) for n in (width, gates, *[size] * layers)]  # d_layers last
        self.d_qkv, self.d_gates, *self.d_layers = (x.unbind() for x in self.d_sums)
        self._d_qkv, self._d_gates, *self._d_layers = (
            [view(x) for x in steps] for steps in map(torch.unbind, self.d_sums)
        )
        # One row for each step, and one for the input rows: summing them at the end loses less precision.
        shapes = [(width,)] * 3 + [(size,)] * 4 + [(layers, size), (rows // tape.lanes, size)]
        self.vectors = Gradients(*(buffer(tape.steps + 1, *shape) for shape in shapes))
        self._vectors = [Gradients(*step) for step in zip(*map(view, self.vectors), strict=True)]

    def _begin(self, tape: "RMCTape", d_outputs: Tensor, d_final: Tensor) -> None:
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

    def run(self, tape: "RMCTape", inputs: Tensor, d_outputs: Tensor, d_final: Tensor) -> tuple[Tensor, Any, Any, Any]:
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
        del self.tape, self.weights, self.d_outputs, self.from_qkv, self.from_layers  # they would keep the model alive
        vars(self).pop("from_gates", None)
        return d_inputs, (d_state,), (self.d_initial.unsqueeze(0),), d_weights

    def _step(self, t: int, place: int) -> None:
        """Turns the gradient of the memory after step t into that of the memory before it."""
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
        """Gradients of the inputs, of their linear map, and of the input part of the gates."""
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
