"""Matrix products on the CPU, by the faster of the two libraries that torch brings.

`torch.mm` goes to MKL, which on a processor that is not Intel's leaves half of AVX-512 unused; oneDNN uses all of it
(docs/decisions/products.md has figures). torch calls oneDNN for float32 products only from compiled graphs, by the
operator used here; where it is missing, or there is no AVX-512, `torch.mm` does the work.
"""

import torch
from torch import Tensor

ONEDNN = (
    torch.backends.mkldnn.is_available()
    and torch.backends.cpu.get_cpu_capability() == "AVX512"
    and hasattr(torch.ops.mkldnn, "_linear_pointwise")
)
_LINEAR = torch.ops.mkldnn._linear_pointwise.default if ONEDNN else None
WORTHWHILE = 1 << 20  # multiplications: below, oneDNN's preparations take longer than the product
BLOCK = 1024  # rows of a transposed product at once: so many are still in the cache after they were turned round


def product(x: Tensor, weight: Tensor) -> Tensor:
    """x weightᵀ, without gradient: x `[R, K]`, weight `[M, K]` (or a transposed view of `[K, M]`) to `[R, M]`."""
    if ONEDNN and x.numel() * len(weight) >= WORTHWHILE:
        return _LINEAR(x, weight, None, "none", [], "")
    return torch.mm(x, weight.t())


def transposed_product(x: Tensor, y: Tensor) -> Tensor:
    """xᵀ y, without gradient: x `[R, K]`, the narrower of the two, and y `[R, M]` to `[K, M]`."""
    if not ONEDNN or x.numel() * y.shape[1] < WORTHWHILE:
        return torch.mm(x.t(), y)
    total = product(x[:BLOCK].t(), y[:BLOCK].t())
    for first in range(BLOCK, len(x), BLOCK):
        total += product(x[first : first + BLOCK].t(), y[first : first + BLOCK].t())
    return total
