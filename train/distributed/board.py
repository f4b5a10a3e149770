"""Sums of the vectors of several learners on one machine's CPUs, through shared memory.

gloo sends the same vectors through sockets and additional threads. That costs several times the CPU time, and every
learner waits longer for the result.
"""

import ctypes
from collections.abc import Callable, Iterator
from multiprocessing.context import BaseContext

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

CAPACITY = 1 << 20  # bytes that a learner can post at once
PATIENCE = 0.1  # seconds between checks, while waiting, that all processes are still there
GRACE = 1.0  # seconds to wait for what a process may have posted just before it left


class Board:
    """Shared memory in which each of several processes posts a vector and reads the vectors of all.

    Each process alternates between two slots. Before it writes to one again, all processes have posted in the round
    between, and so have read it.

    A process that posts wakes each of the others once, and continues when it has been woken as many times as there are
    others. If A is two rounds ahead of C, B may count A's wake-up as C's; but A is only ahead because C has posted.

    Args:
      context: starts the other processes, which get the board as an argument.
      size: number of processes.
    """

    def __init__(self, context: BaseContext, size: int) -> None:
        self.size = size
        self._memory = context.RawArray(ctypes.c_byte, size * 2 * CAPACITY)
        self._has_left = context.RawArray(ctypes.c_bool, size)
        self._bells = [context.Semaphore(0) for _ in range(size)]

    def join(self, rank: int, others_alive: Callable[[], bool] = lambda: True) -> None:
        """Join as one of the processes. Each process calls this once.

        Args:
          rank: the number of this process, from 0.
          others_alive: returns False if this process knows that another has died.
        """
        self._rank, self._others_alive, self._round = rank, others_alive, 0
        self._slots = np.ctypeslib.as_array(self._memory).view(np.uint8).reshape(2, self.size, CAPACITY)

    def leave(self) -> None:
        """Stop posting. A process that waits for this one raises RuntimeError."""
        self._has_left[self._rank] = True

    def total(self, tensor: Tensor) -> Tensor:
        """The sum of all processes' CPU tensors, of the same shape and dtype.

        They are added in the order of the ranks, so that all processes get bitwise the same sum.
        """
        own = tensor.detach().contiguous().view(-1).numpy()
        sums = np.empty_like(own)
        step = CAPACITY // own.itemsize
        for first in range(0, len(own), step):
            every, part = self._gather(own[first : first + step]), sums[first : first + step]
            part[:] = next(every)
            for other in every:
                part += other
        return torch.from_numpy(sums).view(tensor.shape)

    def highest(self, number: int) -> int:
        """The highest of all processes' numbers."""
        return max(int(each[0]) for each in self._gather(np.array([number])))

    def _gather(self, own: NDArray) -> Iterator[NDArray]:
        """The vectors of all processes, of the same length and dtype, by rank. Read them before the next call."""
        slots = self._slots[self._round % 2, :, : own.nbytes]
        slots[self._rank] = own.view(np.uint8)
        self._round += 1
        for rank, bell in enumerate(self._bells):
            if rank != self._rank:
                bell.release()
        for _ in range(self.size - 1):
            self._wait()
        return (slot.view(own.dtype) for slot in slots)

    def _wait(self) -> None:
        bell = self._bells[self._rank]
        while not bell.acquire(timeout=PATIENCE):
            if any(self._has_left) or not self._others_alive():
                if bell.acquire(timeout=GRACE):
                    return
                raise RuntimeError("another process has left")
