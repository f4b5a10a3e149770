"""What the bridge to Stable-Baselines3 costs: a native vector environment, bare and as a VecEnv, stepped in turn.

    python benchmarks/sb3_bridge.py [--env minipacman] [--num-envs 4096] [--out FILE]

Every repeat steps both by the same random actions, drawn beforehand, from the same seeds; episodes end in them as they
come. The bare one resets at once too (SAME_STEP), as Stable-Baselines3 wants it. Ratios are within a repeat.
"""

import argparse
import statistics
import time
from pathlib import Path

import numpy as np
from reports import describe, machine, table, write

from rmc_agents.envs.factory import make_vector_env
from rmc_agents.sb3 import to_sb3
from rmc_agents.sb3.vec_env import cheapest_autoreset


def main() -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="minipacman")
    parser.add_argument("--num-envs", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=200, help="of every lane, per repeat")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "sb3-bridge")
    arguments = parser.parse_args()
    bare, wrapped = (
        make_vector_env(arguments.env, arguments.num_envs, autoreset_mode=cheapest_autoreset(arguments.env))
        for _ in range(2)
    )
    bridge = to_sb3(wrapped)
    bare.reset(seed=0)
    bridge.seed(0)
    bridge.reset()
    random = np.random.default_rng(0)
    seconds: dict[str, list[float]] = {"bare": [], "as a VecEnv": []}
    for _ in range(1 + arguments.repeats):
        shape = (arguments.steps, arguments.num_envs)
        actions = random.integers(0, bare.single_action_space.n, shape)  # type: ignore[attr-defined]
        for name, env in (("bare", bare), ("as a VecEnv", bridge)):
            began = time.perf_counter()
            for row in actions:
                env.step(row)
            seconds[name].append((time.perf_counter() - began) / actions.size)
    seconds = {name: values[1:] for name, values in seconds.items()}  # the first compiles
    ratios = [vec_env / alone for alone, vec_env in zip(*seconds.values(), strict=True)]
    here = machine()
    rows = [[name, f"{1e-6 / statistics.median(values):.2f}M"] for name, values in seconds.items()]
    text = (
        f"`python benchmarks/sb3_bridge.py --env {arguments.env}`: {arguments.num_envs:,} lanes, {arguments.repeats} "
        f"repeats of {arguments.steps} steps of each, in turn. On {describe(here)}\n\n"
        f"{table(['', 'steps/s'], rows)}\n\n"
        f"As a VecEnv a step takes {statistics.median(ratios):.2f} times as long "
        f"({min(ratios):.2f} to {max(ratios):.2f})."
    )
    print(text)
    write(arguments.out, {"machine": here, "settings": vars(arguments) | {"out": None}, "seconds": seconds}, text)


if __name__ == "__main__":
    main()
