"""Attention among the slots of each lane, compiled for given sizes, so that short loops are unrolled.

Per step: memory [R, D], queries, keys and values [R, Q] with Q = H (2 dk + dv) and D = H dv; R = B N rows, those of one
lane together, so that its attention stays in the L1 cache. See `fused_pointwise` for `normal` and `scale`.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from rmc_agents.kernels.pointwise import exp, float32, inlined, jit

from .fused_pointwise import ZERO, normalize, normalize_backward, qkv_backward


@inlined
def softmax(scores, length, softmax_scale):
    """Softmax of softmax_scale * scores, in place, over each group of `length` neighbours."""
    for first in range(0, len(scores), length):
        largest = scores[first]
        for m in range(1, length):
            largest = max(largest, scores[first + m])
        for m in range(length):
            scores[first + m] = (scores[first + m] - largest) * softmax_scale
    for i in range(len(scores)):
        scores[i] = exp(scores[i])
    for first in range(0, len(scores), length):
        mass = ZERO
        for m in range(length):
            mass += scores[first + m]
        for m in range(length):
            scores[first + m] /= mass


@inlined
def softmax_backward(weights, d_weights, softmax_scale):
    """From the gradient of softmax(softmax_scale * scores) to that of the scores, in place; [H, N, N+1]."""
    heads, slots, length = weights.shape
    for h in range(heads):
        for n in range(slots):
            mean = ZERO
            for m in range(length):
                mean += weights[h, n, m] * d_weights[h, n, m]
            for m in range(length):
                d_weights[h, n, m] = weights[h, n, m] * (d_weights[h, n, m] - mean) * softmax_scale


@inlined
def head_products(x, x_start, y, y_start, length, out):
    """out [N, N+1] = x yᵀ over columns x_start ... and y_start ... of x [N, ...] and y [N+1, ...].

    Four rows of x at a time: with one, the processor waits for each addition.
    """
    whole = len(out) // 4 * 4
    for m in range(out.shape[1]):
        for n in range(0, whole, 4):
            first, second, third, fourth = ZERO, ZERO, ZERO, ZERO
            for j in range(length):
                factor = y[m, y_start + j]
                first += x[n, x_start + j] * factor
                second += x[n + 1, x_start + j] * factor
                third += x[n + 2, x_start + j] * factor
                fourth += x[n + 3, x_start + j] * factor
            out[n, m], out[n + 1, m], out[n + 2, m], out[n + 3, m] = first, second, third, fourth
        for n in range(whole, len(out)):
            total = ZERO
            for j in range(length):
                total += x[n, x_start + j] * y[m, y_start + j]
            out[n, m] = total


class AttentionKernels(NamedTuple):
    """Compiled for one set of sizes."""

    forward: Callable[..., None]
    backward: Callable[..., None]


@cache
def attention_kernels(slots: int, heads: int, key_size: int, head_size: int) -> AttentionKernels:
    """The passes for these sizes."""
    return AttentionKernels(_forward(slots, heads, key_size, head_size), _backward(slots, heads, key_size, head_size))


def _forward(slots: int, heads: int, key_size: int, head_size: int) -> Any:
    size, keys, rows_seen = heads * head_size, heads * key_size, slots + 1
    width = 2 * keys + size
    softmax_scale = float32(1 / math.sqrt(key_size))

    @jit
    def attend(
        memory, qkv, qkv_bias, gain, bias, input_attended, out_gain, out_bias,
        qkv_normal, qkv_scale, attention, normal, scale, attended,
    ):  # fmt: skip
        """Attention of every slot over its lane's slots and input row, then residual and LayerNorm.

        In: qkv before its bias, input_attended [B, Q]. Out: qkv_normal [R, Q] and qkv_scale [R], attention
        [B, H, N, N+1], normal [R, D] and scale [R] of the LayerNorm after, attended = out_gain * normal + out_bias.
        """
        rows, row, total = (
            np.empty((rows_seen, width), np.float32),
            np.empty(width, np.float32),
            np.empty(size, np.float32),
        )
        scores = np.empty((heads, slots, rows_seen), np.float32)
        for b in range(len(input_attended)):
            for n in range(slots):
                for j in range(width):
                    row[j] = qkv[b * slots + n, j] + qkv_bias[j]
                qkv_scale[b * slots + n] = normalize(row, qkv_normal[b * slots + n])
                for j in range(width):
                    rows[n, j] = qkv_normal[b * slots + n, j] * gain[j] + bias[j]
            for j in range(width):
                rows[slots, j] = input_attended[b, j]
            for h in range(heads):
                head_products(rows, h * key_size, rows, keys + h * key_size, key_size, scores[h])
            softmax(scores.reshape(-1), rows_seen, softmax_scale)
            for h in range(heads):
                for n in range(slots):
                    for m in range(rows_seen):  # numba takes seconds to compile attention[b] = scores
                        attention[b, h, n, m] = scores[h, n, m]
            for n in range(slots):
                for h in range(heads):
                    for j in range(head_size):
                        x = memory[b * slots + n, h * head_size + j]
                        for m in range(rows_seen):
                            x += scores[h, n, m] * rows[m, 2 * keys + h * head_size + j]
                        total[h * head_size + j] = x
                scale[b * slots + n] = normalize(total, normal[b * slots + n])
                for j in range(size):
                    attended[b * slots + n, j] = normal[b * slots + n, j] * out_gain[j] + out_bias[j]

    return attend


def _backward(slots: int, heads: int, key_size: int, head_size: int) -> Any:
    size, keys, rows_seen = heads * head_size, heads * key_size, slots + 1
    width = 2 * keys + size
    softmax_scale = float32(1 / math.sqrt(key_size))

    @jit
    def attend_backward(
        d_attended, d_residual, qkv_normal, qkv_scale, attention, normal, scale, gain, bias, out_gain, input_attended,
        d_memory, d_qkv, d_qkv_bias, d_gain, d_bias, d_out_gain, d_out_bias,
    ):  # fmt: skip
        """Backward of `attend`: the gradient of attended is d_attended + d_residual; d_memory gets its share added.

        Writes d_qkv [R, Q], replaces input_attended by its gradient, and adds to the gradients of vectors.
        """
        rows, d_row = np.empty((rows_seen, width), np.float32), np.empty(width, np.float32)
        d_total, d_normal = np.empty((slots, size), np.float32), np.empty(size, np.float32)
        d_scores = np.empty((heads, slots, rows_seen), np.float32)
        for b in range(len(input_attended)):
            for n in range(slots):
                for j in range(width):
                    rows[n, j] = qkv_normal[b * slots + n, j] * gain[j] + bias[j]
                for j in range(size):
                    d_out = d_attended[b * slots + n, j] + d_residual[b * slots + n, j]
                    d_out_gain[j] += d_out * normal[b * slots + n, j]
                    d_out_bias[j] += d_out
                    d_normal[j] = d_out * out_gain[j]
                normalize_backward(d_normal, normal[b * slots + n], scale[b * slots + n], d_total[n])
                for j in range(size):
                    d_memory[b * slots + n, j] += d_total[n, j]
            for j in range(width):
                rows[slots, j] = input_attended[b, j]
            for h in range(heads):
                head_products(d_total, h * head_size, rows, 2 * keys + h * head_size, head_size, d_scores[h])
            softmax_backward(attention[b], d_scores, softmax_scale)
            for m in range(rows_seen):
                for h in range(heads):
                    for j in range(key_size):
                        x = ZERO
                        if m < slots:
                            for i in range(rows_seen):
                                x += d_scores[h, m, i] * rows[i, keys + h * key_size + j]
                        d_row[h * key_size + j] = x
                    for j in range(key_size):
                        x = ZERO
                        for n in range(slots):
                            x += d_scores[h, n, m] * rows[n, h * key_size + j]
                        d_row[keys + h * key_size + j] = x
                    for j in range(head_size):
                        x = ZERO
                        for n in range(slots):
                            x += attention[b, h, n, m] * d_total[n, h * head_size + j]
                        d_row[2 * keys + h * head_size + j] = x
                if m < slots:
                    qkv_backward(
                        d_row,
                        qkv_normal[b * slots + m],
                        qkv_scale[b * slots + m],
                        gain,
                        d_qkv[b * slots + m],
                        d_qkv_bias,
                        d_gain,
                        d_bias,
                    )
                else:
                    for j in range(width):
                        input_attended[b, j] = d_row[j]

    return attend_backward
