# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# (Triton kernels take pointers and scalars without Python types)
"""The LSTM's scan over time for CUDA GPUs: per step one matrix product by torch and one Triton kernel for the rest.

The contract is `lstm.reference.lstm_unroll`'s. Importing this module needs Triton (`pip install rmc-agents[triton]`).

Recurrent weights of usual sizes (4 H² numbers) do not fit into a multiprocessor's memory, so each step is a separate
launch. No launch waits for the CPU. The resets are in the kernels.
Kept for backward, per step and lane: h and c before the step, after the reset, [H] each, and the gates, [4H]. The
recurrent weights' gradient is one product over all steps and lanes. Results are bitwise reproducible.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F

from rmc_agents.kernels.modes import no_second_derivative
from rmc_agents.kernels.rmc.triton_kernels import INTERPRETED, _tanh
from rmc_agents.kernels.weights import LSTMState, RecurrentWeights

BLOCK = 512  # units of a program


@triton.jit
def _place(lanes, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """The program's units: their places in `[B, H]` and in `[B, 4H]`, lanes, columns, and which of them exist."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    lane, column = at // SIZE, at % SIZE
    return at, lane * (4 * SIZE) + column, lane, column, lane < lanes


@triton.jit(do_not_specialize=["lanes"])
def _forward(
    gates, cell, next_resets, initial_hidden, initial_cell, output, next_hidden, next_cell, lanes,
    SIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One step: activates the gates `[B, 4H]` in place; writes the output, and h and c after the next step's reset."""
    at, gate, lane, column, ok = _place(lanes, SIZE, BLOCK)
    i = tl.sigmoid(tl.load(gates + gate, mask=ok, other=0.0))
    f = tl.sigmoid(tl.load(gates + gate + SIZE, mask=ok, other=0.0))
    g = _tanh(tl.load(gates + gate + 2 * SIZE, mask=ok, other=0.0))
    o = tl.sigmoid(tl.load(gates + gate + 3 * SIZE, mask=ok, other=0.0))
    after = f * tl.load(cell + at, mask=ok, other=0.0) + i * g
    hidden = o * _tanh(after)
    tl.store(gates + gate, i, mask=ok)
    tl.store(gates + gate + SIZE, f, mask=ok)
    tl.store(gates + gate + 2 * SIZE, g, mask=ok)
    tl.store(gates + gate + 3 * SIZE, o, mask=ok)
    tl.store(output + at, hidden, mask=ok)
    begins = (tl.load(next_resets + lane, mask=ok, other=0) != 0) & ok
    hidden = tl.where(begins, tl.load(initial_hidden + column, mask=begins, other=0.0), hidden)
    after = tl.where(begins, tl.load(initial_cell + column, mask=begins, other=0.0), after)
    tl.store(next_hidden + at, hidden, mask=ok)
    tl.store(next_cell + at, after, mask=ok)


@triton.jit(do_not_specialize=["lanes"])
def _backward(
    gates, cell, next_resets, d_output, d_next_hidden, d_next_cell, d_gates, d_cell, lanes,
    SIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One step: from the gradients of h and c before the next step to those of the gates' sums and of c before this."""
    at, gate, lane, _, ok = _place(lanes, SIZE, BLOCK)
    i = tl.load(gates + gate, mask=ok, other=0.0)
    f = tl.load(gates + gate + SIZE, mask=ok, other=0.0)
    g = tl.load(gates + gate + 2 * SIZE, mask=ok, other=0.0)
    o = tl.load(gates + gate + 3 * SIZE, mask=ok, other=0.0)
    before = tl.load(cell + at, mask=ok, other=0.0)
    squashed = _tanh(f * before + i * g)
    goes_on = (tl.load(next_resets + lane, mask=ok, other=1) == 0) & ok
    d_hidden = tl.load(d_output + at, mask=ok, other=0.0) + tl.load(d_next_hidden + at, mask=goes_on, other=0.0)
    d_after = d_hidden * o * (1 - squashed * squashed) + tl.load(d_next_cell + at, mask=goes_on, other=0.0)
    tl.store(d_gates + gate, d_after * g * i * (1 - i), mask=ok)
    tl.store(d_gates + gate + SIZE, d_after * before * f * (1 - f), mask=ok)
    tl.store(d_gates + gate + 2 * SIZE, d_after * i * (1 - g * g), mask=ok)
    tl.store(d_gates + gate + 3 * SIZE, d_hidden * squashed * o * (1 - o), mask=ok)
    tl.store(d_cell + at, d_after * f, mask=ok)


class _Scan(torch.autograd.Function):
    """All that depends on h and c; see `lstm_unroll`."""

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,  # [T, B, 4H]: the input's part of the gates
        should_reset: Tensor,  # [T, B] bool
        state_hidden: Tensor,  # [B, H]
        state_cell: Tensor,
        initial_hidden: Tensor,  # [1, H]
        initial_cell: Tensor,
        weight: Tensor,  # [4H, H]
    ) -> tuple[Tensor, Tensor]:
        """Returns the outputs `[T, B, H]` and the last c."""
        steps, lanes, _ = inputs.shape
        size = state_hidden.shape[1]
        initial_hidden, initial_cell = initial_hidden.contiguous(), initial_cell.contiguous()
        resets = F.pad(should_reset, (0, 0, 0, 1)).view(torch.uint8)  # no reset follows the last step
        hidden, cell = (inputs.new_empty(steps + 1, lanes, size) for _ in range(2))  # before each step, after resets
        gates, outputs = (
            torch.empty_like(inputs, memory_format=torch.contiguous_format),
            inputs.new_empty(steps, lanes, size),
        )
        torch.where(should_reset[0, :, None], initial_hidden, state_hidden, out=hidden[0])
        torch.where(should_reset[0, :, None], initial_cell, state_cell, out=cell[0])
        grid = (triton.cdiv(lanes * size, BLOCK),)
        with torch.cuda.device_of(inputs):
            for t in range(steps):
                torch.addmm(inputs[t], hidden[t], weight.t(), out=gates[t])
                _forward[grid](
                    gates[t], cell[t], resets[t + 1], initial_hidden, initial_cell,
                    outputs[t], hidden[t + 1], cell[t + 1], lanes, size, BLOCK,
                )  # fmt: skip
        ctx.save_for_backward(resets, gates, hidden, cell, weight)
        return outputs, cell[-1].clone()

    @staticmethod
    def backward(ctx: Any, d_outputs: Tensor, d_last: Tensor) -> tuple[Tensor | None, ...]:
        """T products and kernels back through h and c, then one product for the weights."""
        no_second_derivative()
        resets, gates, hidden, cell, weight = ctx.saved_tensors
        steps, lanes, size = d_outputs.shape
        d_outputs = d_outputs.contiguous()
        d_gates, d_hidden, d_cell = torch.empty_like(gates), torch.empty_like(hidden), torch.empty_like(cell)
        d_hidden[-1] = 0.0
        d_cell[-1] = d_last
        grid = (triton.cdiv(lanes * size, BLOCK),)
        with torch.cuda.device_of(d_outputs):
            for t in reversed(range(steps)):
                _backward[grid](
                    gates[t], cell[t], resets[t + 1], d_outputs[t], d_hidden[t + 1], d_cell[t + 1],
                    d_gates[t], d_cell[t], lanes, size, BLOCK,
                )  # fmt: skip
                torch.mm(d_gates[t], weight, out=d_hidden[t])
        begins = resets[:-1].bool().unsqueeze(-1)  # [T, B, 1]
        d_states = (torch.where(begins[0], 0.0, d[0]) for d in (d_hidden, d_cell))
        d_initials = (torch.where(begins, d[:-1], 0.0).sum((0, 1)).unsqueeze(0) for d in (d_hidden, d_cell))
        return d_gates, None, *d_states, *d_initials, d_gates.flatten(0, 1).T @ hidden[:-1].flatten(0, 1)


def supports(weights: RecurrentWeights, initial_state: LSTMState) -> str | None:
    """None if the kernels can run an LSTM of these weights, else why not, in words."""
    if weights.hidden.dtype != torch.float32:
        return f"dtype {weights.hidden.dtype}: the kernel has float32 weights"
    if weights.hidden.device.type != "cuda" and not INTERPRETED:
        return f"device {weights.hidden.device}: the kernel runs on CUDA GPUs"
    return None


def lstm_unroll(
    inputs: Tensor,
    should_reset: Tensor,
    state: LSTMState,
    initial_state: LSTMState,
    weights: RecurrentWeights,
) -> tuple[Tensor, LSTMState]:
    """`lstm.reference.lstm_unroll`, whose arguments it takes; all tensors float32.

    The matrix products are torch's: `torch.set_float32_matmul_precision` holds for them.

    Raises:
      ValueError: where the kernels cannot run (see `supports`).
    """
    if reason := supports(weights, initial_state):
        raise ValueError(f"the Triton kernel cannot run this core: {reason}")
    gates = F.linear(inputs, *weights.input)  # [T, B, 4H]
    outputs, cell = _Scan.apply(gates, should_reset, *state, *initial_state, weights.hidden)
    return outputs, LSTMState(outputs[-1].clone(), cell)
