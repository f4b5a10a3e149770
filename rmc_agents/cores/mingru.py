"""The minimal gated recurrent unit."""

from torch import Tensor, nn

from rmc_agents.kernels.mingru.reference import mingru_gates
from rmc_agents.kernels.modes import no_autocast
from rmc_agents.kernels.operations import Product, Use, linear_products
from rmc_agents.kernels.weights import HiddenState, MinGRULayer, affine

from .base import linear
from .checks import check_sizes
from .kernel_core import KernelCore


class MinGRU(KernelCore):
    """minGRU (Feng et al. 2024, arXiv:2410.01201), with an output gate (highway) and several layers.

        h' = (1 - z) * h + z * n,    y = o * h' + (1 - o) * skip(x)

    The input gate z = σ(W_z x), the candidate n = W_n x and the output gate o = σ(W_o x) depend only on the input, so
    the state is never multiplied by a matrix, and all matrix products run for all steps together. n is linear, as in
    the paper's first form: h is then a weighted mean of past candidates, of either sign, and bounded by them. The
    paper's g(n) > 0 allows logarithms for a parallel scan, which this implementation does not need.

    skip(x) is x itself if it has the width of h, as from the second layer on, else a linear map of x. The gates of a
    single layer see only the current input; those of the second layer see the memory of the first.

    Args:
      input_size: width of the inputs.
      hidden_size: H, width of each layer's h, and of the output.
      num_layers: number of stacked layers.
      forget_bias: the bias of z starts at -forget_bias: a new MinGRU keeps about σ(forget_bias) of h in every step.

    Raises:
      ValueError: for a size that is not a positive integer.
    """

    kernel = "mingru"

    def __init__(
        self, input_size: int, *, hidden_size: int = 256, num_layers: int = 2, forget_bias: float = 1.0
    ) -> None:
        check_sizes(hidden_size=hidden_size, num_layers=num_layers)
        super().__init__(input_size, output_size=hidden_size)
        widths = [input_size] + [hidden_size] * (num_layers - 1)
        self.layers = nn.ModuleList(_Layer(width, hidden_size, forget_bias) for width in widths)

    def initial_leaves(self) -> HiddenState:
        """h of all layers, concatenated, zero, `[1, layers * H]`."""
        return HiddenState(self._like.new_zeros(1, len(self.layers) * self.output_size))

    def weights(self) -> tuple[MinGRULayer, ...]:
        """The parameters of each layer in the form that the kernels take."""
        return tuple(
            MinGRULayer(affine(each.maps), None if each.skip is None else affine(each.skip)) for each in self.layers
        )

    def gate_values(self, inputs: Tensor, should_reset: Tensor, state: HiddenState) -> dict[str, Tensor]:
        """Input and output gate, each `[B, layers * H]`; see `Core.gate_values`."""
        inputs, state = self._after_reset(inputs, should_reset, state)
        with no_autocast(inputs.device.type):
            return mingru_gates(inputs, state, self.weights())._asdict()

    def matrix_products(self, steps: int, lanes: int) -> list[Product]:
        maps = [each for layer in self.weights() for each in layer if each is not None]
        return [each for one in maps for each in linear_products(one.weight, Use(steps * lanes, 1))]


class _Layer(nn.Module):
    def __init__(self, input_size: int, hidden_size: int, forget_bias: float) -> None:
        super().__init__()
        self.maps = linear(input_size, 3 * hidden_size)
        nn.init.constant_(self.maps.bias[:hidden_size], -forget_bias)
        self.skip = None if input_size == hidden_size else linear(input_size, hidden_size)
