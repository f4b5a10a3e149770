"""The recurrent cores."""

from .adapter import as_core
from .base import Core
from .feedforward import Feedforward
from .gru import GRU
from .lstm import LSTM
from .mingru import MinGRU
from .registry import make_core, register_core, settings_unused
from .relational_rnn import RelationalRNN
from .rmc import RMC
from .rnn import RNN

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
