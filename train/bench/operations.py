"""The matrix products of a scan (see `kernels.operations`), done as plain products with nothing in between.

That is the time which a perfect scan would take on the same machine: the rate of a scan told from its list of products
is a lower bound, and its share of the plain products' rate is a ratio of times.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from rmc_agents.kernels.operations import Product
from rmc_agents.kernels.products import product, transposed_product


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
