"""The recurrent cores."""

from .adapter import as_core
from .base import Core
from .feedforward import Feedforward
from .gru import GRU
from .lstm import LSTM
from .mingru import MinGRU
from .registry import built_in_name, make_core, register_core, settings_unused
from .relational_rnn import RelationalRNN
from .rmc import RMC
from .rnn import RNN
from .transformer import Transformer

__all__ = [
    "GRU",
    "LSTM",
    "RMC",
    "RNN",
    "Core",
    "Feedforward",
    "MinGRU",
    "RelationalRNN",
    "Transformer",
    "as_core",
    "built_in_name",
    "make_core",
    "register_core",
    "settings_unused",
]
