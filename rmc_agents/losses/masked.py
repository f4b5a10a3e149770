"""Statistics over the valid steps of a rollout, for one learner or several."""

from collections.abc import Callable

import torch
from torch import Tensor

EPSILON = 1e-8  # avoids a division by zero where all values are equal

Sum = Callable[[Tensor], Tensor]
"""Sums a tensor over all learners; each has its own lanes of the rollout."""


def masked_mean(x: Tensor, valid: Tensor, over_learners: Sum | None = None) -> Tensor:
    """Mean of x where valid; 0 if no step is valid. Invalid values have no influence, even if they are NaN."""
    total, count = torch.where(valid, x, 0.0).sum(), valid.sum()
    if over_learners is not None:
        total, count = over_learners(torch.stack([total, count]))
    return total / count.clamp(min=1)


def masked_variance(x: Tensor, valid: Tensor) -> Tensor:
    """Variance of x over the valid steps; NaN if there are none."""
    # torch.where, because boolean indexing would synchronise with the GPU.
    deviation = torch.where(valid, x - masked_mean(x, valid), 0.0)
    return deviation.square().sum() / valid.sum()


def masked_normalize(x: Tensor, valid: Tensor, over_learners: Sum | None = None) -> Tensor:
    """x normalised to mean 0 and standard deviation 1 over the valid steps; 0 elsewhere."""
    x = x - masked_mean(x, valid, over_learners)
    x = x - masked_mean(x, valid, over_learners)  # of equal values, the first leaves a rounding error in all of them
    deviation = masked_mean(x.square(), valid, over_learners).sqrt()
    return torch.where(valid, x / (deviation + EPSILON), 0.0)
