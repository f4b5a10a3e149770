"""Checks of a core's arguments, and of what the methods of a custom core return."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rmc_agents.kernels.modes import autocasts, tracing
from rmc_agents.types import State, map_leaves


def check_inputs(inputs: Tensor, input_size: int, axes: tuple[str, ...]) -> None:
    """Raises ValueError unless the inputs are floating-point numbers `[*axes, input_size]`."""
    if not isinstance(inputs, Tensor):
        raise ValueError(f"inputs: expected a tensor, got {type(inputs).__name__}")
    if inputs.dim() != len(axes) + 1 or inputs.shape[-1] != input_size or 0 in inputs.shape:
        expected = f"[{', '.join([*axes, str(input_size)])}]{', none of them 0' if 0 in inputs.shape else ''}"
        raise ValueError(f"inputs: expected {expected}, got {list(inputs.shape)}")
    if not inputs.is_floating_point():
        raise ValueError(f"inputs: expected floating-point numbers, got {inputs.dtype}")


def check_resets(inputs: Tensor, should_reset: Tensor, axes: tuple[str, ...]) -> None:
    """Raises ValueError unless there is one bool for each input; `axes` are the inputs', without their width."""
    if not isinstance(should_reset, Tensor) or should_reset.dtype != torch.bool:
        got = getattr(should_reset, "dtype", type(should_reset).__name__)
        raise ValueError(f"should_reset: expected a tensor of torch.bool, got {got}")
    if should_reset.shape != inputs.shape[:-1]:
        raise ValueError(
            f"should_reset: expected {list(inputs.shape[:-1])} [{', '.join(axes)}], as of inputs, "
            f"got {list(should_reset.shape)}"
        )


def check_state(state: State, initial: State, batch_size: int, name: str = "state") -> None:
    """Raises ValueError unless the state is like the initial one of one lane, with `batch_size` lanes."""
    if type(state) is not type(initial) or len(state) != len(initial):
        expected = f"{type(initial).__name__} of {len(initial)}" if initial else "()"
        got = repr(state) if state is None or state == () else type(state).__name__
        got += f" of {len(state)}" if isinstance(state, tuple | list) and state else ""
        source = ", as initial_state gives it" if name == "state" else ""
        raise ValueError(f"{name}: expected {expected}{source}, got {got}")
    fields = getattr(initial, "_fields", range(len(initial)))
    for field, leaf, one in zip(fields, state, initial, strict=True):
        if not isinstance(leaf, Tensor) or not _is_like(leaf.dtype, one.dtype):
            kind = leaf.dtype if isinstance(leaf, Tensor) else type(leaf).__name__
            raise ValueError(f"{name}.{field}: expected a tensor of {one.dtype}, got {kind}")
        shape = [batch_size, *one.shape[1:]]
        if list(leaf.shape) != shape:
            raise ValueError(f"{name}.{field}: expected {shape}, got {list(leaf.shape)}")


def check_devices(device: torch.device, inputs: Tensor, should_reset: Tensor, state: State) -> None:
    """Raises ValueError unless all are on the core's device."""
    for name, x in (("inputs", inputs), ("should_reset", should_reset), *(("state", leaf) for leaf in state)):
        if x.device != device:
            raise ValueError(f"{name}: expected a tensor on {device}, as the core, got one on {x.device}")


def _is_like(dtype: torch.dtype, other: torch.dtype) -> bool:
    """Whether they are equal up to the precision of real or complex numbers."""
    kind, of_other = ((each.is_floating_point, each.is_complex) for each in (dtype, other))
    return dtype == other or (kind == of_other and any(kind))


def check_leaves(core: object, leaves: Any) -> State:
    """Check the result of `initial_leaves`. Raises ValueError unless it is the state of one lane."""
    if tracing():  # sizes are tensors then
        return leaves
    if not isinstance(leaves, tuple) or not all(isinstance(x, Tensor) and x.dim() and len(x) == 1 for x in leaves):
        raise ValueError(
            f"{type(core).__name__}.initial_leaves: expected a tuple of tensors [1, ...], got {described(leaves)}"
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

    Returns:
      The output, and the state in the initial state's type.

    Raises:
      ValueError: unless it is an output of that shape and a state of B lanes, like the initial one.
    """
    if not tracing():
        _check_result(f"{type(core).__name__}.{method}", result, shape, initial)
    output, state = result
    return output, map_leaves(lambda _, leaf: leaf, initial, state)


def _check_result(name: str, result: Any, shape: Sequence[int], initial: State) -> None:
    is_pair = isinstance(result, tuple | list) and len(result) == 2 and isinstance(result[0], Tensor)
    if not is_pair or _shapes(result[1]) != [(shape[-2], *leaf.shape[1:]) for leaf in initial]:
        raise ValueError(
            f"{name}: expected an output and the next state, {described(initial)} with {shape[-2]} lanes, got "
            f"{described(result)}"
        )
    output, state = result
    if output.shape != tuple(shape):
        axes = "[T, B, output_size]" if len(shape) == 3 else "[B, output_size]"
        raise ValueError(f"{name}: expected an output {list(shape)} {axes}, got {list(output.shape)}")
    is_free = autocasts(output.device.type)  # a module that is not a Core then computes in bfloat16
    if not is_free and [leaf.dtype for leaf in state] != [leaf.dtype for leaf in initial]:
        expected, got = ([str(leaf.dtype) for leaf in leaves] for leaves in (initial, state))
        raise ValueError(f"{name}: expected a next state of {expected}, got one of {got}")
    wanted = initial[0].device if initial else output.device
    if wrong := [str(each.device) for each in (output, *state) if each.device != wanted]:
        raise ValueError(f"{name}: expected an output and a next state on {wanted}, got one on {wrong[0]}")


def _shapes(state: Any) -> list[Any]:
    """The leaves' shapes; for anything but a state, a value that differs from those of all states."""
    if not isinstance(state, tuple):
        return [None]
    return [tuple(leaf.shape) if isinstance(leaf, Tensor) else None for leaf in state]


def described(value: Any) -> str:
    """A description of a value: the types of its parts, and the shapes of tensors."""
    if isinstance(value, Tensor):
        return f"a tensor {list(value.shape)}"
    if isinstance(value, tuple | list):
        parts = ", ".join(map(described, value))
        return f"a list [{parts}]" if isinstance(value, list) else f"({parts})"
    return type(value).__name__


def checked_lengths(lengths: Tensor | Sequence[int], steps: int, batch_size: int) -> Tensor:
    """The lengths `[B]` as a tensor. Raises ValueError for anything else."""
    expected = f"lengths: expected {batch_size} integers from 1 to {steps}"
    try:
        ends = torch.as_tensor(lengths)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"{expected}, got {lengths!r}") from None
    is_integer = not (ends.is_floating_point() or ends.is_complex() or ends.dtype == torch.bool)
    ends = ends.long() if is_integer else ends  # uint16 has no min
    if not is_integer or ends.shape != (batch_size,) or int(ends.min()) < 1 or int(ends.max()) > steps:
        raise ValueError(f"{expected}, got {ends.tolist()}")
    return ends


def check_sizes(**sizes: int) -> None:
    """Raises ValueError unless every size is a positive integer."""
    if torch.jit.is_tracing():
        return  # sizes read from shapes are tensors then
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int | np.integer | torch.SymInt) or size < 1:
            raise ValueError(f"{name}: expected a positive integer, got {size!r}")
