"""Shared by the reference scans: the loop over time with resets, attention, LayerNorm, the row-wise MLP.

Each core's folder has a `reference.py` in plain torch: the specification that faster kernels have to match. Its
`*_unroll` is a pure function of

  inputs `[T, B, I]`, should_reset `[T, B]` bool, state before the first step (leaves `[B, ...]`),
  initial_state (leaves `[1, ...]`, the same for every lane), weights

and returns the outputs `[T, B, H]` and the state after the last step. What does not depend on the memory is computed
for all T steps in one matrix product before the loop. A single step is an unroll of length 1.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rmc_agents.types import map_leaves

from .weights import Affine


def reset(should_reset: Tensor, initial_state: Any, state: Any) -> Any:
    """Replace the state by the initial state where an episode begins; by selection, so that no NaN survives.

    Args:
      should_reset: `[B]` bool.
      initial_state: leaves `[1, ...]`.
      state: leaves `[B, ...]`.
    """

    def select(initial: Tensor, leaf: Tensor) -> Tensor:
        resets = should_reset.view(-1, *[1] * (leaf.dim() - 1))
        if leaf.dtype == torch.bool:  # ONNX runtimes have no selection among booleans
            return (resets & initial) | (~resets & leaf)
        return torch.where(resets, initial, leaf)

    return map_leaves(select, initial_state, state)


def scan(
    cell: Callable[[Any, Any], tuple[Tensor, Any]],
    inputs: tuple[Tensor, ...],
    should_reset: Tensor,
    state: Any,
    initial_state: Any,
) -> tuple[Tensor, Any]:
    """Run `cell(inputs_t, state) -> (output, state)` over time, with resets before every step.

    Args:
      cell: one step of a core; takes a list of the tensors of `inputs` at one step.
      inputs: tensors `[T, ...]`.
      should_reset: `[T, B]` bool.
      state: before the first step, leaves `[B, ...]`.
      initial_state: leaves `[1, ...]`.

    Returns:
      The outputs, `[T, ...]`, and the state after the last step.
    """
    outputs = []
    for should_reset_t, *inputs_t in zip(should_reset.unbind(), *(x.unbind() for x in inputs), strict=True):
        output, state = cell(inputs_t, reset(should_reset_t, initial_state, state))
        outputs.append(output)
    return torch.stack(outputs), state


def by_slots(memory: Tensor) -> Tensor:
    """The memory `[B, N, D]`, stored slot by slot: its transpose `[N, B, D]` is contiguous.

    Then the input row joins the memory as one more block, and lanes and heads are one axis of the attention's matrix
    products without a copy. `reset` keeps the order in which its arguments are stored.
    """
    return memory.transpose(0, 1).contiguous().transpose(0, 1)


def attend(query: Tensor, key: Tensor, value: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """Multi-head dot-product attention: per head softmax(q kᵀ / √key_size) v, heads side by side.

    query `[R, B, heads * key_size]`, key and value `[S, B, ...]`; returns `[R, B, heads * head_size]` and the
    attention weights `[B * heads, R, S]`.
    """
    lanes = query.shape[1]
    q, k, v = (x.reshape(len(x), lanes * heads, -1).transpose(0, 1) for x in (query, key, value))
    scores = torch.bmm(q, k.transpose(1, 2)) * q.shape[-1] ** -0.5  # [B * heads, R, S]
    attention = scores.movedim(2, 0).softmax(0).movedim(0, 2)  # rows are short: vectorised across them
    return torch.bmm(attention, v).transpose(0, 1).reshape(len(query), lanes, -1), attention


def layer_norm(x: Tensor, affine: Affine) -> Tensor:
    """LayerNorm over the last axis."""
    return F.layer_norm(x, affine.weight.shape, *affine)


def mlp(x: Tensor, layers: tuple[Affine, ...]) -> Tensor:
    """Linear layers with ReLU between them, row by row."""
    for layer in layers[:-1]:
        x = F.relu(F.linear(x, *layer))
    return F.linear(x, *layers[-1])
