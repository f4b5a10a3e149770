"""Steps per second of the native vector environments on one core, and of CartPole with and without our checks.

    python -m benchmarks.speed.envs [--json FILE]

Every repeat plays equally many steps with pre-drawn actions. Episodes end and restart as in training, so resets are
included. A memory copy and a matrix product, measured in between, show how fast the machine was.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import gymnasium as gym
import numpy as np
from gymnasium.vector import SyncVectorEnv, VectorEnv

from rmc_agents.envs.boxworld import BoxWorldVectorEnv
from rmc_agents.envs.minipacman.env import MiniPacmanVectorEnv
from rmc_agents.envs.registry import make_vector_env

LANES, STEPS, REPEATS = 4096, 300, 9
SEQUENCES, SEQUENCE_LANES = ("nth-farthest", "program", "program-copy", f"text:{Path(__file__).parent.parent}"), 1024
PYTHON_LANES = 64


def seconds(work: Callable[[], object]) -> float:
    """Wall-clock time of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def environment_rate(env: VectorEnv, steps: int = STEPS) -> Callable[[], float]:
    """A measurement, in steps of one lane per second, of `steps` steps of a warmed-up environment."""
    num_actions = int(env.single_action_space.n)  # type: ignore[attr-defined]
    actions = np.random.default_rng(0).integers(0, num_actions, (steps, env.num_envs))
    env.reset(seed=0)

    def play() -> None:
        for row in actions:
            env.step(row)

    play()
    return lambda: steps * env.num_envs / seconds(play)


def copy_rate() -> float:
    """Memory copied, in bytes per second (64 MiB, more than the caches hold)."""
    source = np.ones(1 << 23)
    target = np.empty_like(source)
    target[:] = source
    return source.nbytes / seconds(lambda: np.copyto(target, source))


def product_rate() -> float:
    """Floating-point operations per second of a float32 matrix product on one thread."""
    matrix = np.ones((1024, 1024), np.float32)
    return 2 * 1024**3 / seconds(lambda: matrix @ matrix)


def main() -> None:
    """Measures, prints, and writes the JSON file if one was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()

    measurements: dict[str, Callable[[], float]] = {}
    for mode, viewport in (("regular", 5), ("hunt", 5), ("regular", None)):
        seen = "full map" if viewport is None else f"{viewport}x{viewport} viewport"
        measurements[f"MiniPacman {mode}, {seen} (steps/s)"] = environment_rate(
            MiniPacmanVectorEnv(LANES, mode, viewport)
        )
    for viewport in (5, None):
        seen = "whole room" if viewport is None else f"{viewport}x{viewport} viewport"
        measurements[f"BoxWorld, {seen} (steps/s)"] = environment_rate(BoxWorldVectorEnv(LANES, viewport=viewport))
    for name in SEQUENCES:
        title = f"{name.partition(':')[0]}, {SEQUENCE_LANES} lanes (steps/s)"
        measurements[title] = environment_rate(make_vector_env(name, SEQUENCE_LANES))
    cart_poles = {
        "CartPole-v1": make_vector_env("CartPole-v1", PYTHON_LANES),
        "CartPole-v1, gymnasium's lanes": SyncVectorEnv([lambda: gym.make("CartPole-v1")] * PYTHON_LANES),
    }
    for name, env in cart_poles.items():
        measurements[f"{name}, {PYTHON_LANES} lanes (steps/s)"] = environment_rate(env)
    measurements["memory copy (bytes/s)"] = copy_rate
    measurements["float32 matrix product (operations/s)"] = product_rate
    rates: dict[str, list[float]] = {name: [] for name in measurements}
    for _ in range(REPEATS):
        for name, measure in measurements.items():
            rates[name].append(measure())

    print(f"{LANES} lanes unless stated otherwise, one thread, {REPEATS} repeats of {STEPS} steps with random actions,")
    print("resets included; millions:")
    for name, values in rates.items():
        median, low, high = (value / 1e6 for value in (statistics.median(values), min(values), max(values)))
        print(f"{name:48} {median:10.3f}   ({low:.3f} .. {high:.3f})")
    if arguments.json:
        machine = {"machine": platform.machine(), "python": platform.python_version(), "numpy": np.__version__}
        setting = {"lanes": LANES, "steps": STEPS, "repeats": REPEATS, "resets_included": True}
        arguments.json.write_text(json.dumps({**machine, **setting, "rates": rates}, indent=1) + "\n")


if __name__ == "__main__":
    main()
