"""The native engine of MiniGrid's MemoryEnv compared with minigrid's own environments: equal results, and the speedup.

    python -m benchmarks.speed.memory [--check-steps N] [--rounds N] [--json FILE]

First every variant plays N steps with both, mostly forward, and all results are compared bit for bit. Then both are
timed in turn with pre-drawn uniform random actions, resets included.
"""

import argparse
import json
import platform
import statistics
from pathlib import Path
from typing import Any

import minigrid
import numpy as np

from benchmarks.speed.envs import environment_rate
from rmc_agents.envs.registry import make_vector_env

VARIANTS = ("memory-s7", "memory-s9", "memory-s11", "memory-s13", "memory-s13-random", "memory-s17-random")
CHECKED_LANES = 16
TIMED = {"native": (1024, 400), "minigrid": (16, 60)}
"""Lanes and steps of one measurement: minigrid's rate does not depend on the lanes."""


def check(name: str, steps: int) -> dict[str, int]:
    """Plays `steps` lane steps with both; returns how many episodes ended, and how many of them with success.

    Raises:
        AssertionError: at the first difference.
    """
    native, reference = (make_vector_env(name, CHECKED_LANES, backend=backend) for backend in ("native", "minigrid"))
    random = np.random.default_rng(0)
    np.testing.assert_array_equal(native.reset(seed=0)[0], reference.reset(seed=0)[0])
    counts = {"steps": 0, "episodes": 0, "successes": 0}
    while counts["steps"] < steps:
        actions = random.choice(3, CHECKED_LANES, p=[0.2, 0.2, 0.6])
        received, expected = native.step(actions), reference.step(actions)
        for what, one, other in zip(("observations", "rewards", "terminated", "truncated"), received, expected):  # noqa: B905
            np.testing.assert_array_equal(one, other, f"{name}, {what} after {counts['steps']} steps")
        np.testing.assert_equal(received[4], expected[4])
        counts["steps"] += CHECKED_LANES
        counts["episodes"] += int((received[2] | received[3]).sum())
        counts["successes"] += int((received[1] > 0).sum())
    return counts


def compare(name: str, rounds: int) -> dict[str, list[float]]:
    """Steps per second of both, one measurement of each a round."""
    measures = {
        backend: environment_rate(make_vector_env(name, lanes, backend=backend), steps)  # type: ignore[arg-type]
        for backend, (lanes, steps) in TIMED.items()
    }
    rates: dict[str, list[float]] = {backend: [] for backend in measures}
    for _ in range(rounds):
        for backend, measure in measures.items():
            rates[backend].append(measure())
    return rates


def main() -> None:
    """Checks, measures, prints, and writes the JSON file if one was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check-steps", type=int, default=50_000, help="lane steps compared of each variant")
    parser.add_argument("--rounds", type=int, default=9, help="measurements of each; 0: none")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()

    results: dict[str, Any] = {"machine": platform.machine(), "minigrid": minigrid.__version__, "timed": TIMED}
    for name in VARIANTS:
        results[name] = {"checked": check(name, arguments.check_steps)}
        print(f"{name:20} bitwise equal: {results[name]['checked']}", flush=True)
    for name in VARIANTS if arguments.rounds else ():
        rates = results[name]["rates"] = compare(name, arguments.rounds)
        native, slow = (statistics.median(rates[backend]) for backend in ("native", "minigrid"))
        low, high = min(rates["native"]), max(rates["native"])
        print(
            f"{name:20} native, {TIMED['native'][0]} lanes: {native / 1e6:.2f} ({low / 1e6:.2f} to {high / 1e6:.2f}) "
            f"million steps/s; minigrid, {TIMED['minigrid'][0]} lanes: {slow:,.0f}; {native / slow:,.0f} times",
            flush=True,
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
