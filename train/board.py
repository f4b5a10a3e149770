"""How learners on one machine's CPUs add up their vectors: in memory that they share.

gloo takes the same vectors through sockets and other threads, for several times the CPU time, and what each learner
waits for is late by as much.
"""

import ctypes
from collections.abc import Callable, Iterator
from multiprocessing.context import SpawnContext

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

CAPACITY = 1 << 20  # bytes that a learner can post at once
PATIENCE = 0.1  # seconds until somebody who waits looks whether all are still there
GRACE = 1.0  # seconds in which what was posted before a learner left is sure to have come


class Board:
    """Where each of several processes posts a vector and reads those of all.

    A process has two slots and takes them in turn. When it writes over the vector of the round before the last one, all
    have posted in the last one, and so have read it.

    A process that posts wakes each of the others once, and goes on after it was woken once by each. If A is two rounds
    ahead of C, it wakes B in C's place; but it is ahead only because C has posted.

    Args:
      context: starts the other processes, which get the board as an argument.
      size: how many processes there are.
    """

    def __init__(self, context: SpawnContext, size: int) -> None:
        self.size = size
        self._memory = context.RawArray(ctypes.c_byte, size * 2 * CAPACITY)
        self._has_left = context.RawArray(ctypes.c_bool, size)
        self._bells = [context.Semaphore(0) for _ in range(size)]

    def join(self, rank: int, is_whole: Callable[[], bool] = lambda: True) -> None:
        """Take a seat, in each process once.

        Args:
          rank: which of the processes this is.
          is_whole: whether no other process has died, as far as this one can know.
        """
        self._rank, self._is_whole, self._round = rank, is_whole, 0
        self._slots = np.ctypeslib.as_array(self._memory).view(np.uint8).reshape(2, self.size, CAPACITY)

    def leave(self) -> None:
        """Never post again. Who waits for this process raises RuntimeError."""
        self._has_left[self._rank] = True

    def total(self, tensor: Tensor) -> Tensor:
        """The sum of all processes' tensors on the CPU, of one shape and dtype: added in order, equal to the bit."""
        own = tensor.detach().contiguous().view(-1).numpy()
        sums = np.empty_like(own)
        step = CAPACITY // own.itemsize
        for first in range(0, len(own), step):
            every, part = self._everyones(own[first : first + step]), sums[first : first + step]
            part[:] = next(every)
            for other in every:
                part += other
        return torch.from_numpy(sums).view(tensor.shape)

    def highest(self, number: int) -> int:
        """The highest of all processes' numbers."""
        return max(int(each[0]) for each in self._everyones(np.array([number])))

    def _everyones(self, own: NDArray) -> Iterator[NDArray]:
        """All processes' vectors, of one length and dtype, in order; to be read before the next call."""
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
            if (any(self._has_left) or not self._is_whole()) and not bell.acquire(timeout=GRACE):
                raise RuntimeError("another process has left")
