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

from rmc_agents.losses.actor_critics import Metrics, a2c, actor_critic, clipped_actor_critic, ppo, vtrace
from rmc_agents.losses.masked import Sum, masked_mean, masked_normalize, masked_variance
from rmc_agents.losses.returns import (
    Targets,
    Transitions,
    TransitionWeights,
    VTrace,
    lambda_returns,
    lambda_targets,
    transition_weights,
    transitions,
    vtrace_targets,
)
from rmc_agents.losses.supervised import cross_entropy
from rmc_agents.losses.terms import (
    action_log_ratio,
    approx_kl,
    clipped_policy_loss,
    distribution_of,
    explained_variance,
    policy_gradient_loss,
    value_loss,
)

__all__ = [
    "Metrics",
    "Sum",
    "Targets",
    "TransitionWeights",
    "Transitions",
    "VTrace",
    "a2c",
    "action_log_ratio",
    "actor_critic",
    "approx_kl",
    "clipped_actor_critic",
    "clipped_policy_loss",
    "cross_entropy",
    "distribution_of",
    "explained_variance",
    "lambda_returns",
    "lambda_targets",
    "masked_mean",
    "masked_normalize",
    "masked_variance",
    "policy_gradient_loss",
    "ppo",
    "transition_weights",
    "transitions",
    "value_loss",
    "vtrace",
    "vtrace_targets",
]
