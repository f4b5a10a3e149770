"""The core without memory."""

from torch import Tensor

from rmc_agents.kernels.operations import Product
from rmc_agents.types import State

from .base import Core


class Feedforward(Core):
    """Returns its inputs unchanged: the memoryless baseline, with the same interface as the other cores.

    Args:
      input_size: width of the inputs, and of the output.

    Raises:
      ValueError: for a size that is not a positive integer.
    """

    def __init__(self, input_size: int) -> None:
        super().__init__(input_size)

    def initial_leaves(self) -> State:
        """`()`: there is no state."""
        return ()

    def cell(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        return x, state

    def chosen_backend(self) -> str:
        """'none': nothing is computed, unless a subclass has a `cell` of its own."""
        return "none" if type(self).cell is Feedforward.cell else super().chosen_backend()

    def scan(self, inputs: Tensor, should_reset: Tensor, state: State) -> tuple[Tensor, State]:
        """The inputs; a loop over `cell` if a subclass overrides that."""
        return (inputs, state) if type(self).cell is Feedforward.cell else super().scan(inputs, should_reset, state)

    def matrix_products(self, steps: int, lanes: int) -> list[Product]:
        return []
