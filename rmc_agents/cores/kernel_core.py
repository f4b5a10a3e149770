"""The base class of cores with kernels."""

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor

from rmc_agents.kernels.dispatch import Scan, choose
from rmc_agents.kernels.modes import no_autocast
from rmc_agents.types import State, Step, map_leaves

from .base import Core
from .checks import check_state


class KernelCore(Core):
    """A core whose scan is one of `rmc_agents.kernels`, on the selected backend.

    A subclass defines `initial_leaves`, the name of its folder among the kernels, and its `weights`.
    """

    kernel: ClassVar[str]

    @abstractmethod
    def weights(self) -> Any:
        """The parameters in the form that the kernels take."""

    def chosen_scan(self) -> Scan:
        """The scan on `backend`. Raises ValueError if the backend cannot run this core on its device."""
        return choose(self.kernel, self.backend, self.precision, self.weights(), self._initial())

    def chosen_backend(self) -> str:
        return super().chosen_backend() if self._has_own_cell() else self.chosen_scan().backend

    def scan(self, inputs: Tensor, should_reset: Tensor, state: State) -> tuple[Tensor, State]:
        """See `Core.scan`; a loop over `cell` if a subclass overrides that."""
        if self._has_own_cell():
            return super().scan(inputs, should_reset, state)
        return self._kernel_scan(inputs, should_reset, state)

    def _has_own_cell(self) -> bool:
        """Whether a subclass overrides `cell`, over which its scan is then a loop."""
        return type(self).cell is not KernelCore.cell

    def _initial(self) -> State:
        """As in `Core`. Raises ValueError if a subclass's `initial_leaves` are not what the kernels take."""
        leaves, kind = super()._initial(), type(self)
        of_kernel: Any = next(each for each in kind.__mro__ if "kernel" in vars(each))
        if kind.initial_leaves is not of_kernel.initial_leaves and not self._has_own_cell():
            check_state(leaves, of_kernel.initial_leaves(self), 1, name=f"{kind.__name__}.initial_leaves")
        return leaves

    def _kernel_scan(self, inputs: Tensor, should_reset: Tensor, state: State) -> tuple[Tensor, State]:
        inputs, state = self.cast(inputs), map_leaves(self.cast, state)
        initial, weights = self._initial(), self.weights()
        with no_autocast(inputs.device.type):
            scan = choose(self.kernel, self.backend, self.precision, weights, initial)
            return scan.unroll(inputs, should_reset, state, initial, weights)

    @contextmanager
    def stepping(self, state: State) -> Iterator[Step]:
        scan, kind = self.chosen_scan(), type(self)
        overridden = any(getattr(kind, name) is not getattr(KernelCore, name) for name in ("cell", "step", "scan"))
        if scan.stepping is None or overridden:
            yield self.step
            return
        with scan.stepping(state, self._initial(), self.weights()) as step:
            yield step

    def cell(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """See `Core.cell`: the scan of one step, without a reset."""
        never = torch.zeros(1, x.shape[0], dtype=torch.bool, device=x.device)
        outputs, state = self._kernel_scan(x.unsqueeze(0), never, state)
        return outputs.squeeze(0), state
