"""Two processes of data-parallel training."""

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from rmc_agents.runs import checkpoint


def run_two(learner: Callable[[int, int, Path], None], folder: Path) -> list[dict[str, Any]]:
    """What `learner(rank, port, folder)` has saved as `folder / str(rank)` in each of two processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.start_processes(learner, (port, folder), nprocs=2, start_method="forkserver")
    return [checkpoint.load(folder / str(rank)) for rank in range(2)]
