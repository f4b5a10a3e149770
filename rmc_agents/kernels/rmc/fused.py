"""The Relational Memory Core's scan."""

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rmc_agents.kernels.pointwise import buffer, rectify, view
from rmc_agents.kernels.products import multiplier, product
from rmc_agents.kernels.tape import StepwiseTape, stepping, unroll
from rmc_agents.kernels.weights import RMCState, RMCWeights

from . import fused_pointwise as pointwise
from .fused_attention import attention_kernels
from .fused_backward import Backward
from .reference import rmc_gate_bias


class Buffers(NamedTuple):
    """What the backward pass needs from every step: 10 D numbers per slot with 'unit' gates and one hidden layer.

    R = B N rows, slot by slot of each lane. `normal` is a LayerNorm's result before gain and bias, `scale` its 1/σ.
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
    input_attended: Any  # [B, Q], the input row's queries, keys and values; in backward, their gradient
    input_gates: Any  # [B, G]; in backward, their gradient

    @classmethod
    def empty(cls, steps: int, lanes: int, slots: int, size: int, heads: int, width: int, gates: int) -> "Buffers":
        """New buffers, `[T, ...]`."""
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
        # Views of every step, made once: making views is slow compared with a step.
        self.memory, self.tanh_memory = self.buffers.memory.unbind(), self.buffers.tanh_memory.unbind()
        self.hidden_at = [x.unbind() for x in self.hidden]
        self._hidden_at = [[view(x) for x in layer] for layer in self.hidden_at]
        self._at = [Buffers(*step) for step in zip(*map(view, self.buffers), strict=True)]
        self.input_rows = Buffers(*(x.flatten(0, 1) for x in self.buffers))  # of all steps
        self._input_rows = Buffers(*map(view, self.input_rows))
        self.backward_pass: Backward | None = None  # made for the first backward pass

    @staticmethod
    def sizes_of(initial_state: RMCState, weights: RMCWeights) -> tuple[int, ...]:
        _, slots, size = initial_state.memory.shape
        gates = 0 if weights.gates is None else len(weights.gates[0].bias)
        return slots, weights.num_heads, weights.key_size, size // weights.num_heads, gates, len(weights.mlp)

    def prepare(self, initial_state: RMCState, weights: RMCWeights) -> None:
        super().prepare(initial_state, weights)
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
        return RMCState(self.outputs[-1].view(self.lanes, -1, self.attended.shape[1]).clone())

    def backward(self, inputs: Tensor, d_outputs: Tensor, d_final: RMCState) -> tuple[Tensor, Any, Any, Any]:
        self.backward_pass = self.backward_pass or Backward(self)
        return self.backward_pass.run(self, inputs, d_outputs, d_final[0])


rmc_unroll = partial(unroll, RMCTape)  # see `rmc.reference.rmc_unroll`
rmc_stepping = partial(stepping, RMCTape)
