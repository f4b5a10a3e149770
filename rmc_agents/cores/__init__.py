"""The recurrent cores."""

from rmc_agents.cores.adapter import as_core
from rmc_agents.cores.base import Core
from rmc_agents.cores.feedforward import Feedforward
from rmc_agents.cores.gru import GRU
from rmc_agents.cores.lstm import LSTM
from rmc_agents.cores.mingru import MinGRU
from rmc_agents.cores.registry import make_core, register_core, settings_unused
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
    "MinGRU",
    "RelationalRNN",
    "as_core",
    "make_core",
    "register_core",
    "settings_unused",
]
