"""Returns and losses: pure functions of tensors `[T, B]`, T steps of B lanes.

Suffixes tell time: a transition leads from step tm1 (t - 1) to step t. `r_t` and `discount_t` come with step t, `v_tm1`
and `v_t` are the values of the observations at its two ends. Every argument holds the transitions in order, so that row
i of `v_t` is row i + 1 of `v_tm1`.

Episodes end inside a rollout. A terminated episode has `discount_t = 0` on its last transition. A truncated one keeps
its discount, so that the value of its last observation is bootstrapped from, but `lambda_t = 0` cuts the trace there:
what follows is the filler step to the next episode, which no sum may see. The filler itself is left out of every loss
by `valid`. `transition_weights` makes all three from the flags.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional


class TransitionWeights(NamedTuple):
    """What the episode flags of a rollout mean for its T transitions; each `[T, B]`."""

    discount_t: Tensor  # discount, 0 where the episode terminated
    lambda_t: Tensor  # trace parameter, 0 where the trace is cut
    valid: Tensor  # bool: a real transition, no filler


def transition_weights(
    is_first: Tensor, terminated: Tensor, truncated: Tensor, discount: float, trace_lambda: float
) -> TransitionWeights:
    """Discounts, traces and validity from the flags `[T+1, B]` (bool) of a rollout's T + 1 time steps."""
    is_last = terminated | truncated
    return TransitionWeights(
        discount_t=discount * (~terminated[1:]).float(),
        lambda_t=trace_lambda * (~is_last[1:]).float(),
        valid=~is_first[1:],
    )


def lambda_returns(r_t: Tensor, discount_t: Tensor, v_t: Tensor, lambda_t: Tensor) -> Tensor:
    """Lambda-returns (Sutton and Barto, 2018, eq. 12.18), the targets of v_tm1.

        G_tm1 = r_t + discount_t * ((1 - lambda_t) * v_t + lambda_t * G_t),  and G_T = v_T after the last step.

    Args: r_t, discount_t, v_t, lambda_t: `[T, B]`.
    Returns: `[T, B]`, without gradient.
    """
    with torch.no_grad():
        g = v_t[-1]
        returns = torch.empty_like(v_t)
        for t in reversed(range(len(r_t))):
            g = r_t[t] + discount_t[t] * ((1.0 - lambda_t[t]) * v_t[t] + lambda_t[t] * g)
            returns[t] = g
    return returns


class VTrace(NamedTuple):
    """Targets, advantages and weights, `[T, B]`, without gradient."""

    targets: Tensor  # of v_tm1
    advantages: Tensor  # of the policy gradient
    weights: Tensor  # by which the policy gradient multiplies them


def vtrace(
    v_tm1: Tensor,
    v_t: Tensor,
    r_t: Tensor,
    discount_t: Tensor,
    log_rho_tm1: Tensor,
    lambda_t: Tensor,
    clip_rho: float = 1.0,
    clip_pg_rho: float = 1.0,
) -> VTrace:
    """V-trace (Espeholt et al., 2018, eq. 1 and remark 2), the off-policy correction of lambda-returns.

        delta_tm1 = min(clip_rho, rho_tm1) * (r_t + discount_t * v_t - v_tm1)
        error_tm1 = delta_tm1 + discount_t * c_t * error_t,  with c_t = lambda_t * min(1, rho_tm1)
        target_tm1 = v_tm1 + error_tm1
        advantage_tm1 = r_t + discount_t * (v_t + lambda_t * error_t) - v_tm1
        weight_tm1 = min(clip_pg_rho, rho_tm1)

    With all ratios 1 the targets are the lambda-returns. Advantages that are to be normalised want it before they are
    weighted: a mean taken from weighted ones would remain where the weight is 0.

    Args:
      v_tm1, v_t, r_t, discount_t, lambda_t: `[T, B]`.
      log_rho_tm1: `[T, B]`, the action's log-probability under the learning policy less that under the acting one.
      clip_rho, clip_pg_rho: where ratios are cut off.
    """
    with torch.no_grad():
        rho = log_rho_tm1.exp()
        delta = rho.clamp(max=clip_rho) * (r_t + discount_t * v_t - v_tm1)
        trace = discount_t * lambda_t * rho.clamp(max=1.0)
        error = torch.zeros_like(v_tm1[-1])
        errors = torch.zeros(len(r_t) + 1, *error.shape, dtype=error.dtype, device=error.device)
        for t in reversed(range(len(r_t))):
            error = delta[t] + trace[t] * error
            errors[t] = error
        q_tm1 = r_t + discount_t * (v_t + lambda_t * errors[1:])
    return VTrace(v_tm1 + errors[:-1], q_tm1 - v_tm1, rho.clamp(max=clip_pg_rho))


