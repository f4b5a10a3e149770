"""A linear layer on one-hot inputs, computed as a sum of weight rows."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .modes import by_torch, tracing
from .pointwise import float32, jit, view

ZERO = float32(0.0)


def rectified_lookup(chosen: Tensor, table: Tensor, bias: Tensor) -> Tensor:
    """max(0, sum over e of table[chosen[r, e]] + bias), with gradient.

    Args:
      chosen: rows of the table, `[R, E]` int32, each below K.
      table: `[K, M]`.
      bias: `[M]`.

    Returns:
      `[R, M]`.
    """
    ours = table.device.type == "cpu" and table.dtype == torch.float32
    if ours and torch.is_grad_enabled() and not tracing():
        return _RectifiedLookup.apply(chosen, table, bias)
    return _rectified_lookup(chosen, table, bias)


def _rectified_lookup(chosen: Tensor, table: Tensor, bias: Tensor) -> Tensor:
    chosen = chosen.long() if tracing() else chosen  # ONNX has this operator only for int64
    return functional.relu(functional.embedding_bag(chosen, table, mode="sum") + bias)


class _RectifiedLookup(torch.autograd.Function):
    """`_rectified_lookup` with a CPU backward pass that takes about a fifth of the time of torch's."""

    @staticmethod
    def forward(ctx: Any, chosen: Tensor, table: Tensor, bias: Tensor) -> Tensor:
        y = _rectified_lookup(chosen, table, bias)
        ctx.save_for_backward(chosen, y)
        ctx.rows = len(table)
        return y

    @staticmethod
    def backward(ctx: Any, d_y: Tensor) -> tuple[None, Tensor, Tensor]:
        chosen, y = ctx.saved_tensors
        if by_torch(d_y):
            d_sum = d_y * (y > 0)
            d_rows = d_sum.repeat_interleave(chosen.shape[1], dim=0)
            return None, d_sum.new_zeros(ctx.rows, d_sum.shape[1]).index_add(0, chosen.flatten(), d_rows), d_sum.sum(0)
        d_table, d_bias = y.new_zeros(ctx.rows, y.shape[1]), y.new_zeros(y.shape[1])
        _scatter(view(chosen), y.numpy(), view(d_y), d_table.numpy(), d_bias.numpy())
        return None, d_table, d_bias


@jit
def _scatter(chosen, y, d_y, d_table, d_bias):
    """Adds to d_table and d_bias."""
    d_sum = d_bias.copy()
    for r in range(len(chosen)):
        for j in range(len(d_sum)):
            d_sum[j] = d_y[r, j] if y[r, j] > ZERO else ZERO
            d_bias[j] += d_sum[j]
        for e in range(chosen.shape[1]):
            row = d_table[chosen[r, e]]
            for j in range(len(d_sum)):
                row[j] += d_sum[j]
