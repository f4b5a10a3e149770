"""Cores whose scans have several backends, and inputs for them."""

from typing import Any

import torch
from torch import Tensor

from helpers.cores import INPUT
from rmc_agents.cores import GRU, LSTM, RMC, RNN, Core, MinGRU, RelationalRNN


def case(core: Core, steps: int, lanes: int, resets: float = 0.3) -> tuple[Tensor, Tensor, Any, Any]:
    """Inputs, flags, a state that is not the initial one, and the initial state."""
    torch.manual_seed(1)
    inputs, should_reset = torch.randn(steps, lanes, INPUT), torch.rand(steps, lanes) < resets
    state = core.initial_state(lanes)
    state = type(state)(*(leaf + 0.5 * torch.randn_like(leaf) for leaf in state))
    return inputs, should_reset, state, core.initial_leaves()


CORES: dict[str, tuple[type[Core], dict[str, int]]] = {
    "lstm": (LSTM, {"hidden_size": 6}),
    "gru": (GRU, {"hidden_size": 6}),
    "mingru": (MinGRU, {"hidden_size": 6}),
    "mingru-one-layer": (MinGRU, {"hidden_size": 6, "num_layers": 1}),
    "rnn": (RNN, {"hidden_size": 6}),
    "rmc": (RMC, {"mem_slots": 3, "head_size": 4, "num_heads": 2}),
    "relational-rnn": (RelationalRNN, {"hidden_size": 6, "mem_slots": 3, "num_heads": 2, "head_size": 4}),
}
BACKENDS = {
    "reference": list(CORES),
    "fused": ["lstm", "gru", "mingru", "mingru-one-layer", "rnn", "rmc"],
    "triton": ["rmc"],
}
EVERY_SCAN = [(name, backend) for backend, names in BACKENDS.items() for name in names]
STEPS, LANES = 3, 3


def build(name: str) -> Core:
    """One of CORES, its weights always the same."""
    torch.manual_seed(0)
    kind, options = CORES[name]
    return kind(INPUT, **options)
