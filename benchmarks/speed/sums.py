"""What it costs two learners to add up a vector: in shared memory and over gloo, in turn.

python -m benchmarks.speed.sums
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from rmc_agents.train.distributed.board import Board

SIZES = 1, 102_534  # numbers; the second: the parameters of the default agent
ROUNDS, CALLS = 10, 50


def reduce_copy(vector: torch.Tensor) -> None:
    """The sum over processes, by gloo, of a copy."""
    dist.all_reduce(vector.clone())


def measure(rank: int, board: Board, store: str) -> None:
    """In each of two processes; the first one prints."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    board.join(rank)
    for size in SIZES:
        vector = torch.randn(size)
        ways: dict[str, Callable[[], object]] = {
            "shared memory": partial(board.total, vector),
            "gloo": partial(reduce_copy, vector),
        }
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for _ in range(ROUNDS):
            for name, add_up in ways.items():
                cpu, wall = time.process_time(), time.perf_counter()
                for _ in range(CALLS):
                    add_up()
                times[name].append((time.process_time() - cpu, time.perf_counter() - wall))
        for name, rows in times.items() if rank == 0 else ():
            cpu, wall = 1e3 * np.median(rows, axis=0) / CALLS
            print(f"{size:7,} numbers, {name:13}: {cpu:.3f} ms of CPU in each, {wall:.3f} ms until all have the sum")
    dist.destroy_process_group()


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    context = get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        arguments = Board(context, 2), str(Path(folder) / "store")
        other = context.Process(target=measure, args=(1, *arguments))
        other.start()
        measure(0, *arguments)
        other.join()
