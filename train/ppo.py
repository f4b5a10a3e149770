"""PPO: several passes over each rollout with a clipped objective (Schulman et al., 2017); whole sequences throughout.

Rollout, masks, targets and losses are A2C's. A minibatch is a share of the lanes, unrolled over all T steps from the
state that was stored when they were played, so that time is never cut anywhere but at a rollout's ends.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from rmc_agents import losses
from rmc_agents.config import TrainConfig
from rmc_agents.types import AgentOutput, Rollout, TimeStep, map_leaves

from .a2c import A2C, Metrics, Targets, actor_critic_loss, find_targets


class PPO(A2C):
    """As `A2C`, but for what is learned from a rollout."""

    def _optimize(self, rollout: Rollout) -> Metrics:
        """A step of the optimizer for each minibatch of each pass; returns the means of their scalars."""
        config = self.train
        targets = find_targets(rollout.value, self._bootstrap_value(rollout), rollout.steps, config)
        every: list[Metrics] = []
        for lanes in _minibatches(self.lanes.num_lanes, config.ppo_epochs, config.ppo_minibatches):
            part = _lanes_of(rollout, lanes)
            steps = TimeStep(*(field[:-1] for field in part.steps))
            output, _ = self.agent.unroll(steps, part.initial_state)
            loss, metrics = ppo_loss(output, part, Targets(*(field[:, lanes] for field in targets)), config)
            every.append(self._backward(loss, metrics))
            self._check_finite(every[-1])
            self._step()
        return {name: torch.stack([metrics[name] for metrics in every]).mean() for name in every[0]}


def ppo_loss(output: AgentOutput, rollout: Rollout, targets: Targets, config: TrainConfig) -> tuple[Tensor, Metrics]:
    """The clipped actor-critic loss, a mean over the transitions, and the scalars worth watching.

    Args:
      output: what the agent says by now to the rollout's first T time steps; the loss's gradient flows into it.
      rollout: what was done, and the logits with which it was chosen.
      targets: fixed for all passes.
      config: costs and clip.
    """
    action = rollout.steps.prev_action[1:]
    log_prob = losses.action_log_prob(output.policy_logits, action)
    log_ratio = log_prob - losses.action_log_prob(rollout.policy_logits, action)
    policy_loss = losses.clipped_policy_loss(log_ratio, targets.advantage, targets.valid, config.ppo_clip)
    loss, metrics = actor_critic_loss(policy_loss, output, targets, config)
    log_ratio = log_ratio.detach()
    is_clipped = ((log_ratio.exp() - 1.0).abs() > config.ppo_clip).float()
    return loss, metrics | {
        "losses/clipfrac": losses.masked_mean(is_clipped, targets.valid),
        "losses/approx_kl": losses.approx_kl(log_ratio, targets.valid),
    }


def _minibatches(num_lanes: int, epochs: int, minibatches: int) -> Iterator[Tensor]:
    """The lanes of each update: in every pass all of them, shuffled, in almost equal parts."""
    for _ in range(epochs):
        yield from torch.randperm(num_lanes).tensor_split(min(minibatches, num_lanes))


def _lanes_of(rollout: Rollout, lanes: Tensor) -> Rollout:
    """The rollout of some of its lanes."""
    return Rollout(
        TimeStep(*(field[:, lanes] for field in rollout.steps)),
        rollout.policy_logits[:, lanes],
        rollout.value[:, lanes],
        map_leaves(lambda leaf: leaf[lanes], rollout.initial_state),
    )
