"""The recurrent cores, and the one place where a name becomes one of them."""

import difflib
from collections.abc import Callable
from typing import Any

from rmc_agents.config import CoreConfig
from rmc_agents.cores.base import Core
from rmc_agents.cores.feedforward import Feedforward
from rmc_agents.cores.gru import GRU
from rmc_agents.cores.lstm import LSTM
from rmc_agents.cores.relational_rnn import RelationalRNN
from rmc_agents.cores.rmc import RMC
from rmc_agents.cores.rnn import RNN

__all__ = [
    "GRU",
    "LSTM",
    "RMC",
    "RNN",
    "Core",
    "Feedforward",
    "RelationalRNN",
    "make_core",
    "settings_used",
]


def make_core(config: CoreConfig, input_size: int) -> Core:
    """The core that `config.core` names, for inputs `[..., input_size]`.

    Raises:
      ValueError: for an unknown name (with the nearest that exists) or a senseless size.
    """
    return _find(config.core)(config, input_size)


def settings_used(core: str) -> set[str]:
    """Names of the settings in `CoreConfig` that the core of that name is made from.

    Raises:
      ValueError: for an unknown name.
    """
    defaults, read = CoreConfig(core=core), set()

    class Watched:
        def __getattr__(self, name: str) -> Any:
            read.add(name)
            return getattr(defaults, name)

    _find(core)(Watched(), 1)  # type: ignore[arg-type]
    return read


def _find(name: str) -> Callable[[CoreConfig, int], Core]:
    try:
        return _BUILDERS[name]
    except KeyError:
        near = difflib.get_close_matches(str(name), _BUILDERS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(_BUILDERS)}"
        raise ValueError(f"core: there is no core {name!r}; {hint}") from None


def _rmc(config: CoreConfig, input_size: int) -> Core:
    return RMC(
        input_size,
        mem_slots=config.mem_slots,
        head_size=config.head_size,
        num_heads=config.num_heads,
        num_blocks=config.num_blocks,
        key_size=config.key_size,
        gate_style=config.gate_style,
        attention_mlp_layers=config.attention_mlp_layers,
        forget_bias=config.forget_bias,
        input_bias=config.input_bias,
        slot_embedding=config.slot_embedding,
    )


def _relational_rnn(config: CoreConfig, input_size: int) -> Core:
    return RelationalRNN(
        input_size,
        hidden_size=config.hidden_size,
        mem_slots=config.mem_slots,
        num_heads=config.num_heads,
        head_size=config.head_size,
        forget_bias=config.forget_bias,
    )


_BUILDERS: dict[str, Callable[[CoreConfig, int], Core]] = {
    "rmc": _rmc,
    "lstm": lambda c, input_size: LSTM(input_size, hidden_size=c.hidden_size, forget_bias=c.forget_bias),
    "gru": lambda c, input_size: GRU(input_size, hidden_size=c.hidden_size, update_bias=c.update_bias),
    "rnn": lambda c, input_size: RNN(input_size, hidden_size=c.hidden_size),
    "relational-rnn": _relational_rnn,
    "none": lambda c, input_size: Feedforward(input_size),
}
