"""Cores, encoders and losses by name: built-in, registered in Python, or 'module:Name' on a command line."""

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from rmc_agents import plugins

Build = Callable[..., Any]


class NotRegistered(ValueError):
    """An unknown core, encoder or loss; the message suggests the nearest name and says how to register one."""


class Registry:
    """The builders of custom parts of one kind.

    Args:
      kind: core, encoder or loss.
      built_in: names that cannot be registered.
    """

    def __init__(self, kind: str, built_in: Collection[str]) -> None:
        self.kind, self.built_in = kind, built_in
        self.registered: dict[str, Build] = plugins.registered[kind]

    def register(self, name: str, build: Build) -> None:
        """Register a builder under a name, in place of an earlier one.

        Raises:
          ValueError: for a built-in name, or a `build` that is not a class or a function.
        """
        if not isinstance(name, str) or not name:
            raise ValueError(f"register_{self.kind}: expected a name, got {name!r}")
        if name in self.built_in:
            raise ValueError(f"register_{self.kind}: {name!r} is built-in; expected another name")
        if isinstance(build, nn.Module) or not callable(build):
            raise ValueError(f"register_{self.kind}: expected a class or a function, got {type(build).__name__}")
        self.registered[name] = build

    def find(self, name: str) -> Build:
        """The registered builder, or the 'module:Name' of a module that the user named on the command line.

        Raises:
          NotRegistered: if there is none; the message suggests the nearest name.
        """
        if (build := self.registered.get(name) or plugins.find(name)) is not None:
            return build
        if ":" in name:
            module, _, attribute = name.partition(":")
            raise NotRegistered(
                f"{self.kind}: {name!r} is not registered: {plugins.remedy(name)}; in Python, import {module} and call "
                f"rmc.register_{self.kind}({name!r}, {module}.{attribute}) first"
            )
        known = [*self.built_in, *self.registered]
        hint = plugins.suggestion(name, known, f"expected one of {', '.join(known)}.")
        raise NotRegistered(
            f"{self.kind}: there is no {self.kind} {name!r}; {hint} Register your own first, by "
            f"rmc.register_{self.kind}({name!r}, build); on the command line, {plugins.remedy(name)}"
        )

    def check_arguments(self, name: str, build: Build, first: object, arguments: Mapping[str, Any]) -> None:
        """Raises ValueError unless `build` can be called with `first` and the keyword arguments."""
        if getattr(build, "__init__", None) is nn.Module.__init__:  # its signature takes anything, its code nothing
            raise ValueError(f"{self.kind}_args: {name}: expected an __init__ of its own, got torch.nn.Module's")
        signature = inspect.signature(build)
        try:
            signature.bind_partial(first)
        except TypeError:
            first_name = "input_size" if self.kind == "core" else "spec"
            raise ValueError(f"{self.kind}: {name} has to take {first_name} as its first argument") from None
        try:
            signature.bind(first, **arguments)
        except TypeError as error:
            taken = ", ".join([*signature.parameters][1:]) or "none"
            raise ValueError(f"{self.kind}_args: {name}: {error}; its arguments: {taken}") from None


def check_module(kind: str, module: nn.Module) -> None:
    """Raises ValueError for a core or encoder that cannot be used yet."""
    name = type(module).__name__
    if "_parameters" not in vars(module):
        raise ValueError(f"{kind}: {name}.__init__ has to call super().__init__ first")
    if any(is_lazy(each) for each in module.parameters()):
        raise ValueError(f"{kind}: expected initialised parameters, got lazy ones in {name}; call it once")
