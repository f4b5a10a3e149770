"""Shared by the benchmarks: a description of the machine, tables, files."""

import json
import os
import platform
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from benchmarks.speed.envs import product_rate
from rmc_agents.files import write_atomically
from rmc_agents.runs.folder import TENSORBOARD

RESULTS = Path(__file__).parent / "results"


def machine(rounds: int = 9) -> dict[str, Any]:
    """The machine and its current speed: the median rate of a matrix product on one thread, per second."""
    return {
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "product_rate": float(np.median([product_rate() for _ in range(rounds)])),
    }


def describe(machine: dict[str, Any]) -> str:
    """One line about the machine."""
    return (
        f"{machine['cores']} cores ({machine['machine']}), torch {machine['torch']}; a float32 matrix product on one "
        f"thread: {machine['product_rate'] / 1e9:,.0f} GFLOP/s."
    )


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (columns, ["---"] * len(columns), *rows))


def scalars(run: Path, tag: str) -> np.ndarray:
    """The values that a run has in TensorBoard under a name, in the order of its frames; none if it has none."""
    events = EventAccumulator(str(run / TENSORBOARD), size_guidance={"scalars": 0})  # 0: all of them
    events.Reload()
    found = events.Scalars(tag) if tag in events.Tags()["scalars"] else []
    return np.array([event.value for event in sorted(found, key=lambda event: event.step)])


def write(out: Path, figures: dict[str, Any], text: str) -> None:
    """OUT.json and OUT.md."""
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out.with_suffix(".json"), (json.dumps(figures, indent=1) + "\n").encode())
    write_atomically(out.with_suffix(".md"), f"{text}\n".encode())
