"""Modules that are not a `Core`, wrapped as one."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rmc_agents.kernels.operations import Product
from rmc_agents.registry import check_module
from rmc_agents.types import State, map_leaves

from .base import Core
from .checks import check_result, described
from .contract import check_core

METHODS = ("initial_state", "step", "unroll")


class AdaptedCore(Core):
    """Wraps a module that has the methods `initial_state`, `step` and `unroll` of a `Core`.

    The optional methods of a core (`gate_values`, `attention_weights`, `matrix_products`) are called on the module if
    it has them. The output width is its `output_size`, or else the width of a step's output. `step` and `unroll` get
    copies of states, which they may change in place.

    Args:
      module: its state is a tuple of tensors, and all lanes start with the same state.
      input_size: width of the inputs.

    Raises:
      ValueError: if one of the three methods is missing, or a state or output is not valid for a core.
    """

    module: Any  # nn.Module, with the three methods

    def __init__(self, module: nn.Module, input_size: int) -> None:
        if missing := missing_methods(module):
            raise not_a_core(type(module).__name__, missing)
        super().__init__(input_size, _output_size(module, input_size))
        self.module = module
        if (parameter := next(module.parameters(), None)) is not None:
            self._like = self._like.to(parameter.device)
        self.default_gain = getattr(module, "default_gain", Core.default_gain)  # type: ignore[misc]  # of this one

    def class_name(self) -> str:
        return type(self.module).__name__

    def initial_leaves(self) -> State:
        """The module's initial state for one lane."""
        return self.initial_state(1)

    def initial_state(self, batch_size: int) -> State:
        """See `Core.initial_state`; copied, because the leaves may be views of a parameter."""
        return map_leaves(torch.clone, self.module.initial_state(batch_size))

    def cell(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """The module's step without a reset."""
        never = torch.zeros(x.shape[0], dtype=torch.bool, device=x.device)
        output, state = self.module.step(x, never, state)
        return output, state

    def step(self, inputs: Tensor, should_reset: Tensor, state: State) -> tuple[Tensor, State]:
        self._check(inputs, should_reset, state, axes=("B",))
        return self._checked("step", inputs, self.module.step(inputs, should_reset, map_leaves(torch.clone, state)))

    def scan(self, inputs: Tensor, should_reset: Tensor, state: State) -> tuple[Tensor, State]:
        """The module's unroll."""
        self.chosen_backend()
        result = self.module.unroll(inputs, should_reset, map_leaves(torch.clone, state))
        return self._checked("unroll", inputs, result)

    def gate_values(self, inputs: Tensor, should_reset: Tensor, state: State) -> dict[str, Tensor]:
        method = getattr(self.module, "gate_values", super().gate_values)
        return method(inputs, should_reset, state)

    def attention_weights(self, inputs: Tensor, should_reset: Tensor, state: State) -> Tensor | None:
        method = getattr(self.module, "attention_weights", super().attention_weights)
        return method(inputs, should_reset, state)

    def matrix_products(self, steps: int, lanes: int) -> list[Product] | None:
        method = getattr(self.module, "matrix_products", super().matrix_products)
        return method(steps, lanes)

    def _checked(self, method: str, inputs: Tensor, result: Any) -> tuple[Tensor, State]:
        shape = (*inputs.shape[:-1], self.output_size)
        return check_result(self.module, method, result, shape, self.initial_leaves())


def missing_methods(part: nn.Module | type) -> list[str]:
    """Those of `METHODS` that a module or class does not have."""
    return [name for name in METHODS if not callable(getattr(part, name, None))]


def not_a_core(name: str, missing: Sequence[str]) -> ValueError:
    """The error for a module, or a class of modules, without some of `METHODS`."""
    expected = f"core: expected a name such as 'lstm', a Core, or a module with the methods {', '.join(METHODS)}"
    return ValueError(f"{expected}; {name} has no {', '.join(missing)}")


def check_class(build: object, name: str) -> None:
    """Raises ValueError for a class with none of `METHODS`, such as torch.nn.LSTM, before it is called."""
    if isinstance(build, type) and missing_methods(build) == list(METHODS):
        raise not_a_core(name, METHODS)


def as_core(module: object, input_size: int) -> Core:
    """The module itself if it is a `Core`, else wrapped; a custom one is tried out on a few steps (`check_core`).

    Raises:
      ValueError: if it cannot be wrapped, has another input size, lazy parameters, or forward pre-hooks, is a `Core`
        whose constructor has not been called, or does not do what `Core` promises.
    """
    if not isinstance(module, nn.Module):
        raise ValueError(f"core: expected a torch module, got {type(module).__name__}")
    check_module("core", module)
    if isinstance(module, Core) and not hasattr(module, "input_size"):
        raise ValueError(f"core: {type(module).__name__}.__init__ has to call super().__init__(input_size), Core's")
    if module._forward_pre_hooks:
        raise ValueError(
            f"core: {type(module).__name__} has forward pre-hooks, which agents do not run: they call step and unroll; "
            "instead of spectral_norm, weight_norm and prune, use torch.nn.utils.parametrizations"
        )
    core = module if isinstance(module, Core) else AdaptedCore(module, getattr(module, "input_size", input_size))
    if core.input_size != input_size:
        raise ValueError(
            f"core: expected input size {input_size}, got {type(module).__name__} with {core.input_size}; "
            "a class or a function of the input size always fits"
        )
    if not type(module).__module__.startswith("rmc_agents."):
        check_core(core)
    return core


@torch.no_grad()
def _output_size(module: Any, input_size: int) -> int:
    """The output width, from the module's attribute or from one step."""
    like = next(iter(module.parameters()), torch.empty(0))
    state, name = module.initial_state(1), type(module).__name__
    if not isinstance(state, tuple) or not all(isinstance(x, Tensor) and x.dim() and len(x) == 1 for x in state):
        raise ValueError(
            f"core: {name}.initial_state: expected a tuple of tensors [B, ...], got {described(state)} for B = 1"
        )
    if isinstance(size := getattr(module, "output_size", None), int):
        return size
    inputs, always = like.new_zeros(1, input_size), torch.ones(1, dtype=torch.bool, device=like.device)
    result = module.step(inputs, always, map_leaves(torch.clone, state))
    if not isinstance(result, tuple | list) or len(result) != 2 or not isinstance(result[0], Tensor):
        raise ValueError(f"core: {name}.step: expected an output and the next state, got {described(result)}")
    return int(result[0].shape[-1])
