"""The long short-term memory."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from rmc_agents.kernels.lstm.reference import lstm_gates
from rmc_agents.kernels.modes import no_autocast
from rmc_agents.kernels.operations import Product, recurrent_products
from rmc_agents.kernels.weights import Affine, LSTMState, RecurrentWeights

from .base import truncated_normal
from .checks import check_sizes
from .kernel_core import KernelCore


class LSTM(KernelCore):
    """LSTM (Hochreiter & Schmidhuber 1997, with forget gates): one layer, the output is h.

    The arithmetic and the order of the gates (i, f, g, o) are those of `torch.nn.LSTM`; `bias` is the sum of its two
    biases.

    Args:
      input_size: width of the inputs.
      hidden_size: width of h and c, and of the output.
      forget_bias: initial bias of the forget gate; at 1, a new LSTM keeps most of its cell state in every step.

    Raises:
      ValueError: for a size that is not a positive integer.
    """

    kernel = "lstm"

    def __init__(self, input_size: int, *, hidden_size: int = 256, forget_bias: float = 1.0) -> None:
        check_sizes(hidden_size=hidden_size)
        super().__init__(input_size, output_size=hidden_size)
        fan_in = input_size + hidden_size
        self.weight_ih = truncated_normal(4 * hidden_size, input_size, fan_in=fan_in)
        self.weight_hh = truncated_normal(4 * hidden_size, hidden_size, fan_in=fan_in)
        self.bias = nn.Parameter(torch.zeros(4 * hidden_size))
        nn.init.constant_(self.bias[hidden_size : 2 * hidden_size], forget_bias)

    def initial_leaves(self) -> LSTMState:
        """h and c, both zero, `[1, H]`."""
        zeros = self.bias.new_zeros(1, self.output_size)
        return LSTMState(zeros, zeros)

    def weights(self) -> RecurrentWeights:
        return RecurrentWeights(Affine(self.weight_ih, self.bias), self.weight_hh, None)

    def gate_values(self, inputs: Tensor, should_reset: Tensor, state: LSTMState) -> dict[str, Tensor]:
        """Input, forget and output gate, each `[B, H]`; see `Core.gate_values`."""
        inputs, state = self._after_reset(inputs, should_reset, state)
        weights = self.weights()
        with no_autocast(inputs.device.type):
            from_inputs = functional.linear(inputs, *weights.input)
            return lstm_gates(from_inputs, state.hidden, weights.hidden)[0]._asdict()

    def matrix_products(self, steps: int, lanes: int) -> list[Product]:
        return recurrent_products(self.weights(), steps, lanes)
