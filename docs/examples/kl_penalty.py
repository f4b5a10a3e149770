"""A loss of your own in rmc-train: a penalty on the change of the policy, instead of PPO's clipping."""

import sys

from torch import Tensor

import rmc_agents as rmc


def kl_penalty(
    agent: rmc.ActorCritic, rollout: rmc.Rollout, targets: rmc.losses.Targets, *, weight: float = 1.0
) -> tuple[Tensor, dict[str, Tensor]]:
    """The policy gradient, and the KL divergence from the policy that acted."""
    output, _ = agent.unroll(rollout.steps, rollout.initial_state)  # [T+1, B, ...]
    loss, metrics = rmc.losses.actor_critic(output, rollout, targets, value_cost=0.5, entropy_cost=0.03)
    acted, now = rollout.distribution(rollout.policy_logits), rollout.distribution(output.policy_logits[:-1])
    kl = rmc.losses.masked_mean(acted.kl(now), targets.valid)
    return loss + weight * kl, metrics | {"losses/kl": kl}


rmc.register_loss("kl-penalty", kl_penalty)  # here, so that commands find it with --import kl_penalty


def main(frames: int = 1_000_000) -> None:
    """Train with it on recall, and evaluate."""
    settings = {"env": "recall", "core": "lstm", "loss": "kl-penalty", "loss_args": {"weight": 0.5}}
    run = rmc.train(settings | {"total_frames": frames, "video": False})
    print(f"mean return {rmc.evaluate(rmc.load(run.path), episodes=100).mean_return:.2f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
