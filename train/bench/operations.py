"""The matrix products of a scan (see `kernels.operations`), computed alone.

Their time is that of a perfect scan on the same machine: the ratio of both times says how efficient a scan is. The
scan's rate in FLOP/s is a lower bound, because only the listed products are counted.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from rmc_agents.kernels.operations import Product
from rmc_agents.kernels.products import product, transposed_product


def plain_products(products: Sequence[Product], device: torch.device, *, fastest: bool) -> Callable[[], None]:
    """A function that computes the products in sequence; operands share two buffers of the largest size.

    Args:
      products: the products.
      device: the operands' device.
      fastest: with the library that `kernels.products` uses, instead of `torch.mm`.
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
