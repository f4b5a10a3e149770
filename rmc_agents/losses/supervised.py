"""Supervised learning of actions: cross-entropy with the right ones."""

import torch
from torch import Tensor

from rmc_agents.distributions import Categorical
from rmc_agents.losses.actor_critics import Metrics
from rmc_agents.losses.masked import masked_mean


def cross_entropy(policy_logits: Tensor, targets: Tensor) -> tuple[Tensor, Metrics]:
    """Mean over the asked steps of -log pi(target), and how many of the likeliest actions are the targets.

    Where nothing is asked in any step the loss is 0 and the metrics are NaN.

    Args:
      policy_logits: `[T, B, A]`.
      targets: `[T, B]` int64, -1 where nothing is asked.

    Returns:
      The loss, a scalar in nats, and metrics.
    """
    asked = targets >= 0
    loss = masked_mean(-Categorical(policy_logits).log_prob(targets.clamp(min=0)), asked)
    is_right = (policy_logits.detach().argmax(dim=-1) == targets) & asked
    nothing = torch.where(asked.any(), 0.0, torch.nan)
    return loss, {
        "losses/cross_entropy": loss.detach() + nothing,
        "charts/accuracy": is_right.sum() / asked.sum(),
        "charts/asked": asked.float().mean(),
    }
