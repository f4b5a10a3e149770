"""Returns and losses: pure functions of tensors `[T, B]`, T steps of B lanes.

`a2c`, `ppo` and `vtrace` are whole losses, from a rollout and what the agent says to it now; the rest of the file is
what they are made of.

    output, _ = agent.unroll(rollout.steps, rollout.initial_state)
    loss, metrics = losses.a2c(output, rollout, discount=0.99)

Suffixes tell time: a transition leads from step tm1 (t - 1) to step t. `r_t` and `discount_t` come with step t, `v_tm1`
and `v_t` are the values of the observations at its two ends. Every argument holds the transitions in order, so that row
i of `v_t` is row i + 1 of `v_tm1`.

Episodes end inside a rollout. A terminated episode has `discount_t = 0` on its last transition. A truncated one keeps
its discount, so that the value of its last observation is bootstrapped from, but `lambda_t = 0` cuts the trace there:
what follows is the filler step to the next episode, which no sum may see. The filler itself is left out of every loss
by `valid`. `transition_weights` makes all three from the flags.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from rmc_agents.types import AgentOutput, Rollout, TimeStep

Metrics = dict[str, Tensor]
"""Scalars without gradient, by their names in TensorBoard."""
Sum = Callable[[Tensor], Tensor]
"""Adds up a tensor over all learners that share a rollout, each with lanes of its own."""


class Targets(NamedTuple):
    """What a rollout's T transitions were worth; each `[T, B]`, without gradient."""

    value: Tensor  # what v_tm1 should have been
    advantage: Tensor  # of the policy gradient
    valid: Tensor  # bool: a real transition, no filler


def a2c(
    output: AgentOutput,
    rollout: Rollout,
    *,
    discount: float,
    trace_lambda: float = 0.95,
    reward_scale: float = 1.0,
    normalize_advantages: bool = True,
    value_cost: float = 0.5,
    entropy_cost: float = 0.01,
) -> tuple[Tensor, Metrics]:
    """The loss of A2C (Mnih et al., 2016): policy gradient + value_cost * value loss - entropy_cost * entropy.

    All three are means over the rollout's real transitions. The gradient is right only for the weights that acted.

    Args:
      output: the unroll of `rollout.steps`, `[T+1, B, ...]`; the last value is bootstrapped from, without gradient.
      rollout: T steps of B lanes.
      discount: of rewards, per step.
      trace_lambda: of the lambda-returns: 0 is one-step TD, 1 is Monte Carlo up to the rollout's end.
      reward_scale: rewards are multiplied by it first.
      normalize_advantages: bring them to mean 0 and standard deviation 1.
      value_cost, entropy_cost: weights in the sum.

    Returns:
      The loss, a scalar, and metrics.
    """
    targets = lambda_targets(
        output.value,
        rollout.steps,
        discount=discount,
        trace_lambda=trace_lambda,
        reward_scale=reward_scale,
        normalize_advantages=normalize_advantages,
    )
    return actor_critic(output, rollout, targets, value_cost=value_cost, entropy_cost=entropy_cost)


def ppo(
    output: AgentOutput,
    rollout: Rollout,
    *,
    discount: float,
    clip: float = 0.2,
    trace_lambda: float = 0.95,
    reward_scale: float = 1.0,
    normalize_advantages: bool = True,
    value_cost: float = 0.5,
    entropy_cost: float = 0.01,
) -> tuple[Tensor, Metrics]:
    """The loss of PPO (Schulman et al., 2017, eq. 9, without clipping of values); arguments as of `a2c`.

    Targets are made of `rollout.value` and the output's last value. For several updates from one rollout make them
    once, by `lambda_targets`, and call `clipped_actor_critic`.

    Args:
      clip: how far the ratio pi(a) / pi_old(a) may move from 1 and still be rewarded for it.
    """
    targets = lambda_targets(
        torch.cat([rollout.value, output.value[-1:]]),
        rollout.steps,
        discount=discount,
        trace_lambda=trace_lambda,
        reward_scale=reward_scale,
        normalize_advantages=normalize_advantages,
    )
    return clipped_actor_critic(output, rollout, targets, clip=clip, value_cost=value_cost, entropy_cost=entropy_cost)


def vtrace(
    output: AgentOutput,
    rollout: Rollout,
    *,
    discount: float,
    trace_lambda: float = 0.95,
    clip_rho: float = 1.0,
    clip_pg_rho: float = 1.0,
    reward_scale: float = 1.0,
    normalize_advantages: bool = True,
    value_cost: float = 0.5,
    entropy_cost: float = 0.01,
) -> tuple[Tensor, Metrics]:
    """The loss of IMPALA (Espeholt et al., 2018): that of `a2c`, for a rollout that older weights made.

    If they are the same weights, this is `a2c`. Arguments as there, and of `vtrace_targets`.
    """
    t = transitions(output.value, rollout.steps, discount, trace_lambda, reward_scale)
    log_ratio = action_log_ratio(output.policy_logits.detach(), rollout)
    corrected = vtrace_targets(
        t.v_tm1, t.v_t, t.r_t, t.discount_t, torch.where(t.valid, log_ratio, 0.0), t.lambda_t, clip_rho, clip_pg_rho
    )
    # Normalised before they are weighted: a mean taken from weighted ones would remain where the weight is 0.
    advantage = masked_normalize(corrected.advantages, t.valid) if normalize_advantages else corrected.advantages
    targets = Targets(corrected.targets, corrected.weights * advantage, t.valid)
    loss, metrics = actor_critic(output, rollout, targets, value_cost=value_cost, entropy_cost=entropy_cost)
    ratio = log_ratio.exp()
    return loss, metrics | {
        "losses/rho_mean": masked_mean(ratio, t.valid),
        "losses/rho_clipfrac": masked_mean((ratio > clip_rho).float(), t.valid),
        "losses/approx_kl": approx_kl(log_ratio, t.valid),
    }


