"""From names to cores, built-in or registered."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from torch import nn

from rmc_agents.config import Config, CoreConfig
from rmc_agents.registry import Registry

from .adapter import as_core, check_class
from .base import Core
from .feedforward import Feedforward
from .gru import GRU
from .lstm import LSTM
from .mingru import MinGRU
from .relational_rnn import RelationalRNN
from .rmc import RMC
from .rnn import RNN
from .transformer import Transformer


def register_core(name: str, build: Callable[..., nn.Module]) -> None:
    """Register a custom core under a name, for `--core NAME` and the setting `core`.

    Args:
      name: the core's name; registering it again replaces the builder.
      build: a class or a function; `build(input_size, **core_args)` returns a `Core`, or a module with the methods
        `initial_state`, `step` and `unroll`.

    Raises:
      ValueError: for the name of a built-in core, or a builder that is not callable.
    """
    _registry.register(name, build)


def make_core(config: CoreConfig, input_size: int) -> Core:
    """The core that `config.core` names, for inputs `[..., input_size]`.

    Raises:
      NotRegistered: for an unknown name; the message suggests the nearest and how to register one.
      ValueError: for arguments that the core does not take, an invalid size, or a class that is no core.
    """
    if (kind := _BUILT_IN.get(config.core)) is not None:
        if config.core_args:
            raise ValueError(config.core_args_error())
        return kind(input_size, **{name: getattr(config, name) for name in _settings_of(kind)})
    return build_core(_registry.find(config.core), config.core, input_size, config.core_args)


def build_core(build: Callable[..., nn.Module], name: str, input_size: int, arguments: Mapping[str, Any]) -> Core:
    """Call a custom core's builder. Raises ValueError if it does not take these arguments, or makes no core."""
    check_class(build, name)
    _registry.check_arguments(name, build, input_size, arguments)
    if inspect.isabstract(build):
        lacking = sorted(build.__abstractmethods__)  # type: ignore[attr-defined]
        raise ValueError(f"core: {name} lacks {', '.join(lacking)}, which a Core has to define")
    return as_core(build(input_size, **arguments), input_size)


def settings_unused(config: Config) -> set[str]:
    """Names of the settings that have no effect, because the core, the algorithm or the optimizer does not use them."""
    core = config.settled().core.core
    used = _settings_of(_BUILT_IN[core]) if core in _BUILT_IN else {"core_args"}
    return {each.name for each in fields(CoreConfig)} - used - {"core"} | config.unused()


def built_in_name(core: object) -> str | None:
    """The name of a built-in core, from its class, torch.nn's of that name, or an instance; None for anything else."""
    kind = core if isinstance(core, type) else type(core)
    twin = kind.__name__ if kind.__module__.startswith("torch.nn.") else None
    return next((name for name, own in _BUILT_IN.items() if own is kind or own.__name__ == twin), None)


def _settings_of(kind: Callable[..., Core]) -> set[str]:
    return {*inspect.signature(kind).parameters} - {"input_size"}


_BUILT_IN: dict[str, type[Core]] = {
    "rmc": RMC,
    "lstm": LSTM,
    "gru": GRU,
    "mingru": MinGRU,
    "rnn": RNN,
    "relational-rnn": RelationalRNN,
    "transformer": Transformer,
    "none": Feedforward,
}
"""Built-in cores. Their arguments, except the input size, are the settings of the same names in `CoreConfig`."""
_registry = Registry("core", _BUILT_IN)
