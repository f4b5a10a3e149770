"""A loss of your own: A2C's, written out."""

import sys

import torch

import rmc_agents as rmc


def loss_of(output: rmc.AgentOutput, rollout: rmc.Rollout) -> torch.Tensor:
    """Policy gradient, squared error of the values, entropy: means over the real transitions."""
    targets = rmc.losses.lambda_targets(output.value, rollout.steps, discount=0.99)  # value, advantage, valid: [T, B]
    policy = rollout.distribution(output.policy_logits[:-1])
    log_prob = policy.log_prob(rollout.steps.prev_action[1:])
    terms = -log_prob * targets.advantage + 0.25 * (targets.value - output.value[:-1]) ** 2 - 0.01 * policy.entropy()
    return rmc.losses.masked_mean(terms, targets.valid)


def main(updates: int = 600) -> None:
    """Train on recall, and evaluate."""
    torch.manual_seed(0)
    env = rmc.make_env("recall", 32)
    agent = rmc.ActorCritic(rmc.SpaceSpec.of(env), core=rmc.GRU)
    collector, optimizer = rmc.Collector(agent, env, unroll_length=10), torch.optim.Adam(agent.parameters(), 1e-3)
    for _ in range(updates):
        rollout = collector.collect()
        output, _ = agent.unroll(rollout.steps, rollout.initial_state)  # [T+1, B, ...]
        optimizer.zero_grad()
        loss_of(output, rollout).backward()
        torch.nn.utils.clip_grad_norm_(agent.parameters(), 5.0)
        optimizer.step()
    print(f"mean return {rmc.evaluate(agent, 'recall', episodes=100).mean_return:.2f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
