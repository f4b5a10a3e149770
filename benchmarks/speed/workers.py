"""Steps per second of an environment without a native engine: in one process, and in worker processes.

    python -m benchmarks.speed.workers [--env MiniGrid-KeyCorridorS3R1-v0] [--num-envs 64] [--workers 1 2] [--json FILE]

Each repeat steps every arrangement in turn with the same pre-drawn actions; episodes end and restart as in training, so
resets are included. Reported are medians over the repeats. The process that waits for the workers uses almost no CPU
time, so the speedup is at most the number of cores; workers without their own core show the cost of the messages.
"""

import argparse
import json
import os
import statistics
import time
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
from gymnasium.vector import VectorEnv
from rich.console import Console
from rich.table import Table

from rmc_agents.envs.registry import make_vector_env


def measure(env: VectorEnv, actions: np.ndarray) -> float:
    """Steps of one lane per second, over actions `[T, N]`."""
    start = time.perf_counter()
    for row in actions:
        env.step(row)
    return actions.size / (time.perf_counter() - start)


def main() -> None:
    """Measures, prints, and writes the JSON file if one was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="MiniGrid-KeyCorridorS3R1-v0")
    parser.add_argument("--num-envs", type=int, default=64)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--steps", type=int, default=200, help="of every lane, per repeat")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    rates: dict[int, list[float]] = {workers: [] for workers in [0, *arguments.workers]}
    with ExitStack() as stack:
        envs = {
            workers: stack.enter_context(closing(make_vector_env(arguments.env, arguments.num_envs, None, workers)))
            for workers in rates
        }
        num_actions = envs[0].single_action_space.n  # type: ignore[attr-defined]
        actions = np.random.default_rng(0).integers(0, num_actions, (arguments.steps, arguments.num_envs))
        for env in envs.values():
            env.reset(seed=0)
            measure(env, actions[: max(1, arguments.steps // 10)])
        for _ in range(arguments.repeats):
            for workers, env in envs.items():
                rates[workers].append(measure(env, actions))
    show(arguments, rates)
    if arguments.json:
        setting = {name: getattr(arguments, name) for name in ("env", "num_envs", "steps", "repeats")}
        report = {**setting, "cores": os.cpu_count(), "steps_per_second": {str(k): v for k, v in rates.items()}}
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")


def show(arguments: argparse.Namespace, rates: dict[int, list[float]]) -> None:
    """A row for each number of workers; the ratio is the median of the repeats' own."""
    title = f"{arguments.env}, {arguments.num_envs} lanes, {os.cpu_count()} cores"
    table = Table("workers", "steps/s", "lowest", "highest", "of one process", title=title)
    for workers, values in rates.items():
        ratio = statistics.median(a / b for a, b in zip(values, rates[0], strict=True))
        name = str(workers) if workers else "none"
        table.add_row(name, *(f"{f(values):,.0f}" for f in (statistics.median, min, max)), f"{ratio:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
