"""Muon, for matrices."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

MOMENTUM = 0.95
STEPS = 5
POLYNOMIAL = 3.4445, -4.7750, 2.0315  # of the singular values: steepest at 0; five iterations bring them near 1
EPSILON = 1e-7


class Muon(torch.optim.Optimizer):
    """Muon (Jordan et al., 2024) with Nesterov momentum; its steps have the same RMS as Adam's (Liu et al., 2025).

    The same as `torch.optim.Muon` with `adjust_lr_fn="match_rms_adamw"`, except that it computes in float32, with fewer
    multiplications: see `orthogonal`.

    Args:
      matrices: the parameters.
      lr: learning rate.
      weight_decay: a step first multiplies the matrices by 1 - lr * weight_decay (Loshchilov & Hutter, 2019). A matrix
        `[M, N]` then keeps singular values below about 0.2 sqrt(max(M, N)) / weight_decay.
    """

    def __init__(self, matrices: Iterable[Tensor], lr: float, weight_decay: float = 0.0) -> None:
        super().__init__(matrices, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Update every matrix that has a gradient; returns the loss that `closure`, if given, has computed first."""
        with torch.enable_grad():
            loss = None if closure is None else closure()
        for group in self.param_groups:
            for matrix in group["params"]:
                if (gradient := matrix.grad) is None:
                    continue
                state = self.state[matrix]
                if not state:
                    state["momentum_buffer"] = torch.zeros_like(gradient)
                mean = state["momentum_buffer"]
                mean.lerp_(gradient, 1 - MOMENTUM)
                direction = orthogonal(gradient.lerp(mean, MOMENTUM))
                if group["weight_decay"]:
                    matrix.mul_(1 - group["lr"] * group["weight_decay"])
                matrix.add_(direction, alpha=-group["lr"] * 0.2 * math.sqrt(max(matrix.shape)))
        return loss


def orthogonal(matrix: Tensor) -> Tensor:
    """The matrix `[M, N]` with its singular values moved near 1; computed in float32 at least.

    The Newton-Schulz iteration X <- P X with P = a I + b A + c A² and A = X Xᵀ. It runs on A alone, A <- P A P, and
    multiplies all P before X, so only two products have the longer side of X.
    """
    x = matrix.to(torch.promote_types(matrix.dtype, torch.float32))
    x = x.t() if matrix.shape[0] > matrix.shape[1] else x
    x = x / x.norm().clamp(min=EPSILON)
    gram = x @ x.t()
    factors = factor = _factor(gram)
    for _ in range(STEPS - 1):
        gram = factor @ gram @ factor
        factor = _factor(gram)
        factors = factor @ factors
    x = (factors @ x).to(matrix.dtype)
    return x.t() if matrix.shape[0] > matrix.shape[1] else x


def _factor(gram: Tensor) -> Tensor:
    a, b, c = POLYNOMIAL
    factor = torch.addmm(gram, gram, gram, beta=b, alpha=c)
    factor.diagonal().add_(a)
    return factor
