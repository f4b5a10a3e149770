"""A package that can be called like a function."""

import importlib
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any


class CallablePackage(ModuleType):
    """A package that can be called like the function of the same name in one of its modules.

    `rmc_agents.train` is a package, and `rmc_agents.train(...)` trains: the name has to be both, regardless of import
    order. `FUNCTION` in the package names the module that has the function. It is imported at the first call.
    """

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._find()(*args, **options)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self._find())

    def _find(self) -> Callable[..., Any]:
        module = importlib.import_module(f"{self.__name__}.{self.FUNCTION}")
        function: Callable[..., Any] = getattr(module, self.__name__.rpartition(".")[2])
        return function
