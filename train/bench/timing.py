"""How long pieces of work take, taken in turn, and how much memory the process has needed."""

import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import torch

WARM_UP = 2  # rounds that do not count: compilation, caches, the first allocations


class Figure(NamedTuple):
    """What repeated measurements come to."""

    seconds: float  # median
    spread: float | None  # interquartile range over the median; None: measured once, or the median is not positive

    @classmethod
    def of(cls, times: Sequence[float]) -> Self:
        """The figure of measurements in seconds."""
        first, median, third = (float(value) for value in np.percentile(times, [25, 50, 75]))
        return cls(median, (third - first) / median if len(times) > 1 and median > 0 else None)

    def rate(self, amount: float) -> float | None:
        """Amount per second; None for a difference of measurements that was lost in their noise."""
        return amount / self.seconds if self.seconds > 0 else None

    def as_json(self) -> dict[str, float | None]:
        """As it stands in JSON."""
        return {"ms": 1e3 * self.seconds, "spread": self.spread}


def rounds(
    work: Mapping[str, Callable[[], object]], repeats: int, limit: float | None, device: torch.device
) -> dict[str, list[float]]:
    """Seconds that each piece of work took, round by round.

    Args:
      work: what a round does, one after the other.
      repeats: rounds that count; `WARM_UP` others come first.
      limit: no further round begins after so many seconds, and the last one counts in any case; None: no limit.
      device: waited for before and after each piece.
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
        if limit is not None and time.perf_counter() - began >= limit:
            break
    return {name: seconds[min(WARM_UP, done - 1) :] for name, seconds in times.items()}


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_memory(device: torch.device) -> int:
    """Bytes: on a GPU the most that torch had allocated there, else the process's largest resident set so far."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")
    if status.exists():  # getrusage's figure is inherited from the parent process
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return 1024 * int(line.split()[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
