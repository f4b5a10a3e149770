"""The gated recurrent unit."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from rmc_agents.kernels.gru.reference import gru_gates
from rmc_agents.kernels.modes import no_autocast
from rmc_agents.kernels.operations import Product, recurrent_products
from rmc_agents.kernels.weights import Affine, HiddenState, RecurrentWeights

from .base import truncated_normal
from .checks import check_sizes
from .kernel_core import KernelCore


class GRU(KernelCore):
    """GRU (Cho et al. 2014): one layer, the output is h.

    The arithmetic, the order of the gates (r, z, n) and the parameters are those of `torch.nn.GRU`.

    Args:
      input_size: width of the inputs.
      hidden_size: width of h, which is the output.
      update_bias: initial bias of the update gate; above 0, a new GRU keeps most of h in every step.

    Raises:
      ValueError: for a size that is not a positive integer.
    """

    kernel = "gru"

    def __init__(self, input_size: int, *, hidden_size: int = 256, update_bias: float = 0.0) -> None:
        check_sizes(hidden_size=hidden_size)
        super().__init__(input_size, output_size=hidden_size)
        fan_in = input_size + hidden_size
        self.weight_ih = truncated_normal(3 * hidden_size, input_size, fan_in=fan_in)
        self.weight_hh = truncated_normal(3 * hidden_size, hidden_size, fan_in=fan_in)
        self.bias_ih = nn.Parameter(torch.zeros(3 * hidden_size))
        nn.init.constant_(self.bias_ih[hidden_size : 2 * hidden_size], update_bias)
        self.bias_hh = nn.Parameter(torch.zeros(3 * hidden_size))

    def initial_leaves(self) -> HiddenState:
        """h, zero, `[1, H]`."""
        return HiddenState(self.bias_ih.new_zeros(1, self.output_size))

    def weights(self) -> RecurrentWeights:
        return RecurrentWeights(Affine(self.weight_ih, self.bias_ih), self.weight_hh, self.bias_hh)

    def gate_values(self, inputs: Tensor, should_reset: Tensor, state: HiddenState) -> dict[str, Tensor]:
        """Reset and update gate, each `[B, H]`; see `Core.gate_values`."""
        inputs, state = self._after_reset(inputs, should_reset, state)
        weights, gates = self.weights(), 2 * self.output_size
        with no_autocast(inputs.device.type):
            from_inputs = functional.linear(inputs, *weights.input)  # [B, 3H]: r, z, n
            from_hidden = functional.linear(state.hidden, weights.hidden, weights.hidden_bias)
            return gru_gates(from_inputs[:, :gates], from_hidden[:, :gates])._asdict()

    def matrix_products(self, steps: int, lanes: int) -> list[Product]:
        return recurrent_products(self.weights(), steps, lanes)
