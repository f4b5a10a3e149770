"""The plain recurrent network."""

import torch
from torch import nn

from rmc_agents.kernels.operations import Product, recurrent_products
from rmc_agents.kernels.weights import Affine, HiddenState, RecurrentWeights

from .base import truncated_normal
from .checks import check_sizes
from .kernel_core import KernelCore


class RNN(KernelCore):
    """Elman network: h = tanh(W_x x + W_h h + b), and the output is h.

    The arithmetic is that of `torch.nn.RNN`, with one bias instead of two. W_h starts orthogonal, so neither h nor its
    gradient vanishes or explodes at first.

    Args:
      input_size: width of the inputs.
      hidden_size: width of h, which is the output.

    Raises:
      ValueError: for a size that is not a positive integer.
    """

    kernel = "rnn"

    def __init__(self, input_size: int, *, hidden_size: int = 256) -> None:
        check_sizes(hidden_size=hidden_size)
        super().__init__(input_size, output_size=hidden_size)
        self.weight_ih = truncated_normal(hidden_size, input_size, fan_in=input_size)
        self.weight_hh = nn.Parameter(nn.init.orthogonal_(torch.empty(hidden_size, hidden_size)))
        self.bias = nn.Parameter(torch.zeros(hidden_size))

    def initial_leaves(self) -> HiddenState:
        """h, zero, `[1, H]`."""
        return HiddenState(self.bias.new_zeros(1, self.output_size))

    def weights(self) -> RecurrentWeights:
        return RecurrentWeights(Affine(self.weight_ih, self.bias), self.weight_hh, None)

    def matrix_products(self, steps: int, lanes: int) -> list[Product]:
        return recurrent_products(self.weights(), steps, lanes)
