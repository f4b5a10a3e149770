"""Matrix products on the CPU, with the faster of the two libraries in torch.

`torch.mm` uses MKL. On processors not made by Intel, MKL runs AVX2 code, with half the width of a Zen 5's AVX-512.
oneDNN uses all of it. On Intel's and on a Zen 4, MKL is faster for small products (docs/decisions/products.md). torch
calls oneDNN for float32 products only from compiled graphs, through the operator used here; without it, `torch.mm` is
used.
"""

from collections.abc import Callable
from typing import Any, Literal

import torch
from llvmlite.binding import get_host_cpu_name
from torch import Tensor
from torch.nn import functional

from .modes import by_torch, tracing
from .pointwise import rectify_backward, view

Precision = Literal["float32", "bf16"]
DTYPES = {"float32": torch.float32, "bf16": torch.bfloat16}
HAS_ONEDNN = (
    torch.backends.mkldnn.is_available()
    and torch.backends.cpu.get_cpu_capability() == "AVX512"
    and hasattr(torch.ops.mkldnn, "_linear_pointwise")
)
_CPU = get_host_cpu_name()
ONEDNN = HAS_ONEDNN and _CPU.startswith("znver") and _CPU != "znver4"  # AMD, from Zen 5 on: for float32
_LINEAR: Any = torch.ops.mkldnn._linear_pointwise.default if HAS_ONEDNN else None
WORTHWHILE = 1 << 20  # multiplications: below, oneDNN's preparations take longer than the product
BLOCK = 1024  # rows per block of a transposed product: they are still in the cache after transposing


def bf16_supported() -> bool:
    """Whether this processor has instructions for bfloat16 products."""
    return HAS_ONEDNN and hasattr(torch.cpu, "_is_avx512_bf16_supported") and torch.cpu._is_avx512_bf16_supported()


def product(x: Tensor, weight: Tensor) -> Tensor:
    """x weightᵀ, without gradient: x `[R, K]`, weight `[M, K]` (or a transposed view of `[K, M]`) to `[R, M]`.

    x and the result are float32. If weight is bfloat16, x and the sums are rounded to it; sums are taken in float32.
    """
    if weight.dtype == torch.bfloat16:
        return _LINEAR(x.bfloat16(), weight, None, "none", [], "").float()
    if _by_onednn(x, weight):
        return _LINEAR(x, weight, None, "none", [], "")
    return torch.mm(x, weight.t())


def multiplier(weight: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """`product` with one weight for many x, into given memory: `multiply(x, out)` returns out.

    For small products, creating the views and the result would take as long as the product.
    """
    weight = weight.detach()
    transposed, is_float32 = weight.t(), weight.dtype == torch.float32

    def multiply(x: Tensor, out: Tensor) -> Tensor:
        if is_float32 and not _by_onednn(x, weight):
            return torch.mm(x, transposed, out=out)
        return out.copy_(product(x, weight))

    return multiply


def _by_onednn(x: Tensor, weight: Tensor) -> bool:
    return ONEDNN and x.shape[0] * weight.numel() >= WORTHWHILE


def add_transposed_product(total: Tensor, x: Tensor, y: Tensor, dtype: torch.dtype = torch.float32) -> None:
    """total += `transposed_product(x, y, dtype)`."""
    if dtype == torch.float32 and not ONEDNN:
        total.addmm_(x.t(), y)
    else:
        total.add_(transposed_product(x, y, dtype))


def transposed_product(x: Tensor, y: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """xᵀ y, without gradient: x `[R, K]`, the narrower of the two, and y `[R, M]` to `[K, M]`; rounded to dtype."""
    if dtype == torch.float32 and (not ONEDNN or x.numel() * y.shape[1] < WORTHWHILE):
        return torch.mm(x.t(), y)
    total = product(x[:BLOCK].t(), y[:BLOCK].t().to(dtype))
    for first in range(BLOCK, len(x), BLOCK):
        total += product(x[first : first + BLOCK].t(), y[first : first + BLOCK].t().to(dtype))
    return total


def rectified_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """max(0, x weightᵀ + bias), with gradient: x `[R, K]`, weight `[M, K]`, bias `[M]` to `[R, M]`.

    On a CPU in float32 by `product`; otherwise, under autocast and while torch traces, by torch's operators.
    """
    ours = x.device.type == "cpu" and x.dtype == weight.dtype == torch.float32
    if not ours or torch.is_autocast_enabled("cpu") or tracing():
        return functional.relu(functional.linear(x, weight, bias))
    return _RectifiedLinear.apply(x, weight, bias) if torch.is_grad_enabled() else _rectified_linear(x, weight, bias)


class _RectifiedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        y = _rectified_linear(x, weight, bias)
        ctx.save_for_backward(x, weight, y)
        return y

    @staticmethod
    def backward(ctx: Any, d_y: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        x, weight, y = ctx.saved_tensors
        if by_torch(d_y):
            d_sum = d_y * (y > 0)
            return d_sum @ weight, d_sum.t() @ x, d_sum.sum(0)
        d_sum, d_bias = torch.empty_like(y), y.new_zeros(y.shape[1])
        rectify_backward(view(d_y), y.numpy(), d_sum.numpy(), d_bias.numpy())
        d_x = product(d_sum, weight.t()) if ctx.needs_input_grad[0] else None
        return d_x, transposed_product(x, d_sum).t(), d_bias


def _rectified_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    if _by_onednn(x, weight):
        return _LINEAR(x, weight, bias, "relu", [], "")
    return torch.addmm(bias, x, weight.t()).relu_()
