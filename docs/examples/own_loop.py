"""A2C with a recurrent core, in your own loop."""

import sys

import numpy as np
import torch

import rmc_agents as rmc


def main(updates: int = 600) -> None:
    """Train on recall, and evaluate."""
    torch.set_num_threads(1)  # as rmc-train does; several are much slower when other programs use the cores
    torch.manual_seed(0)
    env = rmc.make_env("recall", 32)
    agent = rmc.ActorCritic(rmc.SpaceSpec.of(env), core=rmc.LSTM)
    collector, optimizer = rmc.Collector(agent, env, unroll_length=10), torch.optim.Adam(agent.parameters(), 1e-3)
    for update in range(updates):
        rollout = collector.collect()
        output, _ = agent.unroll(rollout.steps, rollout.initial_state)  # [T+1, B, ...]
        loss, metrics = rmc.losses.a2c(output, rollout, discount=0.99)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(agent.parameters(), 5.0)
        optimizer.step()
        episodes = collector.lanes.take_episodes()  # those that have ended; not taken, they accumulate
        if update % 100 == 0:
            mean_return = np.mean([episode.episode_return for episode in episodes])
            others = ", ".join(f"{name} {value:.3f}" for name, value in metrics.items())
            print(f"update {update}: return {mean_return:.2f}, {others}")
    print(f"mean return {rmc.evaluate(agent, 'recall', episodes=100).mean_return:.2f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
