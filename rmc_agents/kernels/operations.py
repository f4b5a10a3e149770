"""The matrix products of a scan over time, counted from a core's sizes, independent of the implementation.

A core's list (`Core.matrix_products`) holds, forward and backward:

  each linear map whose input does not depend on the memory, once over all T * B rows;
  each linear map whose input does, T times over the rows of one step: B, or B times a step's slots (and its input row);
  for backward, the gradient of each map's input, over the same rows;
  and the gradient of each weight, one product over all rows of all steps.

So backward has twice the operations of forward. Attention's own products (scores and sums, a few rows wide: 2 % of an
RMC's operations at four slots 64 wide, 3 % at sixteen 128 wide) and everything that is not a product are left out.
"""

from dataclasses import dataclass

from torch import Tensor

from .weights import RecurrentWeights


@dataclass(frozen=True)
class Product:
    """A matrix product `[rows, inner] @ [inner, columns]`, computed `count` times."""

    rows: int
    inner: int
    columns: int
    count: int
    transposed: bool = False  # the left operand is stored as [inner, rows], as for a weight's gradient

    @property
    def operations(self) -> int:
        """Multiplications and additions, over all `count` times."""
        return 2 * self.rows * self.inner * self.columns * self.count


@dataclass(frozen=True)
class Use:
    """A linear map applied to `rows` rows, `count` times."""

    rows: int
    count: int


def linear_products(weight: Tensor, *uses: Use) -> list[Product]:
    """The products of a linear map: forward, its input gradient, and its weight gradient over the rows of all uses."""
    outputs, inputs = weight.shape
    forward = [Product(use.rows, inputs, outputs, use.count) for use in uses]
    backward = [Product(use.rows, outputs, inputs, use.count) for use in uses]
    rows = sum(use.rows * use.count for use in uses)
    return [*forward, *backward, Product(outputs, rows, inputs, 1, transposed=True)]


def recurrent_products(weights: RecurrentWeights, steps: int, lanes: int) -> list[Product]:
    """The products of lstm, gru and rnn: one map of all inputs together, and one of h in every step."""
    inputs, hidden = Use(steps * lanes, 1), Use(lanes, steps)
    return linear_products(weights.input.weight, inputs) + linear_products(weights.hidden, hidden)
