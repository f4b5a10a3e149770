"""The speed of training on a device, and how busy the device is."""

import time
from collections.abc import Callable
from contextlib import closing
from statistics import median
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from rmc_agents.config import Config
from rmc_agents.train.on_policy import OnPolicy


def measure(config: Config, device: str, updates: int) -> dict[str, Any]:
    """Frames/s, the share of an update's time that is acting, and the share in which the GPU computes.

    Times are medians over `updates` updates, after three that compile and fill caches.
    """
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    with closing(OnPolicy(config, torch.device(device))) as trainer:
        for _ in range(3):
            trainer.update()
        whole = median(seconds(trainer.update, device) for _ in range(updates))
        acting = median(seconds(trainer.collector.collect, device) for _ in range(updates))
        busy, memory = None, None
        if device == "cuda":
            with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiled:
                wall = seconds(trainer.update, device)
            kernels = [event for event in profiled.key_averages() if not event.is_user_annotation]
            busy = sum(kernel.self_device_time_total for kernel in kernels) / 1e6 / wall
            memory = torch.cuda.max_memory_allocated() / 2**20
    frames = config.env.num_envs * config.train.unroll_length
    return {"frames_per_second": frames / whole, "acting": acting / whole, "busy": busy, "peak_memory_mib": memory}


def seconds(work: Callable[[], object], device: str) -> float:
    """The time that work takes, on the GPU too."""
    began = time.perf_counter()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began
