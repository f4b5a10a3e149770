"""The loss of supervised learning: cross-entropy with the correct actions."""

import torch
from torch import Tensor

from rmc_agents.distributions import Categorical

from .actor_critics import Metrics
from .masked import masked_mean

OF_ANSWERS = ("losses/cross_entropy", "charts/accuracy")
"""Metrics that are NaN if no step has a target."""


def cross_entropy(policy_logits: Tensor, targets: Tensor) -> tuple[Tensor, Metrics]:
    """Mean of -log pi(target) over the steps with a target, and the accuracy of the most likely action.

    If no step has a target, the loss is 0, cross-entropy and accuracy are NaN.

    Args:
      policy_logits: `[T, B, A]`.
      targets: `[T, B]` int64, -1 for steps without a target.

    Returns:
      The scalar loss in nats, and metrics.

    Raises:
      ValueError: if there are no targets: the environment reports no `infos["target"]`; or if they are not int64, or
        of another shape than the steps of policy_logits.
    """
    if not isinstance(targets, Tensor) or targets.dtype != torch.int64:
        got = targets.dtype if isinstance(targets, Tensor) else targets
        raise ValueError(f"targets: expected a tensor [T, B] of int64, from infos['target'], got {got}")
    if targets.shape != policy_logits.shape[:-1]:
        expected = list(policy_logits.shape[:-1])
        raise ValueError(f"targets: expected {expected}, as of policy_logits, got {list(targets.shape)}")
    asked = targets >= 0
    loss = masked_mean(-Categorical(policy_logits).log_prob(targets.clamp(min=0)), asked)
    is_right = (policy_logits.detach().argmax(dim=-1) == targets) & asked
    nothing = torch.where(asked.any(), 0.0, torch.nan)
    return loss, {
        "losses/cross_entropy": loss.detach() + nothing,
        "charts/accuracy": is_right.sum() / asked.sum(),
        "charts/target_fraction": asked.float().mean(),
    }
