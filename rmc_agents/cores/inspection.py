"""A look inside a core: its gates and attention, recomputed for given inputs."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rmc_agents.kernels.operations import Product
from rmc_agents.types import State, map_leaves

from .base import Core


class Inspection(NamedTuple):
    """An unroll with its internals."""

    outputs: Tensor  # [T, B, H]
    gates: dict[str, Tensor]  # by name, each [T, B, ...] between 0 and 1; {} for a core without gates
    attention: Tensor | None  # [T, B, blocks, heads, N or 1, columns], see Core.attention_weights; None without
    before: State = ()  # the state before each step and before its reset, [T*B, ...]


@torch.no_grad()
def inspect(core: Core, inputs: Tensor, should_reset: Tensor, state: State) -> Inspection:
    """Unroll without gradient, with the gates and the attention that the core reports.

    The core takes the steps one by one. Gates and attention are then computed for all steps together, from the input
    and state of each.

    Raises:
      ValueError: as `core.step` does, and if gates or attention have the wrong shape.
    """
    states, outputs = [], []
    for inputs_t, should_reset_t in zip(inputs, should_reset, strict=True):
        states.append(state)
        output, state = core.step(inputs_t, should_reset_t, state)
        outputs.append(output)
    before = map_leaves(lambda *leaves: torch.cat(leaves), *states)  # [T*B, ...]
    arguments, shape = (inputs.flatten(0, 1), should_reset.flatten(), before), should_reset.shape
    gates = {name: gate.unflatten(0, shape) for name, gate in gates_of(core, *arguments).items()}
    attention = attention_of(core, *arguments)
    attention = None if attention is None else attention.unflatten(0, shape)
    return Inspection(torch.stack(outputs), gates, attention, before)


def gates_of(core: Core, inputs: Tensor, should_reset: Tensor, state: State) -> dict[str, Tensor]:
    """The core's `gate_values`. Raises ValueError unless they are tensors `[B, ...]` of floats by name."""
    gates: Any = core.gate_values(inputs, should_reset, state)
    for gate in gates.values() if isinstance(gates, dict) else [gates]:
        is_gate = isinstance(gate, Tensor) and gate.shape[:1] == inputs.shape[:1] and gate.is_floating_point()
        if not is_gate or not isinstance(gates, dict):
            got = f"{gate.dtype} {list(gate.shape)}" if isinstance(gate, Tensor) else type(gate).__name__
            expected = f"a dict of tensors [{len(inputs)}, ...] of floats"
            raise ValueError(f"{core.class_name()}.gate_values: expected {expected}, got {got}")
    return gates


def products_of(core: Core, steps: int, lanes: int) -> Sequence[Product] | None:
    """The core's `matrix_products`. Raises ValueError unless they are None or a sequence of `Product`."""
    products: Any = core.matrix_products(steps, lanes)
    if products is None or (isinstance(products, list | tuple) and all(isinstance(each, Product) for each in products)):
        return products
    raise ValueError(f"{core.class_name()}.matrix_products: expected None or a list of Product, got {products!r}")


def attention_of(core: Core, inputs: Tensor, should_reset: Tensor, state: State) -> Tensor | None:
    """The core's `attention_weights`. Raises ValueError unless they are None or have one of the two shapes."""
    weights: Any = core.attention_weights(inputs, should_reset, state)
    if weights is None:
        return None
    shape = list(weights.shape) if isinstance(weights, Tensor) else []
    if len(shape) != 5 or shape[0] != len(inputs) or not (shape[4] == shape[3] + 1 or is_window(*shape[3:])):
        raise ValueError(
            f"{core.class_name()}.attention_weights: expected [{len(inputs)}, blocks, heads, N, N+1], or 1 and M+1 at "
            f"the end, got {shape or type(weights).__name__}"
        )
    return weights


def attention_columns(rows: int, columns: int) -> list[str]:
    """What each column of `Core.attention_weights` is the weight of."""
    if is_window(rows, columns):
        return [f"{columns - 1 - i} back" for i in range(columns - 1)] + ["now"]
    return [f"slot {i + 1}" for i in range(rows)] + ["input"]


def is_window(rows: int, columns: int) -> bool:
    """Whether attention weights of this shape are those of a window of steps, not of slots."""
    return rows == 1 and columns > 2
