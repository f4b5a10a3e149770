"""The complete losses of A2C, PPO and IMPALA: from a rollout and the agent's output for it to one scalar."""

import torch
from torch import Tensor

from rmc_agents.types import AgentOutput, Distribution, OutputWithRewards, Rollout, UnrollOutput, at

from .masked import masked_mean, masked_normalize
from .returns import Targets, lambda_targets, transitions, vtrace_targets
from .terms import (
    action_log_ratio,
    approx_kl,
    clipped_policy_loss,
    distribution_of,
    explained_variance,
    policy_gradient_loss,
    reward_loss,
    value_loss,
)

Metrics = dict[str, Tensor]
"""Scalars without gradient, by their TensorBoard names."""


def _check(output: UnrollOutput, rollout: Rollout) -> None:
    for name, value, kinds in (("output", output, (AgentOutput, OutputWithRewards)), ("rollout", rollout, (Rollout,))):
        if not isinstance(value, kinds):
            raise ValueError(f"{name}: expected {kinds[0].__name__}, got {type(value).__name__}")
    expected, got = list(rollout.steps.is_first.shape), list(output.value.shape)
    if got != expected:
        raise ValueError(f"output: expected that of all steps of rollout.steps, with values {expected}, got {got}")


def a2c(
    output: UnrollOutput,
    rollout: Rollout,
    *,
    discount: float,
    trace_lambda: float = 0.95,
    reward_scale: float = 1.0,
    normalize_advantages: bool = True,
    value_cost: float = 0.5,
    entropy_cost: float = 0.01,
    reward_cost: float = 10.0,
) -> tuple[Tensor, Metrics]:
    """The loss of A2C (Mnih et al., 2016): policy gradient + value_cost * value loss - entropy_cost * entropy, and
    + reward_cost * reward loss if the agent predicts rewards.

    All are means over the rollout's real transitions. The gradient is correct only for the weights that acted.

    Args:
      output: the unroll of `rollout.steps`, `[T+1, B, ...]`; the last value is the bootstrap value, without gradient.
      rollout: T steps of B lanes.
      discount: reward discount per step.
      trace_lambda: lambda of the lambda-returns: 0 is one-step TD, 1 is Monte Carlo up to the end of the rollout.
      reward_scale: rewards are multiplied by this first.
      normalize_advantages: normalise them to mean 0 and standard deviation 1.
      value_cost, entropy_cost, reward_cost: weights of the terms.

    Returns:
      The loss, a scalar, and metrics.
    """
    _check(output, rollout)
    targets = lambda_targets(
        output.value,
        rollout.steps,
        discount=discount,
        trace_lambda=trace_lambda,
        reward_scale=reward_scale,
        normalize_advantages=normalize_advantages,
    )
    return actor_critic(
        output, rollout, targets, value_cost=value_cost, entropy_cost=entropy_cost, reward_cost=reward_cost
    )


def ppo(
    output: UnrollOutput,
    rollout: Rollout,
    *,
    discount: float,
    clip: float = 0.2,
    trace_lambda: float = 0.95,
    reward_scale: float = 1.0,
    normalize_advantages: bool = True,
    value_cost: float = 0.5,
    entropy_cost: float = 0.01,
    reward_cost: float = 10.0,
) -> tuple[Tensor, Metrics]:
    """The loss of PPO (Schulman et al., 2017, eq. 9, without value clipping); other arguments as in `a2c`.

    Targets come from `rollout.value` and the last value of the output. For several updates per rollout, compute them
    once with `lambda_targets` and call `clipped_actor_critic`.

    Args:
      clip: clip range of the ratio pi(a) / pi_old(a) around 1.
    """
    _check(output, rollout)
    targets = lambda_targets(
        torch.cat([rollout.value, output.value[-1:]]),
        rollout.steps,
        discount=discount,
        trace_lambda=trace_lambda,
        reward_scale=reward_scale,
        normalize_advantages=normalize_advantages,
    )
    return clipped_actor_critic(
        output, rollout, targets, clip=clip, value_cost=value_cost, entropy_cost=entropy_cost, reward_cost=reward_cost
    )


