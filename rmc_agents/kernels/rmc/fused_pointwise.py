"""The Relational Memory Core between its matrix products, except attention: passes over one step.

B lanes, N slots of D units, so R = B N rows, those of one lane together. `normal` is a LayerNorm's input normalised to
mean 0 and variance 1, `scale` its 1/σ. Gradients of vectors (`d_...`) are sums over rows: functions add to them.
"""

import math

import numpy as np

from rmc_agents.kernels.pointwise import float32, inlined, jit, sigmoid, tanh

EPSILON = float32(1e-5)
ZERO, ONE = float32(0.0), float32(1.0)


@inlined
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


@inlined
def normalize_backward(d_normal, normal, scale, out):
    """out = gradient of the row that `normalize` was given."""
    mean, projection = ZERO, ZERO
    for j in range(len(normal)):
        mean += d_normal[j]
        projection += d_normal[j] * normal[j]
    mean, projection = mean / float32(len(normal)), projection / float32(len(normal))
    for j in range(len(normal)):
        out[j] = scale * (d_normal[j] - mean - projection * normal[j])


@inlined
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
def enter(should_reset, initial, before, embedding, memory, tanh_memory):
    """memory [R, D] = embedding [N, D] + (initial [N, D] where should_reset [B], else before).

    Also writes its tanh, unless tanh_memory has no rows.
    """
    slots, size = initial.shape
    for b in range(len(should_reset)):
        for n in range(slots):
            r = b * slots + n
            source = initial[n] if should_reset[b] else before[r]
            for j in range(size):
                memory[r, j] = source[j] + embedding[n, j]
            if len(tanh_memory):
                for j in range(size):
                    tanh_memory[r, j] = tanh(memory[r, j])


@jit
def leave_backward(should_reset, d_memory, d_tanh, tanh_memory, d_initial, d_embedding):
    """Backward of `enter`, in place: adds d_tanh's share to d_memory, and the sum of d_memory to d_embedding [N, D].

    Where should_reset, d_memory then moves to d_initial [N, D].
    """
    slots, size = d_initial.shape
    for b in range(len(should_reset)):
        for n in range(slots):
            r = b * slots + n
            if len(tanh_memory):
                for j in range(size):
                    d_memory[r, j] += d_tanh[r, j] * (ONE - tanh_memory[r, j] * tanh_memory[r, j])
            for j in range(size):
                d_embedding[n, j] += d_memory[r, j]
            if should_reset[b]:
                for j in range(size):
                    d_initial[n, j] += d_memory[r, j]
                    d_memory[r, j] = ZERO


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
    """Backward of `input_rows`: d_out [R, Q] becomes the gradient of qkv."""
    row = np.empty(normal.shape[1], np.float32)
    for r in range(len(normal)):
        for j in range(len(row)):
            row[j] = d_out[r, j]
        qkv_backward(row, normal[r], scale[r], gain, d_out[r], d_qkv_bias, d_gain, d_bias)


