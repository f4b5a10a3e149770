# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# (what a compiled pass takes are arrays, whose types its compiler finds out)
"""What the Relational Memory Core computes between its matrix products, but for the attention: passes over one step.

B lanes, N slots of D units. `normal` is a LayerNorm's input brought to mean 0 and variance 1, `scale` the 1/σ that did
it. Arguments named `d_...` that are vectors are sums over rows: they are added to.
"""

import math

import numpy as np

from rmc_agents.kernels.fused.pointwise import float32, jit, sigmoid, tanh

EPSILON = float32(1e-5)
ZERO, ONE = float32(0.0), float32(1.0)


@jit
def normalize(row, normal):
    """normal = (row - mean) / σ; returns 1/σ."""
    total = ZERO
    for j in range(len(row)):
        total += row[j]
    mean, squares = total / float32(len(row)), ZERO
    for j in range(len(row)):
        squares += (row[j] - mean) * (row[j] - mean)
    scale = ONE / math.sqrt(squares / float32(len(row)) + EPSILON)
    for j in range(len(row)):
        normal[j] = (row[j] - mean) * scale
    return scale


@jit
def normalize_backward(d_normal, normal, scale, out):
    """out = gradient of the row that `normalize` was given."""
    mean, projection = ZERO, ZERO
    for j in range(len(normal)):
        mean += d_normal[j]
        projection += d_normal[j] * normal[j]
    mean, projection = mean / float32(len(normal)), projection / float32(len(normal))
    for j in range(len(normal)):
        out[j] = scale * (d_normal[j] - mean - projection * normal[j])


@jit
def qkv_backward(d_row, normal, scale, gain, out, d_qkv_bias, d_gain, d_bias):
    """out = gradient of the linear map's row, from that of its queries, keys and values (which is overwritten)."""
    for j in range(len(d_row)):
        d_gain[j] += d_row[j] * normal[j]
        d_bias[j] += d_row[j]
        d_row[j] *= gain[j]
    normalize_backward(d_row, normal, scale, out)
    for j in range(len(d_row)):
        d_qkv_bias[j] += out[j]


@jit
def enter(should_reset, initial, before, memory, tanh_memory):
    """memory [B, N, D] = initial [1, N, D] where should_reset, else before; and its tanh, unless that is empty."""
    slots, size = memory.shape[1:]
    for b in range(len(memory)):
        source = initial[0] if should_reset[b] else before[b]
        for n in range(slots):
            for j in range(size):
                memory[b, n, j] = source[n, j]
        for n in range(tanh_memory.shape[1]):
            for j in range(size):
                tanh_memory[b, n, j] = tanh(memory[b, n, j])


@jit
def leave_backward(should_reset, d_memory, d_tanh, tanh_memory, d_initial):
    """Backward of `enter`, in place: d_memory gets d_tanh's share, and moves to d_initial where should_reset."""
    slots, size = d_memory.shape[1:]
    for b in range(len(d_memory)):
        for n in range(tanh_memory.shape[1]):
            for j in range(size):
                d_memory[b, n, j] += d_tanh[b, n, j] * (ONE - tanh_memory[b, n, j] * tanh_memory[b, n, j])
        if should_reset[b]:
            for n in range(slots):
                for j in range(size):
                    d_initial[0, n, j] += d_memory[b, n, j]
                    d_memory[b, n, j] = ZERO


@jit
def input_rows(qkv, qkv_bias, gain, bias, normal, scale, out):
    """The input rows' queries, keys and values: out [R, Q] = gain * normal + bias, with normal of qkv + qkv_bias."""
    row = np.empty(qkv.shape[1], np.float32)
    for r in range(len(qkv)):
        for j in range(len(row)):
            row[j] = qkv[r, j] + qkv_bias[j]
        scale[r] = normalize(row, normal[r])
        for j in range(len(row)):
            out[r, j] = normal[r, j] * gain[j] + bias[j]


@jit
def input_rows_backward(d_out, normal, scale, gain, d_qkv_bias, d_gain, d_bias):
    """Backward of `input_rows`: d_out [R, Q] is left as the gradient of qkv."""
    row = np.empty(normal.shape[1], np.float32)
    for r in range(len(normal)):
        for j in range(len(row)):
            row[j] = d_out[r, j]
        qkv_backward(row, normal[r], scale[r], gain, d_out[r], d_qkv_bias, d_gain, d_bias)


