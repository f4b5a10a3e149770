"""What a scan over time has to compute: its matrix products, counted from a core's sizes, whichever way they are done.

One list serves twice: for the number of operations of a scan, and, done as plain products with nothing in between, for
the time that a perfect scan would take on the same machine (see `rmc-bench`). It holds, forward and backward:

  every map of what does not depend on the memory, once over all T * B rows;
  every map of what does, T times over the rows of one step: B, or B times a step's slots (and its input row);
  backward, each of these once more towards its input, over the same rows;
  and each weight's gradient, one product over all rows of all steps.

So backward is twice forward. Attention's own products (scores and sums, a few rows wide: 2 % of an RMC's operations at
four slots 64 wide, 3 % at sixteen 128 wide) are left out of both uses, and so is all that is not a product: the rate of
a scan told from this list is a lower bound, and its share of the plain products' rate is a ratio of times.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rmc_agents.cores import GRU, LSTM, RMC, RNN, Core, Feedforward, RelationalRNN
from rmc_agents.kernels.products import product, transposed_product
from rmc_agents.kernels.weights import RecurrentWeights


@dataclass(frozen=True)
class Product:
    """A matrix product `[rows, inner] @ [inner, columns]`, done `count` times."""

    rows: int
    inner: int
    columns: int
    count: int
    transposed: bool = False  # the left operand lies in memory as [inner, rows], as for a weight's gradient

    @property
    def operations(self) -> int:
        """Multiplications and additions, of all `count` times."""
        return 2 * self.rows * self.inner * self.columns * self.count


@dataclass(frozen=True)
class Use:
    """A linear map applied to `rows` rows, `count` times."""

    rows: int
    count: int


def scan_products(core: Core, steps: int, lanes: int) -> list[Product]:
    """The products of `core.unroll` over `steps` and `lanes`, and of its gradients: inputs, weights, state.

    Raises:
      ValueError: for a core that is none of this package's.
    """
    match core:
        case RMC():
            return _rmc(core, steps, lanes)
        case RelationalRNN():
            return _relational_rnn(core, steps, lanes)
        case LSTM() | GRU() | RNN():
            return _recurrent(core.weights(), steps, lanes)
        case Feedforward():
            return []
    raise ValueError(f"expected one of this package's cores, got {type(core).__name__}")


def plain_products(products: Sequence[Product], device: torch.device, *, fastest: bool) -> Callable[[], None]:
    """What does the products one after the other; their operands share two buffers, as large as the largest needs.

    Args:
      products: which.
      device: where.
      fastest: by the library that `kernels.products` takes, instead of `torch.mm`.
    """
    shapes = [((p.inner, p.rows) if p.transposed else (p.rows, p.inner), (p.columns, p.inner)) for p in products]
    buffers = [torch.randn(max(map(math.prod, operand)), device=device) for operand in zip(*shapes, strict=True)]
    work: list[tuple[Product, Tensor, Tensor]] = []
    for one, shapes_of_one in zip(products, shapes, strict=True):
        left, right = (b[: math.prod(s)].view(s) for b, s in zip(buffers, shapes_of_one, strict=True))
        work.append((one, left, right))

    def by_torch(one: Product, left: Tensor, right: Tensor) -> None:
        torch.mm(left.t() if one.transposed else left, right.t())

    def by_the_fastest(one: Product, left: Tensor, right: Tensor) -> None:
        if one.transposed:
            transposed_product(right.view(one.inner, one.columns), left)
        else:
            product(left, right)

    multiply = by_the_fastest if fastest and device.type == "cpu" else by_torch

    @torch.no_grad()
    def run() -> None:
        for one, left, right in work:
            for _ in range(one.count):
                multiply(one, left, right)

    return run


def _rmc(core: RMC, steps: int, lanes: int) -> list[Product]:
    """The input row takes part in the attention of all blocks, but of the last one's result only the slots are kept."""
    weights, slots = core.weights(), core.initial_memory.shape[1]
    inputs, memory, joint = Use(steps * lanes, 1), Use(lanes * slots, steps), Use(lanes * (slots + 1), steps)
    first, *others = weights.blocks
    products = _map(weights.input.weight, inputs) + _map(first.qkv.weight, inputs, memory)
    for block in others:
        products += _map(block.qkv.weight, joint)
    for layer in weights.mlp:  # shared by all blocks
        products += _map(layer.weight, *[joint] * len(others), memory)
    if weights.gates is not None:
        from_input, from_memory = weights.gates
        products += _map(from_input.weight, inputs) + _map(from_memory.weight, memory)
    return products


def _relational_rnn(core: RelationalRNN, steps: int, lanes: int) -> list[Product]:
    weights, slots = core.weights(), core.initial_memory.shape[1]
    hidden, memory, joint = Use(lanes, steps), Use(lanes * slots, steps), Use(lanes * (slots + 1), steps)
    products = _recurrent(weights.lstm, steps, lanes)
    products += _map(weights.row.weight, hidden) + _map(weights.output.weight, hidden)
    for affine in (weights.qkv, weights.attended, *weights.mlp):
        products += _map(affine.weight, joint)
    return products + _map(weights.gates.weight, memory)


def _recurrent(weights: RecurrentWeights, steps: int, lanes: int) -> list[Product]:
    return _map(weights.input.weight, Use(steps * lanes, 1)) + _map(weights.hidden, Use(lanes, steps))


def _map(weight: Tensor, *uses: Use) -> list[Product]:
    """A linear map forward, the gradient towards its inputs, and its weight's over the rows of all uses."""
    outputs, inputs = weight.shape
    forward = [Product(use.rows, inputs, outputs, use.count) for use in uses]
    backward = [Product(use.rows, outputs, inputs, use.count) for use in uses]
    rows = sum(use.rows * use.count for use in uses)
    return [*forward, *backward, Product(outputs, rows, inputs, 1, transposed=True)]
