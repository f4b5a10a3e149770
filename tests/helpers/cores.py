"""Every core, in every variant of its settings, with sizes that are neither equal nor powers of two."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from rmc_agents.cores import GRU, LSTM, RMC, RNN, Core, Feedforward, MinGRU, RelationalRNN, Transformer
from rmc_agents.types import State, map_leaves

INPUT = 5
STEPS, LANES = 7, 3
PLAIN = {"mem_slots": 3, "head_size": 4, "num_heads": 2}
RMC_OPTIONS: dict[str, dict[str, Any]] = {
    "plain": PLAIN,
    "memory-gates": PLAIN | {"gate_style": "memory"},
    "coupled-gates": PLAIN | {"gate_style": "coupled", "forget_bias": 0.5},
    "coupled-slot-embedding": PLAIN | {"slot_embedding": True, "gate_style": "coupled"},
    "no-gates": PLAIN | {"gate_style": "none"},
    "slot-embedding": PLAIN | {"slot_embedding": True},
    "memory-slot-embedding": PLAIN | {"slot_embedding": True, "gate_style": "memory"},
    "two-blocks": PLAIN | {"num_blocks": 2},
    "three-blocks": {"mem_slots": 2, "head_size": 3, "num_heads": 2, "num_blocks": 3, "gate_style": "memory"},
    "wide-keys": PLAIN | {"key_size": 6},
    "narrow-keys": {"mem_slots": 3, "head_size": 5, "num_heads": 3, "key_size": 1, "num_blocks": 2},
    "one-slot": {"mem_slots": 1, "head_size": 4, "num_heads": 1},
    "one-head": {"mem_slots": 2, "head_size": 7, "num_heads": 1},
    "cut-identity": {"mem_slots": 5, "head_size": 1, "num_heads": 3},
    "mlp-1": PLAIN | {"attention_mlp_layers": 1},
    "mlp-3": PLAIN | {"attention_mlp_layers": 3},
    "biases": PLAIN | {"forget_bias": -0.5, "input_bias": 0.7},
}
CORES: dict[str, tuple[type[Core], dict[str, Any]]] = {
    **{f"rmc-{name}": (RMC, options) for name, options in RMC_OPTIONS.items()},
    "lstm": (LSTM, {"hidden_size": 6}),
    "gru": (GRU, {"hidden_size": 6}),
    "mingru": (MinGRU, {"hidden_size": 6}),
    "mingru-as-wide": (MinGRU, {"hidden_size": INPUT, "num_layers": 1}),
    "mingru-three-layers": (MinGRU, {"hidden_size": 4, "num_layers": 3, "forget_bias": -0.5}),
    "rnn": (RNN, {"hidden_size": 6}),
    "relational-rnn": (RelationalRNN, PLAIN | {"hidden_size": 6}),
    "relational-rnn-one-slot": (RelationalRNN, {"hidden_size": 5, "mem_slots": 1, "num_heads": 1, "head_size": 3}),
    "transformer": (Transformer, {"num_layers": 2, "num_heads": 2, "head_size": 3, "memory_length": 4}),
    "transformer-long": (Transformer, {"num_layers": 1, "num_heads": 1, "head_size": 5, "memory_length": 9}),
    "none": (Feedforward, {}),
}


def build(name: str) -> Core:
    """A core in float64 with all weights redrawn, so that no bias is 0 and no gain is 1."""
    torch.manual_seed(0)
    kind, options = CORES[name]
    core = kind(INPUT, **options).double()
    with torch.no_grad():
        for parameter in core.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return core


def random_state(core: Core, lanes: int = LANES) -> State:
    state = core.initial_state(lanes)
    return map_leaves(lambda leaf: leaf + 0.5 * torch.randn_like(leaf), state)


def random_inputs(steps: int = STEPS, lanes: int = LANES, seed: int = 1) -> Tensor:
    torch.manual_seed(seed)
    return torch.randn(steps, lanes, INPUT, dtype=torch.float64)


def flags(*at: tuple[int, int], steps: int = STEPS, lanes: int = LANES) -> Tensor:
    """should_reset `[T, B]`, set at the given (step, lane)."""
    should_reset = torch.zeros(steps, lanes, dtype=torch.bool)
    for step, lane in at:
        should_reset[step, lane] = True
    return should_reset


def same(a: Iterable[Tensor], b: Iterable[Tensor]) -> bool:
    """Whether they are bitwise equal."""
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
