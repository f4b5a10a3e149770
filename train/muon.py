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

    The same as `torch.optim.Muon` with `adjust_lr_fn="match_rms_adamw"` and no weight decay, except that a CPU computes
    in float32: at these sizes, preparing torch's bfloat16 products takes longer than computing them.

    Args:
      matrices: the parameters.
      lr: learning rate.
    """

    def __init__(self, matrices: Iterable[Tensor], lr: float) -> None:
        super().__init__(matrices, {"lr": lr})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update every matrix that has a gradient."""
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
                matrix.add_(direction, alpha=-group["lr"] * 0.2 * math.sqrt(max(matrix.shape)))


def orthogonal(matrix: Tensor) -> Tensor:
    """The matrix `[M, N]` with its singular values moved near 1.

    The Newton-Schulz iteration: X <- a X + (b A + c A²) X with A = X Xᵀ.
    """
    a, b, c = POLYNOMIAL
    x = matrix.bfloat16() if matrix.is_cuda else matrix
    x = x.t() if x.shape[0] > x.shape[1] else x
    x = x / x.norm().clamp(min=EPSILON)
    for _ in range(STEPS):
        gram = x @ x.t()
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.t() if matrix.shape[0] > matrix.shape[1] else x).to(matrix.dtype)
