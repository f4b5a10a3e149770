"""Play a pretrained agent step by step; the Player keeps its recurrent state."""

import sys

import gymnasium as gym
import torch

import rmc_agents as rmc


def main(steps: int = 200) -> None:
    """Play MiniPacman, and print the return."""
    torch.set_num_threads(1)  # as rmc-evaluate does; several are much slower when other programs use the cores
    player = rmc.Player(rmc.load("minipacman-rmc"), seed=0)
    env = gym.make("rmc_agents.envs:MiniPacman-v0")
    obs, _ = env.reset(seed=0)
    action = player.act(obs)  # an episode's first observation comes without a reward
    episodes, score = 0, 0.0
    for _ in range(steps):
        obs, reward, terminated, truncated, _ = env.step(action)
        score += float(reward)
        if terminated or truncated:
            obs, _ = env.reset()
            episodes += 1
        action = player.act(obs, reward, terminated, truncated)
    print(f"{steps} steps, {episodes} episodes ended, reward {score:.0f}")
    print(
        f"where the memory's slots looked last, [blocks, heads, slots, slots + input]: {tuple(player.attention.shape)}"
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
