"""Value targets and advantages: lambda-returns and V-trace, from rewards, values and episode flags."""

from typing import NamedTuple

import torch
from torch import Tensor

from rmc_agents.types import TimeStep

from .masked import Sum, masked_normalize


class Targets(NamedTuple):
    """Targets for a rollout's T transitions; each `[T, B]`, without gradient.

    Attributes:
      value: target of v_tm1.
      advantage: for the policy gradient.
      valid: bool: a real transition, no filler.
    """

    value: Tensor
    advantage: Tensor
    valid: Tensor


def lambda_targets(
    value: Tensor,
    steps: TimeStep,
    *,
    discount: float,
    trace_lambda: float = 0.95,
    reward_scale: float = 1.0,
    normalize_advantages: bool = True,
    over_learners: Sum | None = None,
) -> Targets:
    """Lambda-returns as value targets, and advantages over the values `[T+1, B]` of the T + 1 time steps.

    Args: as in `a2c`; over_learners: sums over all learners, to normalise advantages over all lanes; None: one learner.
    """
    t = transitions(value, steps, discount, trace_lambda, reward_scale)
    target = lambda_returns(t.r_t, t.discount_t, t.v_t, t.lambda_t)
    advantage = target - t.v_tm1
    if normalize_advantages:
        advantage = masked_normalize(advantage, t.valid, over_learners)
    return Targets(target, advantage, t.valid)


class Transitions(NamedTuple):
    """The transitions between T + 1 time steps; each `[T, B]`, without gradient."""

    v_tm1: Tensor
    v_t: Tensor
    r_t: Tensor  # scaled
    discount_t: Tensor  # 0 where the episode terminated
    lambda_t: Tensor  # trace parameter, 0 where the trace is cut
    valid: Tensor  # bool: a real transition, no filler


def transitions(
    value: Tensor, steps: TimeStep, discount: float, trace_lambda: float, reward_scale: float
) -> Transitions:
    """The transitions between time steps `[T+1, B, ...]` with values `[T+1, B]`. Raises ValueError for other values."""
    if value.shape != steps.is_first.shape:
        expected = list(steps.is_first.shape)
        raise ValueError(f"value: expected one of every time step, {expected}, got {list(value.shape)}")
    weights = transition_weights(steps.is_first, steps.terminated, steps.truncated, discount, trace_lambda)
    value = value.detach()
    return Transitions(value[:-1], value[1:], steps.prev_reward[1:] * reward_scale, *weights)


class TransitionWeights(NamedTuple):
    """Weights of a rollout's T transitions, from its episode flags; each `[T, B]`."""

    discount_t: Tensor  # discount, 0 where the episode terminated
    lambda_t: Tensor  # trace parameter, 0 where the trace is cut
    valid: Tensor  # bool: a real transition, no filler


def transition_weights(
    is_first: Tensor, terminated: Tensor, truncated: Tensor, discount: float, trace_lambda: float
) -> TransitionWeights:
    """Discounts, traces and validity from the flags `[T+1, B]` (bool) of a rollout's T + 1 time steps.

    Raises:
      ValueError: for a discount or trace_lambda that is not from 0 to 1.
    """
    for name, value in (("discount", discount), ("trace_lambda", trace_lambda)):
        if not 0 <= value <= 1:
            raise ValueError(f"{name}: expected a number from 0 to 1, got {value}")
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
    advantages: Tensor  # for the policy gradient
    weights: Tensor  # importance weights of the policy gradient


def vtrace_targets(
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
        error_tm1 = delta_tm1 + discount_t * c_tm1 * error_t,  with c_tm1 = lambda_t * min(1, rho_tm1)
        target_tm1 = v_tm1 + error_tm1
        advantage_tm1 = r_t + discount_t * (v_t + lambda_t * error_t) - v_tm1
        weight_tm1 = min(clip_pg_rho, rho_tm1)

    If all ratios are 1 and clip_rho is at least 1, the targets are the lambda-returns.

    Args:
      v_tm1, v_t, r_t, discount_t, lambda_t: `[T, B]`.
      log_rho_tm1: `[T, B]`, log pi(a) - log mu(a), with pi the learner's policy and mu the actor's.
      clip_rho, clip_pg_rho: clipping thresholds of the ratios.

    Raises:
      ValueError: for a threshold that is not above 0.
    """
    for name, value in (("clip_rho", clip_rho), ("clip_pg_rho", clip_pg_rho)):
        if not value > 0:
            raise ValueError(f"{name}: expected a number above 0, got {value}")
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
