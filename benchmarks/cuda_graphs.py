"""Training with and without CUDA graphs: frames per second, and for how much of the time the GPU does nothing.

    python benchmarks/cuda_graphs.py [--core rmc] [--backend triton] [--lanes 1024 4096 16384] [--json FILE]

The GPU's work is what the profiler counts of a few updates, kernels and copies; it is idle for the rest of an update
that is timed without the profiler. Environment: the lanes stepped by a fixed action, for as many steps as an update.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from rmc_agents import command_line
from rmc_agents.config import Config
from rmc_agents.runs import checkpoint
from rmc_agents.runs.saved import pick_device
from rmc_agents.train.a2c import A2C

WARM_UP = 6  # updates: graphs are captured at the fourth
PROFILED = 3  # updates


def seconds_of(run: Callable[[], object], at_least: float, device: torch.device) -> float:
    """Mean time of a run, over as many as fill so many seconds."""
    wait(device)
    began, runs = time.perf_counter(), 0
    while time.perf_counter() - began < at_least:
        run()
        runs += 1
    wait(device)
    return (time.perf_counter() - began) / runs


def busy_seconds(run: Callable[[], object], device: torch.device) -> float | None:
    """How long the GPU works in a run; None if there is none, or the profiler saw nothing of it."""
    if device.type != "cuda":
        return None
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        for _ in range(PROFILED):
            run()
        wait(device)
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in profiler.events()
        if event.device_type == DeviceType.CUDA and not getattr(event, "is_user_annotation", False)
        if not event.name.startswith("Optimizer.")  # an annotation too: it spans gaps
    )
    busy, until = 0.0, float("-inf")
    for start, end in spans:  # microseconds; what overlaps counts once
        busy += max(0.0, end - max(start, until))
        until = max(until, end)
    return 1e-6 * busy / PROFILED if spans else None


def measure(settings: dict[str, Any], seconds: float, device: torch.device) -> dict[str, Any]:
    """One way to train."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    trainer = A2C(Config().updated(settings, "benchmark"), device)
    lanes, length = trainer.lanes, trainer.train.unroll_length
    action = torch.zeros(lanes.num_lanes, dtype=torch.int64)
    for _ in range(WARM_UP):
        trainer.update()
    whole = seconds_of(trainer.update, seconds, device)
    collect = seconds_of(trainer.collector.collect, seconds / 4, device)
    environment = length * seconds_of(lambda: lanes.step(action), seconds / 4, device)
    busy = busy_seconds(trainer.update, device)
    return {
        "lanes": lanes.num_lanes,
        "graphs": trainer.config.run.cuda_graphs,
        "frames_per_second": length * lanes.num_lanes / whole,
        "update_ms": 1e3 * whole,
        "collect_ms": 1e3 * collect,
        "environment_ms": 1e3 * environment,
        "gpu_busy_ms": None if busy is None else 1e3 * busy,
        "gpu_idle": None if busy is None else 1 - busy / whole,
        "peak_memory_mib": torch.cuda.max_memory_allocated() / 2**20 if device.type == "cuda" else None,
    }


def wait(device: torch.device) -> None:
    """Until the device has done everything."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def main() -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--core", default="rmc")
    parser.add_argument("--backend", default="triton")
    parser.add_argument("--num-heads", type=int, default=4)
    parser.add_argument("--lanes", nargs="+", type=int, default=[1024, 4096, 16384])
    parser.add_argument("--seconds", type=float, default=3.0, help="that each is trained for")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: without graphs alone")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    return command_line.run("cuda_graphs", lambda: compare(arguments))


def compare(arguments: argparse.Namespace) -> int:
    """Measures, prints as it goes, writes."""
    device = pick_device(arguments.device)
    common = {"algo": "a2c", "optimizer": "adam"}  # what graphs can do
    common |= {"core": arguments.core, "backend": arguments.backend, "num_heads": arguments.num_heads}
    rows = []
    for lanes in arguments.lanes:
        for graphs in (False, True) if device.type == "cuda" else (False,):
            row = measure(common | {"num_envs": lanes, "cuda_graphs": graphs}, arguments.seconds, device)
            rows.append(row)
            print(json.dumps(row), flush=True)
    if arguments.json:
        result = {"settings": common, "torch": torch.__version__, "rows": rows}
        checkpoint.write_atomically(arguments.json, (json.dumps(result, indent=2) + "\n").encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
