"""No memory at all."""

from rmc_agents.cores.base import Core
from rmc_agents.kernels.dispatch import Scan
from rmc_agents.types import State


class Feedforward(Core):
    """Hands its inputs on: the ablation without memory, behind the same interface.

    Args:
      input_size: width of the inputs, and of the output.

    Raises:
      ValueError: for a size that is not a positive integer.
    """

    def __init__(self, input_size: int) -> None:
        super().__init__(input_size, output_size=input_size)

    def initial_leaves(self) -> State:
        """`()`: there is no state."""
        return ()

    def weights(self) -> tuple[()]:
        """`()`: there are none."""
        return ()

    def chosen_scan(self) -> Scan:
        """Nothing to be computed."""
        return Scan("none", lambda inputs, should_reset, state, initial_state, weights: (inputs, state), take_tape=None)
