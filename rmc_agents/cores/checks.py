"""Checks of a core's arguments, and of what the methods of a custom core return."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rmc_agents.kernels.modes import autocasts, tracing
from rmc_agents.types import State


def check_leaves(core: object, leaves: Any) -> State:
    """Check the result of `initial_leaves`. Raises ValueError unless it is the state of one lane."""
    if tracing():  # sizes are tensors then
        return leaves
    if not isinstance(leaves, tuple) or not all(isinstance(x, Tensor) and x.dim() and len(x) == 1 for x in leaves):
        raise ValueError(
            f"{type(core).__name__}.initial_leaves: expected a tuple of tensors [1, ...], got {_described(leaves)}"
        )
    return leaves


def check_result(core: object, method: str, result: Any, shape: Sequence[int], initial: State) -> tuple[Tensor, State]:
    """Check what `cell`, `step` or `unroll` returns.

    Args:
      core: the custom core.
      method: the method's name.
      result: what it returned.
      shape: of the output, `[B, output_size]` or `[T, B, output_size]`.
      initial: the initial state, with any number of lanes.

    Raises:
      ValueError: unless it is an output of that shape and a state of B lanes, like the initial one.
    """
    if tracing():
        return result
    name = f"{type(core).__name__}.{method}"
    is_pair = isinstance(result, tuple | list) and len(result) == 2 and isinstance(result[0], Tensor)
    if not is_pair or _shapes(result[1]) != [(shape[-2], *leaf.shape[1:]) for leaf in initial]:
        raise ValueError(
            f"{name}: expected an output and the next state, {_described(initial)} with {shape[-2]} lanes, got "
            f"{_described(result)}"
        )
    output, state = result
    if output.shape != tuple(shape):
        axes = "[T, B, output_size]" if len(shape) == 3 else "[B, output_size]"
        raise ValueError(f"{name}: expected an output {list(shape)} {axes}, got {list(output.shape)}")
    is_free = autocasts(output.device.type)  # a module that is not a Core then computes in bfloat16
    if not is_free and [leaf.dtype for leaf in state] != [leaf.dtype for leaf in initial]:
        expected, got = ([str(leaf.dtype) for leaf in leaves] for leaves in (initial, state))
        raise ValueError(f"{name}: expected a next state of {expected}, got one of {got}")
    return output, state


def _shapes(state: Any) -> list[Any]:
    """The leaves' shapes; for anything but a state, a value that differs from those of all states."""
    if not isinstance(state, tuple):
        return [None]
    return [tuple(leaf.shape) if isinstance(leaf, Tensor) else None for leaf in state]


def _described(value: Any) -> str:
    """A description of a value: the types of its parts, and the shapes of tensors."""
    if isinstance(value, Tensor):
        return f"a tensor {list(value.shape)}"
    if isinstance(value, tuple | list):
        parts = ", ".join(map(_described, value))
        return f"a list [{parts}]" if isinstance(value, list) else f"({parts})"
    return type(value).__name__


def checked_lengths(lengths: Tensor | Sequence[int], steps: int, batch_size: int) -> Tensor:
    """The lengths `[B]` as a tensor. Raises ValueError for anything else."""
    ends = torch.as_tensor(lengths)
    is_integer = not (ends.is_floating_point() or ends.is_complex() or ends.dtype == torch.bool)
    if not is_integer or ends.shape != (batch_size,) or int(ends.min()) < 1 or int(ends.max()) > steps:
        raise ValueError(f"lengths: expected {batch_size} integers from 1 to {steps}, got {ends.tolist()}")
    return ends


def check_sizes(**sizes: int) -> None:
    """Raises ValueError unless every size is a positive integer."""
    if torch.jit.is_tracing():
        return  # sizes read from shapes are tensors then
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1:
            raise ValueError(f"{name}: expected a positive integer, got {size!r}")
