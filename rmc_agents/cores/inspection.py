"""A look inside a core: its gates and attention, recomputed for given inputs."""

from typing import NamedTuple

import torch
from torch import Tensor

from rmc_agents.cores.base import Core
from rmc_agents.types import State, map_leaves


class Inspection(NamedTuple):
    """An unroll with its internals."""

    outputs: Tensor  # [T, B, H]
    gates: dict[str, Tensor]  # by name, each [T, B, ...] between 0 and 1; {} for a core without gates
    attention: Tensor | None  # [T, B, blocks, heads, N, N+1], see Core.attention_weights; None without attention


@torch.no_grad()
def inspect(core: Core, inputs: Tensor, should_reset: Tensor, state: State) -> Inspection:
    """Unroll without gradient, with the gates and the attention that the core reports.

    The core takes the steps one by one. Gates and attention are then computed for all steps together, from the input
    and state of each.

    Raises:
      ValueError: as `core.step` does.
    """
    states, outputs = [], []
    for inputs_t, should_reset_t in zip(inputs, should_reset, strict=True):
        states.append(state)
        output, state = core.step(inputs_t, should_reset_t, state)
        outputs.append(output)
    before = map_leaves(lambda *leaves: torch.cat(leaves), *states)  # [T*B, ...]
    arguments, shape = (inputs.flatten(0, 1), should_reset.flatten(), before), should_reset.shape
    gates = {name: gate.unflatten(0, shape) for name, gate in core.gate_values(*arguments).items()}
    attention = core.attention_weights(*arguments)
    return Inspection(torch.stack(outputs), gates, None if attention is None else attention.unflatten(0, shape))
