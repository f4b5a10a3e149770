"""Interleaved timing of pieces of work, and peak memory."""

import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray

WARM_UP = 2  # unmeasured rounds: compilation, caches, first allocations


class Timing(NamedTuple):
    """The summary of repeated measurements."""

    seconds: float  # median
    spread: float | None  # interquartile range over the median; None: measured once, or the median is not positive

    @classmethod
    def of(cls, times: Sequence[float] | NDArray[np.float64]) -> Self:
        """Summarise measurements in seconds."""
        first, median, third = (float(value) for value in np.percentile(times, [25, 50, 75]))
        return cls(median, (third - first) / median if len(times) > 1 and median > 0 else None)

    def rate(self, amount: float) -> float | None:
        """Amount per second; None for a difference of measurements that is not positive, because of noise."""
        return amount / self.seconds if self.seconds > 0 else None

    def as_json(self) -> dict[str, float | None]:
        """The figure for JSON."""
        return {"ms": 1e3 * self.seconds, "spread": self.spread}


def rounds(
    work: Mapping[str, Callable[[], object]], repeats: int, limit: float | None, device: torch.device
) -> dict[str, list[float]]:
    """Seconds that each piece of work took, round by round.

    Args:
      work: the pieces of a round, run in order.
      repeats: measured rounds; `WARM_UP` others come first.
      limit: seconds after which no further round starts, except for one warm-up and one measured round. None: no limit.
      device: synchronised before and after each piece.
    """
    times: dict[str, list[float]] = {name: [] for name in work}
    began, done = time.perf_counter(), 0
    while done < WARM_UP + repeats:
        for name, run in work.items():
            _synchronize(device)
            start = time.perf_counter()
            run()
            _synchronize(device)
            times[name].append(time.perf_counter() - start)
        done += 1
        if done > 1 and limit is not None and time.perf_counter() - began >= limit:
            break
    return {name: seconds[min(WARM_UP, done - 1) :] for name, seconds in times.items()}


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_memory(device: torch.device) -> int:
    """Peak memory in bytes: on a GPU as allocated by torch, else the process's maximum resident set so far."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    for line in lines:
        if line.startswith("VmHWM:"):  # getrusage inherits its figure from the parent process
            return 1024 * int(line.split()[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