def action_log_prob(policy_logits: Tensor, action: Tensor) -> Tensor:
    """Log-probability `[...]` of actions `[...]` under logits `[..., A]`."""
    return functional.log_softmax(policy_logits, dim=-1).gather(-1, action.unsqueeze(-1)).squeeze(-1)


def policy_gradient_loss(policy_logits: Tensor, action: Tensor, advantage: Tensor, valid: Tensor) -> Tensor:
    """Mean over valid steps of -log pi(action) * advantage; the advantage carries no gradient (Williams, 1992).

    Args: policy_logits `[T, B, A]`, action `[T, B]` int64, advantage `[T, B]`, valid `[T, B]` bool.
    """
    advantage = torch.where(valid, advantage.detach(), 0.0)
    return masked_mean(-action_log_prob(policy_logits, action) * advantage, valid)


def clipped_policy_loss(log_ratio: Tensor, advantage: Tensor, valid: Tensor, clip: float) -> Tensor:
    """Mean over valid steps of -min(r A, clamp(r, 1 - clip, 1 + clip) A), r = pi(a) / pi_old(a) (Schulman et al., 2017,
    eq. 7); where r is 1, its gradient is that of `policy_gradient_loss`.

    Args: log_ratio `[T, B]`, advantage `[T, B]` (carries no gradient), valid `[T, B]` bool.
    """
    advantage = torch.where(valid, advantage.detach(), 0.0)
    ratio = torch.where(valid, log_ratio, 0.0).exp()
    clipped = ratio.clamp(1.0 - clip, 1.0 + clip)
    return masked_mean(-torch.minimum(ratio * advantage, clipped * advantage), valid)


def approx_kl(log_ratio: Tensor, valid: Tensor) -> Tensor:
    """How far the policy is from the one that acted, estimated from its actions: the mean over valid steps of
    r - 1 - log r, with r = pi(a) / pi_old(a), whose expectation is KL(pi_old, pi) (Schulman, 2020).

    Args: log_ratio `[T, B]`, valid `[T, B]` bool.
    """
    return masked_mean(log_ratio.exp() - 1.0 - log_ratio, valid)


def value_loss(value: Tensor, target: Tensor, valid: Tensor) -> Tensor:
    """Mean over valid steps of (target - value)^2 / 2; the target carries no gradient. All `[T, B]`."""
    target = torch.where(valid, target.detach(), value.detach())
    return masked_mean(0.5 * (target - value).square(), valid)


def entropy(policy_logits: Tensor) -> Tensor:
    """The policy's entropy in nats, `[...]` from logits `[..., A]`; at most log A."""
    log_prob = functional.log_softmax(policy_logits, dim=-1)
    return -(log_prob.exp() * log_prob).sum(dim=-1)


def masked_mean(x: Tensor, valid: Tensor) -> Tensor:
    """Mean of x where valid; 0 if nothing is. Values elsewhere are selected away, so NaN there does no harm to it."""
    return torch.where(valid, x, 0.0).sum() / valid.sum().clamp(min=1)


def masked_variance(x: Tensor, valid: Tensor) -> Tensor:
    """Variance of x over the valid steps; NaN if there are none. Picking steps out would wait for the GPU."""
    deviation = torch.where(valid, x - masked_mean(x, valid), 0.0)
    return deviation.square().sum() / valid.sum()


def masked_normalize(x: Tensor, valid: Tensor, epsilon: float = 1e-8) -> Tensor:
    """x brought to mean 0 and standard deviation 1 over the valid steps, 0 elsewhere."""
    mean = masked_mean(x, valid)
    deviation = masked_mean((x - mean).square(), valid).sqrt()
    return torch.where(valid, (x - mean) / (deviation + epsilon), 0.0)


def explained_variance(value: Tensor, target: Tensor, valid: Tensor) -> Tensor:
    """1 - Var(target - value) / Var(target) over the valid steps: 1 is perfect, 0 no better than a constant."""
    return 1.0 - masked_variance(target - value, valid) / masked_variance(target, valid).clamp(min=1e-8)