def vtrace(
    output: UnrollOutput,
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
    reward_cost: float = 10.0,
) -> tuple[Tensor, Metrics]:
    """The loss of IMPALA (Espeholt et al., 2018): `a2c` with V-trace, for a rollout made with older weights.

    With the same weights, and clipping thresholds of at least 1, it equals `a2c`. Arguments as in `a2c` and
    `vtrace_targets`.
    """
    _check(output, rollout)
    t = transitions(output.value, rollout.steps, discount, trace_lambda, reward_scale)
    log_ratio = action_log_ratio(distribution_of(rollout, output.policy_logits.detach()), rollout)
    corrected = vtrace_targets(
        t.v_tm1, t.v_t, t.r_t, t.discount_t, torch.where(t.valid, log_ratio, 0.0), t.lambda_t, clip_rho, clip_pg_rho
    )
    # Normalise before weighting: subtracting the mean afterwards would give steps of weight 0 an advantage.
    advantage = masked_normalize(corrected.advantages, t.valid) if normalize_advantages else corrected.advantages
    targets = Targets(corrected.targets, corrected.weights * advantage, t.valid)
    loss, metrics = actor_critic(
        output, rollout, targets, value_cost=value_cost, entropy_cost=entropy_cost, reward_cost=reward_cost
    )
    ratio = log_ratio.exp()
    return loss, metrics | {
        "losses/rho_mean": masked_mean(ratio, t.valid),
        "losses/rho_clipfrac": masked_mean((ratio > clip_rho).float(), t.valid),
        "losses/approx_kl": approx_kl(log_ratio, t.valid),
    }


def actor_critic(
    output: UnrollOutput,
    rollout: Rollout,
    targets: Targets,
    *,
    value_cost: float,
    entropy_cost: float,
    reward_cost: float = 10.0,
) -> tuple[Tensor, Metrics]:
    """The loss of `a2c` for given targets. Output: of the rollout's first T time steps, or of all T + 1."""
    output = at(output, slice(len(targets.value)))
    policy = distribution_of(rollout, output.policy_logits)
    log_prob = policy.log_prob(rollout.steps.prev_action[1:])
    policy_loss = policy_gradient_loss(log_prob, targets.advantage, targets.valid)
    return _with_other_terms(policy_loss, policy, output, rollout, targets, value_cost, entropy_cost, reward_cost)


def clipped_actor_critic(
    output: UnrollOutput,
    rollout: Rollout,
    targets: Targets,
    *,
    clip: float,
    value_cost: float,
    entropy_cost: float,
    reward_cost: float = 10.0,
) -> tuple[Tensor, Metrics]:
    """The loss of `ppo` for given targets. Output: of the rollout's first T time steps, or of all T + 1."""
    output = at(output, slice(len(targets.value)))
    policy = distribution_of(rollout, output.policy_logits)
    log_ratio = action_log_ratio(policy, rollout)
    policy_loss = clipped_policy_loss(log_ratio, targets.advantage, targets.valid, clip)
    loss, metrics = _with_other_terms(
        policy_loss, policy, output, rollout, targets, value_cost, entropy_cost, reward_cost
    )
    log_ratio = log_ratio.detach()
    is_clipped = ((log_ratio.exp() - 1.0).abs() > clip).float()
    return loss, metrics | {
        "losses/clipfrac": masked_mean(is_clipped, targets.valid),
        "losses/approx_kl": approx_kl(log_ratio, targets.valid),
    }


def _with_other_terms(
    policy_loss: Tensor,
    policy: Distribution,
    output: UnrollOutput,
    rollout: Rollout,
    targets: Targets,
    value_cost: float,
    entropy_cost: float,
    reward_cost: float,
) -> tuple[Tensor, Metrics]:
    value_term = value_loss(output.value, targets.value, targets.valid)
    entropy_term = masked_mean(policy.entropy(), targets.valid)
    loss = policy_loss + value_cost * value_term - entropy_cost * entropy_term
    metrics = {
        "losses/policy_loss": policy_loss.detach(),
        "losses/value_loss": value_term.detach(),
        "losses/entropy": entropy_term.detach(),
        "losses/explained_variance": explained_variance(output.value.detach(), targets.value, targets.valid),
    }
    if isinstance(output, AgentOutput):
        return loss, metrics
    reward_term = reward_loss(output.reward, rollout.steps, targets.valid)
    return loss + reward_cost * reward_term, metrics | {"losses/reward_loss": reward_term.detach()}
