"""Terms of the losses and metrics of training, from tensors `[T, B]`."""

import torch
from torch import Tensor

from rmc_agents.distributions import Categorical
from rmc_agents.types import Distribution, Rollout, TimeStep

from .masked import masked_mean, masked_variance

MAX_LOG_RATIO = 20.0
"""Logarithm of the largest ratio in a loss: with an infinite one, the gradient would be NaN."""
ROUNDING = 1e-6  # relative to a value


def distribution_of(rollout: Rollout, policy_logits: Tensor) -> Distribution:
    """The distribution `[T, B]` of the rollout's T actions, from parameters `[T, B, P]` or `[T+1, B, P]`."""
    make = Categorical if rollout.distribution is None else rollout.distribution
    return make(policy_logits[: len(rollout.policy_logits)])


def action_log_ratio(policy: Distribution, rollout: Rollout) -> Tensor:
    """log pi(a) - log pi_old(a), `[T, B]`, for the rollout's actions."""
    action = rollout.steps.prev_action[1:]
    return policy.log_prob(action) - distribution_of(rollout, rollout.policy_logits).log_prob(action)


def policy_gradient_loss(log_prob: Tensor, advantage: Tensor, valid: Tensor) -> Tensor:
    """Mean over valid steps of -log pi(action) * advantage; the advantage carries no gradient (Williams, 1992).

    Args: log_prob `[T, B]`, advantage `[T, B]`, valid `[T, B]` bool.
    """
    advantage = torch.where(valid, advantage.detach(), 0.0)
    return masked_mean(-log_prob * advantage, valid)


def clipped_policy_loss(log_ratio: Tensor, advantage: Tensor, valid: Tensor, clip: float) -> Tensor:
    """Mean over valid steps of -min(r A, clamp(r, 1 - clip, 1 + clip) A), r = pi(a) / pi_old(a) (Schulman et al., 2017,
    eq. 7); where r is 1, its gradient is that of `policy_gradient_loss`. r is at most exp(20).

    Args: log_ratio `[T, B]`, advantage `[T, B]` (carries no gradient), valid `[T, B]` bool. Raises ValueError for a
    clip that is not above 0.
    """
    if not clip > 0:
        raise ValueError(f"clip: expected a number above 0, got {clip}")
    advantage = torch.where(valid, advantage.detach(), 0.0)
    ratio = torch.where(valid, log_ratio, 0.0).clamp(max=MAX_LOG_RATIO).exp()
    clipped = ratio.clamp(1.0 - clip, 1.0 + clip)
    return masked_mean(-torch.minimum(ratio * advantage, clipped * advantage), valid)


def approx_kl(log_ratio: Tensor, valid: Tensor) -> Tensor:
    """Estimate of KL(pi_old, pi) from the actions taken: mean over valid steps of r - 1 - log r, with
    r = pi(a) / pi_old(a) (Schulman, 2020).

    Args: log_ratio `[T, B]`, valid `[T, B]` bool.
    """
    return masked_mean(log_ratio.exp() - 1.0 - log_ratio, valid)


def value_loss(value: Tensor, target: Tensor, valid: Tensor) -> Tensor:
    """Mean over valid steps of (target - value)^2 / 2; the target carries no gradient. All `[T, B]`."""
    target = torch.where(valid, target.detach(), value.detach())
    return masked_mean(0.5 * (target - value).square(), valid)


def reward_loss(predicted: Tensor, steps: TimeStep, valid: Tensor) -> Tensor:
    """Mean over valid steps of (reward - prediction for the action taken)^2, of rewards cut to -1..1: an auxiliary task
    as in UNREAL (Jaderberg et al., 2017), which predicts the sign of a reward from frames before it.

    Args: predicted `[T, B, A]`, steps `[T+1, B, ...]`, valid `[T, B]` bool.
    """
    of_action = predicted.gather(-1, steps.prev_action[1:].unsqueeze(-1)).squeeze(-1)
    return masked_mean((steps.prev_reward[1:].clamp(-1.0, 1.0) - of_action).square(), valid)


def explained_variance(value: Tensor, target: Tensor, valid: Tensor) -> Tensor:
    """1 - Var(target - value) / Var(target) over the valid steps: 1 is perfect, 0 no better than a constant; 0 too
    if all targets are equal, up to rounding.
    """
    variance, rounding = masked_variance(target, valid), ROUNDING**2 * masked_mean(target.square(), valid)
    return torch.where(variance > rounding, 1.0 - masked_variance(target - value, valid) / variance, 0.0)
