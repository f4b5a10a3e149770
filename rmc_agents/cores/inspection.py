"""What a core does inside: its gates and its attention, recomputed for steps it has taken or could take."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from rmc_agents.cores.base import Core
from rmc_agents.cores.gru import GRU
from rmc_agents.cores.lstm import LSTM
from rmc_agents.cores.rmc import RMC
from rmc_agents.kernels import reference
from rmc_agents.kernels.weights import RMCState
from rmc_agents.types import State


class Inspection(NamedTuple):
    """An unroll seen from inside."""

    outputs: Tensor  # [T, B, H]
    gates: dict[str, Tensor]  # by name, each [T, B, ...] between 0 and 1; {} for a core without gates
    attention: Tensor | None  # [T, B, num_blocks, num_heads, N, N+1], as of RMC.attention; None for other cores


@torch.no_grad()
def inspect(core: Core, inputs: Tensor, should_reset: Tensor, state: State) -> Inspection:
    """The unroll of the same arguments, with its gates (lstm, gru, rmc) and its attention (rmc); without gradient.

    Steps are taken by the core itself. Gates and attention follow, for all steps at once, from the input and the state
    before each, by the functions that the specification, `kernels.reference`, is made of.

    Raises:
      ValueError: as `core.step` does.
    """
    states, outputs = [], []
    for inputs_t, should_reset_t in zip(inputs, should_reset, strict=True):
        states.append(state)
        output, state = core.step(inputs_t, should_reset_t, state)
        outputs.append(output)
    state = type(state)(*(torch.cat(leaves) for leaves in zip(*states, strict=True)))  # [T*B, ...]
    arguments = inputs.flatten(0, 1), should_reset.flatten(), state
    shape = should_reset.shape
    gates = {name: gate.unflatten(0, shape) for name, gate in _gates(core, *arguments).items()}
    attention = core.attention(*arguments).unflatten(0, shape) if isinstance(core, RMC) else None
    return Inspection(torch.stack(outputs), gates, attention)


def _gates(core: Core, inputs: Tensor, should_reset: Tensor, state: Any) -> dict[str, Tensor]:
    """The gates, each `[B, ...]`, of a single step's arguments."""
    initial_state = core.initial_leaves()
    if isinstance(core, LSTM):
        weights = core.weights()
        hidden = reference.reset(should_reset, initial_state, state).hidden
        return reference.lstm_gates(functional.linear(inputs, *weights.input), hidden, weights.hidden)[0]._asdict()
    if isinstance(core, GRU):
        weights = core.weights()
        hidden = reference.reset(should_reset, initial_state, state).hidden
        from_inputs = functional.linear(inputs, *weights.input)  # [B, 3H]: r, z, n
        from_hidden = functional.linear(hidden, weights.hidden, weights.hidden_bias)
        gates = 2 * core.output_size
        return reference.gru_gates(from_inputs[:, :gates], from_hidden[:, :gates])._asdict()
    if isinstance(core, RMC):
        return _rmc_gates(core, inputs, should_reset, state)
    return {}


def _rmc_gates(core: RMC, inputs: Tensor, should_reset: Tensor, state: RMCState) -> dict[str, Tensor]:
    weights = core.weights()
    if weights.gates is None:
        return {}
    slots_first = [RMCState(leaf.transpose(0, 1)) for leaf in (core.initial_leaves().memory, state.memory)]
    memory = reference.reset(should_reset, *slots_first).memory  # [N, B, D]
    *_, from_inputs = reference.rmc_inputs(inputs.unsqueeze(0), weights)
    memory = reference.rmc_embedded(memory, weights)
    gates = reference.rmc_gates(from_inputs.squeeze(0), memory, weights.gates[1].weight, weights.coupled)
    return {name: gate.transpose(0, 1) for name, gate in gates._asdict().items()}  # [B, N, D or 1]