@jit
def write(
    memory, embedding, attended, mlp, mlp_bias, from_memory, from_input, coupled, gain, bias, normal, scale, gates,
    after,
):  # fmt: skip
    """The memory after the step: residual and LayerNorm after the MLP, then the gates.

    In: memory [R, D] from `enter`, whose embedding [N, D] is not carried over; attended, mlp [R, D]; the gates' parts
    from_memory [R, G] and from_input [B, G], where G is D if they are coupled, else 2D, 2 or 0.
    Out: normal [R, D] and scale [R] of the LayerNorm, gates [R, G], after [R, D].
    """
    size, width, slots = memory.shape[1], gates.shape[1], len(memory) // len(from_input)
    row = np.empty(size, np.float32)
    for r in range(len(memory)):
        for j in range(size):
            row[j] = attended[r, j] + mlp[r, j] + mlp_bias[j]
        scale[r] = normalize(row, normal[r])
        of_lane, of_slot = from_input[r // slots], embedding[r % slots]
        for j in range(width):
            gates[r, j] = sigmoid(from_memory[r, j] + of_lane[j])
        for j in range(size):
            row[j] = normal[r, j] * gain[j] + bias[j]
        if coupled:
            for j in range(size):
                f = gates[r, j]
                after[r, j] = (ONE - f) * tanh(row[j]) + f * (memory[r, j] - of_slot[j])
        elif width == 2 * size:
            for j in range(size):
                after[r, j] = gates[r, j] * tanh(row[j]) + gates[r, size + j] * (memory[r, j] - of_slot[j])
        elif width == 2:
            for j in range(size):
                after[r, j] = gates[r, 0] * tanh(row[j]) + gates[r, 1] * (memory[r, j] - of_slot[j])
        else:
            for j in range(size):
                after[r, j] = row[j]


@jit
def write_backward(
    d_output, d_memory, memory, embedding, normal, scale, gates, coupled, gain, bias,
    d_mlp, d_gates, d_from_input, d_gain, d_bias, d_mlp_bias, d_embedding,
):  # fmt: skip
    """Backward of `write`: d_mlp [R, D] (the attended rows' too), d_gates [R, G] and d_from_input [B, G].

    On entry, d_memory [R, D] is the later steps' gradient of the memory after the step, without d_output. On return, it
    is the part of the gradient of the memory before the step that comes through the forget gate.
    """
    size, width, slots = memory.shape[1], gates.shape[1], len(memory) // len(d_from_input)
    d_row = np.empty(size, np.float32)
    for r in range(len(memory)):
        of_slot, d_of_slot = embedding[r % slots], d_embedding[r % slots]
        if coupled:
            for j in range(size):
                f, carried = gates[r, j], memory[r, j] - of_slot[j]
                found, d_after = tanh(normal[r, j] * gain[j] + bias[j]), d_output[r, j] + d_memory[r, j]
                d_gates[r, j] = d_after * (carried - found) * f * (ONE - f)
                d_row[j] = d_after * (ONE - f) * (ONE - found * found)
                d_memory[r, j] = d_after * f
                d_of_slot[j] -= d_memory[r, j]
        elif width == 2 * size:
            for j in range(size):
                i, f = gates[r, j], gates[r, size + j]
                found, d_after = tanh(normal[r, j] * gain[j] + bias[j]), d_output[r, j] + d_memory[r, j]
                d_gates[r, j] = d_after * found * i * (ONE - i)
                d_gates[r, size + j] = d_after * (memory[r, j] - of_slot[j]) * f * (ONE - f)
                d_row[j] = d_after * i * (ONE - found * found)
                d_memory[r, j] = d_after * f
                d_of_slot[j] -= d_memory[r, j]
        elif width == 2:
            i, f, d_i, d_f = gates[r, 0], gates[r, 1], ZERO, ZERO
            for j in range(size):
                found, d_after = tanh(normal[r, j] * gain[j] + bias[j]), d_output[r, j] + d_memory[r, j]
                d_i += d_after * found
                d_f += d_after * (memory[r, j] - of_slot[j])
                d_row[j] = d_after * i * (ONE - found * found)
                d_memory[r, j] = d_after * f
                d_of_slot[j] -= d_memory[r, j]
            d_gates[r, 0], d_gates[r, 1] = d_i * i * (ONE - i), d_f * f * (ONE - f)
        else:
            for j in range(size):
                d_row[j] = d_output[r, j] + d_memory[r, j]
                d_memory[r, j] = ZERO
        of_lane = d_from_input[r // slots]
        if r % slots == 0:
            of_lane[:] = ZERO
        for j in range(width):
            of_lane[j] += d_gates[r, j]
        for j in range(size):
            d_gain[j] += d_row[j] * normal[r, j]
            d_bias[j] += d_row[j]
            d_row[j] *= gain[j]
        normalize_backward(d_row, normal[r], scale[r], d_mlp[r])
        for j in range(size):
            d_mlp_bias[j] += d_mlp[r, j]
