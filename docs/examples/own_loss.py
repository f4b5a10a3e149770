"""A loss of your own: A2C's, written out."""

import torch

import rmc_agents as rmc


def loss_of(output: rmc.AgentOutput, rollout: rmc.Rollout) -> torch.Tensor:
    """Policy gradient, squared error of the values, entropy: means over the real transitions."""
    targets = rmc.losses.lambda_targets(output.value, rollout.steps, discount=0.99)  # value, advantage, valid: [T, B]
    policy = rollout.distribution(output.policy_logits[:-1])
    log_prob = policy.log_prob(rollout.steps.prev_action[1:])
    terms = -log_prob * targets.advantage + 0.25 * (targets.value - output.value[:-1]) ** 2 - 0.01 * policy.entropy()
    return rmc.losses.masked_mean(terms, targets.valid)


env = rmc.make_env("recall", 32)
agent = rmc.ActorCritic(rmc.SpaceSpec.of(env), core=rmc.GRU)
rollout = rmc.Collector(agent, env, unroll_length=10).collect()
output, _ = agent.unroll(rollout.steps, rollout.initial_state)  # [T+1, B, ...]
expected, _ = rmc.losses.a2c(output, rollout, discount=0.99)
torch.testing.assert_close(loss_of(output, rollout), expected)
print(f"both losses are {expected.item():.3f}")
