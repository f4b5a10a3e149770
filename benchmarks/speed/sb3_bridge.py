"""The cost of the bridge to Stable-Baselines3: a native vector environment, bare and as a VecEnv, stepped in turn.

    python -m benchmarks.speed.sb3_bridge [--env minipacman] [--pretrained minipacman-none] [--num-envs 4096]
                                           [--out FILE]

Every repeat steps both with the same pre-drawn actions from the same seeds; the bridge adds work for episodes that end.
Actions are random, or those of a pretrained policy, which has longer episodes. The bare environment also resets in the
same step (SAME_STEP), as Stable-Baselines3 requires. Ratios are within a repeat.
"""

import argparse
import shlex
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from benchmarks.reports import describe, machine, table, write
from rmc_agents import pretrained
from rmc_agents.distributions import Categorical
from rmc_agents.envs.registry import make_vector_env
from rmc_agents.runs.saved import load_agent
from rmc_agents.sb3 import to_sb3
from rmc_agents.sb3.vec_env import cheapest_autoreset
from rmc_agents.types import TimeStep

CPU = torch.device("cpu")


def main() -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="minipacman")
    parser.add_argument("--pretrained", choices=pretrained.names(), help="whose actions; random ones if not given")
    parser.add_argument("--num-envs", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=200, help="of every lane, per repeat")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "results" / "sb3-bridge")
    arguments = parser.parse_args()
    bare, wrapped, played = (
        make_vector_env(arguments.env, arguments.num_envs, autoreset_mode=cheapest_autoreset(arguments.env))
        for _ in range(3)
    )
    source = _random_actions(played) if arguments.pretrained is None else _actions_of(arguments.pretrained, played)
    bridge = to_sb3(wrapped)
    bare.reset(seed=0)
    bridge.seed(0)
    bridge.reset()
    seconds: dict[str, list[float]] = {"bare": [], "as a VecEnv": []}
    for _ in range(1 + arguments.repeats):
        actions = [next(source) for _ in range(arguments.steps)]
        for name, env in (("bare", bare), ("as a VecEnv", bridge)):
            began = time.perf_counter()
            for row in actions:
                env.step(row)
            seconds[name].append((time.perf_counter() - began) / (arguments.steps * arguments.num_envs))
    seconds = {name: values[1:] for name, values in seconds.items()}  # the first compiles
    ratios = [vec_env / alone for alone, vec_env in zip(*seconds.values(), strict=True)]
    here = machine()
    command = shlex.join(["python", "-m", __spec__.name, *sys.argv[1:]])
    rows = [[name, f"{1e-6 / statistics.median(values):.2f}M"] for name, values in seconds.items()]
    text = (
        f"`{command}`: {arguments.num_envs:,} lanes, "
        f"{arguments.repeats} repeats of {arguments.steps} steps of each, in turn. On {describe(here)}\n\n"
        f"{table(['', 'steps/s'], rows)}\n\n"
        f"As a VecEnv a step takes {statistics.median(ratios):.2f} times as long: the median of each repeat's ratio "
        f"({min(ratios):.2f} to {max(ratios):.2f})."
    )
    print(text)
    write(arguments.out, {"machine": here, "settings": vars(arguments) | {"out": None}, "seconds": seconds}, text)


def _random_actions(env: VectorEnv) -> Iterator[NDArray[np.int64]]:
    random = np.random.default_rng(0)
    while True:
        yield random.integers(0, env.single_action_space.n, env.num_envs)  # type: ignore[attr-defined]


@torch.no_grad()
def _actions_of(name: str, env: VectorEnv) -> Iterator[NDArray[np.int64]]:
    """A policy's actions in its own lanes."""
    agent = load_agent(pretrained.find(name), CPU).agent
    state = agent.initial_state(env.num_envs)
    generator = torch.Generator().manual_seed(0)
    obs, _ = env.reset(seed=0)
    action, ended = np.zeros(env.num_envs, np.int64), np.ones(env.num_envs, bool)
    reward = np.zeros(env.num_envs)
    while True:
        fields = (torch.from_numpy(x.copy()) for x in (obs, ended, action, reward.astype(np.float32), ended, ended))
        output, state = agent.step(TimeStep(*fields), state)
        action = Categorical(output.policy_logits).sample(generator).numpy()
        yield action
        obs, reward, terminated, truncated, _ = env.step(action)
        ended = terminated | truncated


if __name__ == "__main__":
    main()