def actor_critic(
    output: AgentOutput, rollout: Rollout, targets: Targets, *, value_cost: float, entropy_cost: float
) -> tuple[Tensor, Metrics]:
    """The loss of `a2c` for given targets. Output: of the rollout's first T time steps, or of all T + 1."""
    logits, value = (x[: len(targets.value)] for x in output)
    policy_loss = policy_gradient_loss(logits, rollout.steps.prev_action[1:], targets.advantage, targets.valid)
    return _with_value_and_entropy(policy_loss, logits, value, targets, value_cost, entropy_cost)


def clipped_actor_critic(
    output: AgentOutput, rollout: Rollout, targets: Targets, *, clip: float, value_cost: float, entropy_cost: float
) -> tuple[Tensor, Metrics]:
    """The loss of `ppo` for given targets. Output: of the rollout's first T time steps, or of all T + 1."""
    logits, value = (x[: len(targets.value)] for x in output)
    log_ratio = action_log_ratio(logits, rollout)
    policy_loss = clipped_policy_loss(log_ratio, targets.advantage, targets.valid, clip)
    loss, metrics = _with_value_and_entropy(policy_loss, logits, value, targets, value_cost, entropy_cost)
    log_ratio = log_ratio.detach()
    is_clipped = ((log_ratio.exp() - 1.0).abs() > clip).float()
    return loss, metrics | {
        "losses/clipfrac": masked_mean(is_clipped, targets.valid),
        "losses/approx_kl": approx_kl(log_ratio, targets.valid),
    }


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
    loss = masked_mean(-action_log_prob(policy_logits, targets.clamp(min=0)), asked)
    is_right = (policy_logits.detach().argmax(dim=-1) == targets) & asked
    nothing = torch.where(asked.any(), 0.0, torch.nan)
    return loss, {
        "losses/cross_entropy": loss.detach() + nothing,
        "charts/accuracy": is_right.sum() / asked.sum(),
        "charts/asked": asked.float().mean(),
    }


def _with_value_and_entropy(
    policy_loss: Tensor, logits: Tensor, value: Tensor, targets: Targets, value_cost: float, entropy_cost: float
) -> tuple[Tensor, Metrics]:
    value_term = value_loss(value, targets.value, targets.valid)
    entropy_term = masked_mean(entropy(logits), targets.valid)
    loss = policy_loss + value_cost * value_term - entropy_cost * entropy_term
    return loss, {
        "losses/policy_loss": policy_loss.detach(),
        "losses/value_loss": value_term.detach(),
        "losses/entropy": entropy_term.detach(),
        "losses/explained_variance": explained_variance(value.detach(), targets.value, targets.valid),
    }


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
    """Lambda-returns, and their excess over the values `[T+1, B]` of the T + 1 time steps.

    Args: as of `a2c`; over_learners: advantages are normalised over all learners' lanes; None: these are all lanes.
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
    """The transitions between time steps `[T+1, B, ...]`, of which the values are `[T+1, B]`."""
    weights = transition_weights(steps.is_first, steps.terminated, steps.truncated, discount, trace_lambda)
    value = value.detach()
    return Transitions(value[:-1], value[1:], steps.prev_reward[1:] * reward_scale, *weights)


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
        error_tm1 = delta_tm1 + discount_t * c_t * error_t,  with c_t = lambda_t * min(1, rho_tm1)
        target_tm1 = v_tm1 + error_tm1
        advantage_tm1 = r_t + discount_t * (v_t + lambda_t * error_t) - v_tm1
        weight_tm1 = min(clip_pg_rho, rho_tm1)

    With all ratios 1 the targets are the lambda-returns.

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


def action_log_ratio(policy_logits: Tensor, rollout: Rollout) -> Tensor:
    """log pi(a) - log pi_old(a), `[T, B]`, of the rollout's actions; of the logits the first T are looked at."""
    action = rollout.steps.prev_action[1:]
    now = action_log_prob(policy_logits[: len(action)], action)
    return now - action_log_prob(rollout.policy_logits, action)


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


def masked_mean(x: Tensor, valid: Tensor, over_learners: Sum | None = None) -> Tensor:
    """Mean of x where valid; 0 if nothing is. Values elsewhere are selected away, so NaN there does no harm to it."""
    total, count = torch.where(valid, x, 0.0).sum(), valid.sum()
    if over_learners is not None:
        total, count = over_learners(torch.stack([total, count]))
    return total / count.clamp(min=1)


def masked_variance(x: Tensor, valid: Tensor) -> Tensor:
    """Variance of x over the valid steps; NaN if there are none. Picking steps out would wait for the GPU."""
    deviation = torch.where(valid, x - masked_mean(x, valid), 0.0)
    return deviation.square().sum() / valid.sum()


def masked_normalize(x: Tensor, valid: Tensor, over_learners: Sum | None = None, epsilon: float = 1e-8) -> Tensor:
    """x brought to mean 0 and standard deviation 1 over the valid steps, 0 elsewhere."""
    mean = masked_mean(x, valid, over_learners)
    deviation = masked_mean((x - mean).square(), valid, over_learners).sqrt()
    return torch.where(valid, (x - mean) / (deviation + epsilon), 0.0)


def explained_variance(value: Tensor, target: Tensor, valid: Tensor) -> Tensor:
    """1 - Var(target - value) / Var(target) over the valid steps: 1 is perfect, 0 no better than a constant."""
    return 1.0 - masked_variance(target - value, valid) / masked_variance(target, valid).clamp(min=1e-8)
