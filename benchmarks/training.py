"""Whole training, everything included: frames per second, and where the time goes.

    python benchmarks/training.py [--cores rmc lstm none] [--threads 1 2] [--json FILE]

Times are medians over repeats; a matrix product of the same run tells how fast the machine was meanwhile.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from rmc_agents.config import Config
from rmc_agents.train.a2c import A2C, a2c_loss


def product_rate(size: int = 1024, repeats: int = 10) -> float:
    """GFLOP/s of a square float32 matrix product."""
    x = torch.randn(size, size)
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        x @ x
        seconds.append(time.perf_counter() - began)
    return 2 * size**3 / statistics.median(seconds) / 1e9


def measure(core: str, threads: int, updates: int, settings: dict[str, Any]) -> dict[str, Any]:
    """Frames per second of `updates` updates after a warm-up, and the share of time of each part."""
    torch.set_num_threads(threads)
    trainer = A2C(Config().updated({"core": core, **settings}, "benchmark"), torch.device("cpu"))
    for _ in range(3):
        trainer.update()
    frames = trainer.train.unroll_length * trainer.lanes.num_lanes
    parts: dict[str, list[float]] = {"whole": [], "environment": [], "acting": [], "forward": [], "backward": []}
    for _ in range(updates):
        began = time.perf_counter()
        trainer.update()
        parts["whole"].append(time.perf_counter() - began)
        measure_parts(trainer, parts)
    median = {name: statistics.median(seconds) for name, seconds in parts.items()}
    speeds = [frames / seconds for seconds in parts["whole"]]
    return {
        "core": core,
        "threads": threads,
        "frames_per_second": frames / median["whole"],
        "slowest": min(speeds),
        "fastest": max(speeds),
        "milliseconds": {name: 1e3 * seconds for name, seconds in median.items()},
        "product_gflops": product_rate(),
    }


def measure_parts(trainer: A2C, parts: dict[str, list[float]]) -> None:
    """The parts of one update, each done once more by itself."""
    lanes, length = trainer.lanes, trainer.train.unroll_length
    action = torch.zeros(lanes.num_lanes, dtype=torch.int64)
    began = time.perf_counter()
    for _ in range(length):
        lanes.step(action)
    parts["environment"].append(time.perf_counter() - began)
    began = time.perf_counter()
    rollout = trainer.collector.collect()
    parts["acting"].append(time.perf_counter() - began - parts["environment"][-1])
    began = time.perf_counter()
    loss, _ = a2c_loss(trainer.agent, rollout, trainer.train)
    forward = time.perf_counter()
    loss.backward()
    parts["forward"].append(forward - began)
    parts["backward"].append(time.perf_counter() - forward)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cores", nargs="+", default=["rmc", "lstm", "none"])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--num-envs", type=int, default=Config().env.num_envs)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    table = Table("core", "threads", "frames/s", "slowest-fastest", "environment", "acting", "forward", "backward")
    results = []
    for core in arguments.cores:
        for threads in arguments.threads:
            result = measure(core, threads, arguments.updates, {"num_envs": arguments.num_envs})
            results.append(result)
            times = result["milliseconds"]
            table.add_row(
                core,
                str(threads),
                f"{result['frames_per_second']:,.0f}",
                f"{result['slowest']:,.0f}-{result['fastest']:,.0f}",
                *(f"{times[part]:.1f} ms" for part in ("environment", "acting", "forward", "backward")),
            )
    console = Console()
    console.print(table)
    rates = ", ".join(f"{result['product_gflops']:.0f}" for result in results)
    console.print(f"matrix product meanwhile: {rates} GFLOP/s")
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
