"""Returns and losses: pure functions of tensors `[T, B]`, T steps of B lanes.

`a2c`, `ppo` and `vtrace` are complete losses of a rollout and the agent's current output for it. The other functions
are their parts: targets (`returns`), loss terms (`terms`) and masked statistics (`masked`).

    output, _ = agent.unroll(rollout.steps, rollout.initial_state)
    loss, metrics = losses.a2c(output, rollout, discount=0.99)

Suffixes are time indices: a transition leads from step tm1 (t - 1) to step t. `r_t` and `discount_t` belong to step t;
`v_tm1` and `v_t` are the values of the observations at both ends. All arguments hold the transitions in order: row i of
`v_t` is row i + 1 of `v_tm1`.

Episodes end inside a rollout. A terminated episode has `discount_t = 0` on its last transition. A truncated one keeps
its discount, to bootstrap from the value of its last observation, but `lambda_t = 0` cuts the trace there: the next
step is the filler that leads to the next episode, and no sum may include it. `valid` excludes the filler from every
loss. `transition_weights` computes all three from the episode flags.
"""

from .actor_critics import Metrics, a2c, actor_critic, clipped_actor_critic, ppo, vtrace
from .masked import Sum, masked_mean, masked_normalize, masked_variance
from .returns import (
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
from .supervised import cross_entropy
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
    "reward_loss",
    "transition_weights",
    "transitions",
    "value_loss",
    "vtrace",
    "vtrace_targets",
]
