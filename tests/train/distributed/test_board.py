"""Sums in shared memory: equal in all processes, and no process waits for one that has left."""

import copy
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from typing import Any

import pytest
import torch

from rmc_agents.train.distributed import board
from rmc_agents.train.distributed.board import Board

SIZE = 3


def together(work: Callable[[Board, int], Any]) -> list[Any]:
    """The result of each of several threads; a board works for threads as for processes."""
    shared = Board(get_context("spawn"), SIZE)

    def run(rank: int) -> Any:
        own = copy.copy(shared)
        own.join(rank)
        return work(own, rank)

    with ThreadPoolExecutor(SIZE) as pool:
        return [future.result() for future in [pool.submit(run, rank) for rank in range(SIZE)]]


def test_totals_are_sums_in_order_in_every_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board, "CAPACITY", 64)  # bytes: most vectors take several rounds
    generator = torch.Generator().manual_seed(0)
    vectors = [torch.randn(SIZE, 1 + n % 40, generator=generator) for n in range(60)]

    def work(board: Board, rank: int) -> Any:
        delays = random.Random(rank)
        totals = []
        for vector in vectors:
            time.sleep(delays.choice([0.0, 0.0, 0.002]))
            totals.append(board.total(vector[rank]))
        return totals, board.highest(rank), board.total(torch.tensor(rank))

    for totals, highest, count in together(work):
        assert all(torch.equal(a, b[0] + b[1] + b[2]) for a, b in zip(totals, vectors, strict=True))
        assert highest == SIZE - 1
        assert count == 3


def test_waiting_ends_when_a_process_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board, "GRACE", 0.01)

    def work(board: Board, rank: int) -> Any:
        first = board.highest(rank)
        if rank == 1:
            board.leave()
            return first
        with pytest.raises(RuntimeError, match="has left"):
            board.highest(rank)
        return first

    assert together(work) == [2, 2, 2]


def test_waiting_ends_when_a_process_is_known_to_be_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board, "GRACE", 0.01)
    alone = Board(get_context("spawn"), 2)
    alone.join(0, others_alive=lambda: False)
    with pytest.raises(RuntimeError, match="has left"):
        alone.highest(0)


def test_a_process_that_leaves_right_after_posting_has_been_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board, "GRACE", 0.01)
    alone = Board(get_context("spawn"), 2)
    posts = iter([alone._bells[0].release])
    alone.join(0, others_alive=lambda: bool(next(posts, lambda: None)()))  # the other posts while it is found dead
    assert alone.highest(3) == 3
