"""From names to cores, built-in or registered."""

import difflib
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from rmc_agents import plugins
from rmc_agents.config import CoreConfig
from rmc_agents.cores.adapter import as_core
from rmc_agents.cores.base import Core
from rmc_agents.cores.feedforward import Feedforward
from rmc_agents.cores.gru import GRU
from rmc_agents.cores.lstm import LSTM
from rmc_agents.cores.mingru import MinGRU
from rmc_agents.cores.relational_rnn import RelationalRNN
from rmc_agents.cores.rmc import RMC
from rmc_agents.cores.rnn import RNN
from rmc_agents.types import NotRegistered


def register_core(name: str, build: Callable[..., nn.Module]) -> None:
    """Register a custom core under a name, for `--core NAME` and `CoreConfig(core=NAME)`.

    Args:
      name: the core's name; registering it again replaces the builder.
      build: a class or a function; `build(input_size, **core_args)` returns a `Core`, or a module with the methods
        `initial_state`, `step` and `unroll`.

    Raises:
      ValueError: for the name of a built-in core, or a builder that is not callable.
    """
    if not isinstance(name, str) or not name:
        raise ValueError(f"register_core: expected a name, got {name!r}")
    if name in _BUILT_IN:
        raise ValueError(f"register_core: {name!r} is a core of this package; expected another name")
    if not callable(build):
        raise ValueError(f"register_core: expected a class or a function of the input size, got {type(build).__name__}")
    _registered[name] = build


def make_core(config: CoreConfig, input_size: int) -> Core:
    """The core that `config.core` names, for inputs `[..., input_size]`.

    Raises:
      NotRegistered: for an unknown name; the message suggests the nearest and how to register one.
      ValueError: for arguments that the core does not take, or an invalid size.
    """
    if config.core in _BUILT_IN and config.core_args:
        raise ValueError(config.unused_core_args())
    return _find(config.core)(config, input_size)


def settings_used(core: str) -> set[str]:
    """The settings of `CoreConfig` that the core of that name uses.

    Raises:
      NotRegistered: for an unknown name.
    """
    _find(core)
    return _settings_of(_BUILT_IN[core]) if core in _BUILT_IN else {"core_args"}


def _settings_of(kind: Callable[..., Core]) -> set[str]:
    return {*inspect.signature(kind).parameters} - {"input_size"}


def _find(name: str) -> Callable[[CoreConfig, int], Core]:
    if name in _BUILT_IN:
        return partial(_make_built_in, _BUILT_IN[name])
    if (build := _own(name)) is not None:
        return lambda config, input_size: _build(name, build, config.core_args, input_size)
    if ":" in name:
        raise NotRegistered(
            f"core: {name!r} is not registered: {plugins.remedy(name)}, or in Python call "
            f"rmc.register_core({name!r}, build) first"
        )
    known = [*_BUILT_IN, *_registered]
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(known)}."
    raise NotRegistered(
        f"core: there is no core {name!r}; {hint} Register your own first, by "
        f"rmc.register_core({name!r}, build); on the command line, {plugins.remedy(name)}"
    )


def _make_built_in(kind: Callable[..., Core], config: CoreConfig, input_size: int) -> Core:
    return kind(input_size, **{name: getattr(config, name) for name in _settings_of(kind)})


def _own(name: str) -> Callable[..., nn.Module] | None:
    """The builder registered under that name, or the 'module:Class' that the user named on the command line."""
    return _registered[name] if name in _registered else plugins.find(name)


def _build(name: str, build: Callable[..., nn.Module], arguments: dict[str, Any], input_size: int) -> Core:
    try:
        inspect.signature(build).bind(input_size, **arguments)
    except TypeError as error:
        raise ValueError(f"core_args: {name}: {error}") from None
    if inspect.isabstract(build):
        lacking = sorted(build.__abstractmethods__)  # type: ignore[attr-defined]
        raise ValueError(f"core: {name} lacks {', '.join(lacking)}, which a Core has to define")
    return as_core(build(input_size, **arguments), input_size)


_BUILT_IN: dict[str, type[Core]] = {
    "rmc": RMC,
    "lstm": LSTM,
    "gru": GRU,
    "mingru": MinGRU,
    "rnn": RNN,
    "relational-rnn": RelationalRNN,
    "none": Feedforward,
}
"""Built-in cores. Their arguments, except the input size, are the settings of the same names in `CoreConfig`."""
_registered: dict[str, Callable[..., nn.Module]] = {}