@jit
def rectify(x, bias, out):
    """out = max(0, x + bias), [R, D]."""
    for r in range(len(x)):
        for j in range(x.shape[1]):
            out[r, j] = max(x[r, j] + bias[j], ZERO)


@jit
def rectify_backward(d_out, out, d_x, d_bias):
    """d_x = d_out where out > 0."""
    for r in range(len(out)):
        for j in range(out.shape[1]):
            d = d_out[r, j] if out[r, j] > ZERO else ZERO
            d_x[r, j] = d
            d_bias[j] += d


@jit
def write(memory, attended, mlp, mlp_bias, from_memory, from_input, gain, bias, normal, scale, gates, after):
    """The memory after the step: residual and LayerNorm after the MLP, then the gates.

    In: memory, attended, mlp [B, N, D], the gates' parts from_memory [B, N, G] and from_input [B, G]; G is 2D, 2 or 0.
    Out: normal [B, N, D] and scale [B, N] of the LayerNorm, gates [B, N, G], after [B, N, D].
    """
    slots, size = memory.shape[1:]
    width = gates.shape[2]
    row = np.empty(size, np.float32)
    for b in range(len(memory)):
        for n in range(slots):
            for j in range(size):
                row[j] = attended[b, n, j] + mlp[b, n, j] + mlp_bias[j]
            scale[b, n] = normalize(row, normal[b, n])
            for j in range(width):
                gates[b, n, j] = sigmoid(from_memory[b, n, j] + from_input[b, j])
            for j in range(size):
                row[j] = normal[b, n, j] * gain[j] + bias[j]
            if width == 2 * size:
                for j in range(size):
                    after[b, n, j] = gates[b, n, j] * tanh(row[j]) + gates[b, n, size + j] * memory[b, n, j]
            elif width == 2:
                for j in range(size):
                    after[b, n, j] = gates[b, n, 0] * tanh(row[j]) + gates[b, n, 1] * memory[b, n, j]
            else:
                after[b, n] = row


@jit
def write_backward(
    d_output, d_memory, memory, normal, scale, gates, gain, bias,
    d_mlp, d_gates, d_from_input, d_gain, d_bias, d_mlp_bias,
):  # fmt: skip
    """Backward of `write`: d_mlp [B, N, D] (the attended rows' too), d_gates [B, N, G] and d_from_input [B, G].

    d_memory [B, N, D] comes in as the later steps' gradient of the memory after the step (to which d_output adds) and
    leaves as what the memory before the step gets through the forget gate.
    """
    slots, size = memory.shape[1:]
    width = gates.shape[2]
    d_row = np.empty(size, np.float32)
    for b in range(len(memory)):
        for j in range(width):
            d_from_input[b, j] = ZERO
        for n in range(slots):
            if width == 2 * size:
                for j in range(size):
                    i, f = gates[b, n, j], gates[b, n, size + j]
                    found, d_after = tanh(normal[b, n, j] * gain[j] + bias[j]), d_output[b, n, j] + d_memory[b, n, j]
                    d_gates[b, n, j] = d_after * found * i * (ONE - i)
                    d_gates[b, n, size + j] = d_after * memory[b, n, j] * f * (ONE - f)
                    d_row[j] = d_after * i * (ONE - found * found)
                    d_memory[b, n, j] = d_after * f
            elif width == 2:
                i, f, d_i, d_f = gates[b, n, 0], gates[b, n, 1], ZERO, ZERO
                for j in range(size):
                    found, d_after = tanh(normal[b, n, j] * gain[j] + bias[j]), d_output[b, n, j] + d_memory[b, n, j]
                    d_i += d_after * found
                    d_f += d_after * memory[b, n, j]
                    d_row[j] = d_after * i * (ONE - found * found)
                    d_memory[b, n, j] = d_after * f
                d_gates[b, n, 0], d_gates[b, n, 1] = d_i * i * (ONE - i), d_f * f * (ONE - f)
            else:
                for j in range(size):
                    d_row[j] = d_output[b, n, j] + d_memory[b, n, j]
                    d_memory[b, n, j] = ZERO
            for j in range(width):
                d_from_input[b, j] += d_gates[b, n, j]
            for j in range(size):
                d_gain[j] += d_row[j] * normal[b, n, j]
                d_bias[j] += d_row[j]
                d_row[j] *= gain[j]
            normalize_backward(d_row, normal[b, n], scale[b, n], d_mlp[b, n])
            for j in range(size):
                d_mlp_bias[j] += d_mlp[b, n, j]
