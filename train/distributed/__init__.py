"""Communication between data-parallel learners.

Each learner is a process with its own lanes or actors. All hold the same weights at all times: each computes the
gradient of its own experience, and all take the same step along the mean gradient. `learners` starts them on one
machine, torchrun on one or more.

Only the first learner, rank 0, reads the command line and owns the run's folder (`run`); the others receive settings
and weights from it and train in step with it (`follower`). With a single learner, nothing is communicated. All
learners must call the same functions in the same order.
"""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import distributed_c10d

from rmc_agents.envs.processes import Fault, WorkerError
from rmc_agents.episodes import Episode, from_rows, to_rows
from rmc_agents.losses import Metrics
from rmc_agents.runs import checkpoint

from .board import Board

FIRST = 0  # rank
FOREVER = timedelta(days=365)  # a run may be suspended; the death of another process is detected anyway


class LearnerLost(ValueError):
    """Another learner has ended unexpectedly; communication is no longer possible."""


class OtherFailed(WorkerError):
    """A failure that the first learner reports, so this one does not."""


@contextmanager
def joined() -> Iterator[None]:
    """Context in which this process is one of torchrun's learners, if its environment variables are set.

    Raises:
      ValueError: if the others cannot be reached.
    """
    if not by_torchrun():
        yield
        return
    try:
        store, number, learners = next(dist.rendezvous("env://"))
        connect(_local("RANK"), store, number, learners)
    except RuntimeError as error:
        place = ":".join(os.environ.get(name, "?") for name in ("MASTER_ADDR", "MASTER_PORT"))
        raise ValueError(f"cannot reach the other learners at {place}: {str(error).splitlines()[0]}") from error
    try:
        yield
    finally:
        dist.destroy_process_group()


def by_torchrun() -> bool:
    """Whether torchrun has started this process as one of several."""
    return "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


def on_this_machine(learners: int) -> int:
    """Number of the learners on this machine."""
    return _local("WORLD_SIZE") if by_torchrun() else learners


def _local(name: str) -> int:
    """RANK or WORLD_SIZE on this machine."""
    return int(os.environ.get(f"LOCAL_{name}", os.environ[name]))


_boards: list[Board] = []  # one at most


@contextmanager
def using_board(board: Board, rank: int, others_alive: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Context in which sums on the CPU use a board instead of gloo; arguments as in `Board.join`."""
    board.join(rank, others_alive)
    _boards.append(board)
    try:
        yield
    finally:
        _boards.remove(board)
        board.leave()


def connect(gpu: int, store: dist.Store, rank: int, learners: int, timeout: timedelta = FOREVER) -> None:
    """Connect to the other learners, through a store that all have reached. With GPUs, use the given one.

    Raises:
      RuntimeError: if they do not connect within the timeout.
    """
    gpus = torch.cuda.device_count()
    if gpus > gpu:
        torch.cuda.set_device(gpu)
    backend = "cpu:gloo,cuda:nccl" if gpus else "gloo"
    excepthook = sys.excepthook
    dist.init_process_group(backend, timeout=timeout, world_size=learners, rank=rank, store=store)
    distributed_c10d._set_pg_timeout(FOREVER)
    sys.excepthook = excepthook  # torch's writes the rank before each line of a traceback, even after the training


def size() -> int:
    """Number of learners."""
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    """Index of this learner, from 0."""
    return dist.get_rank() if dist.is_initialized() else FIRST


def total(tensor: Tensor) -> Tensor:
    """The sum of all learners' tensors, bitwise equal in each."""
    if size() == 1:
        return tensor
    with _connected():
        if _boards and not tensor.is_cuda:
            return _boards[0].total(tensor)
        summed = tensor.clone()
        dist.all_reduce(summed)
    return summed


def average(parameters: Iterable[nn.Parameter], metrics: Metrics, weight: Tensor) -> Metrics:
    """Set the parameters' gradients to their weighted mean over all learners, bitwise equal in each.

    If a learner's loss is a mean over its `weight` steps, this is the gradient of the mean over all learners' steps. A
    gradient that a learner does not have counts as 0; what no learner has stays None.

    Args:
      parameters: the same ones in each learner.
      metrics: scalars.
      weight: this learner's weight, a scalar.

    Returns:
      The weighted means of the metrics, without those of learners whose weight is 0.
    """
    if size() == 1:
        return metrics
    learned = [parameter for parameter in parameters if parameter.requires_grad]
    gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in learned]
    own = torch.cat([tensor.reshape(-1) for tensor in (*gradients, *metrics.values())])
    own = torch.where(weight > 0, own * weight, 0.0)
    has_gradient = own.new_tensor([each.grad is not None for each in learned])
    every = total(torch.cat([own, weight.reshape(1).to(own), has_gradient]))
    mean, weights, counts = every.split([len(own), 1, len(learned)])
    mean = mean / weights.where(weights > 0, 1.0)  # without a step, the gradient is 0
    sizes = [gradient.numel() for gradient in gradients]
    parts = mean[: sum(sizes)].split(sizes)
    for parameter, gradient, part, number in zip(learned, gradients, parts, counts.tolist(), strict=True):
        if number:
            parameter.grad = gradient.copy_(part.view_as(gradient))
    return dict(zip(metrics, mean[-len(metrics) :].clone(), strict=True)) if metrics else {}


def exchange(tensors: Sequence[Tensor], owners: Sequence[int]) -> None:
    """Broadcast tensors in place: tensor i comes from learner `owners[i]`."""
    if size() == 1 or not tensors:
        return
    own = [
        tensor if owner == rank() else torch.zeros_like(tensor) for tensor, owner in zip(tensors, owners, strict=True)
    ]
    every = total(torch.cat([tensor.flatten() for tensor in own]))
    for tensor, content in zip(tensors, every.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(content.view_as(tensor))


def share_buffers(module: nn.Module) -> None:
    """Give all learners the first one's buffers, such as running means, which a forward pass changes in each."""
    if size() == 1 or not (buffers := list(module.buffers())):
        return
    reals = [torch.view_as_real(buffer) if buffer.is_complex() else buffer for buffer in buffers]
    values = [real.double() for real in reals]
    exchange(values, [FIRST] * len(values))
    for real, value in zip(reals, values, strict=True):
        real.copy_(value)


def highest(number: int) -> int:
    """The maximum of all learners' numbers, as a way to agree on one."""
    if size() == 1:
        return number
    with _connected():
        if _boards:
            return _boards[0].highest(number)
        agreed = torch.tensor(number)
        dist.all_reduce(agreed, dist.ReduceOp.MAX)
    return int(agreed)


@contextmanager
def failing_together() -> Iterator[None]:
    """Context in which an exception in any learner raises one in all.

    The first learner raises its own exception or, as a WorkerError, another's; the others raise `OtherFailed`.
    """
    error = None
    try:
        yield
    except Exception as raised:
        error = raised
    if highest(error is not None):
        faults = gather([None if error is None else list(Fault.of(error))])
        if rank() != FIRST:
            raise OtherFailed("the first learner reports the reason") from error
        if error is None:
            number, fault = next((number, fault) for number, fault in enumerate(faults) if fault is not None)
            raise Fault(*fault).error(f"learner {number}: ")
    if error is not None:
        raise error


def broadcast_tree(tree: dict[str, Any] | None) -> dict[str, Any]:
    """Broadcast the first learner's tree (see `checkpoint`); the others' argument is ignored."""
    content = _to_tensor({} if tree is None else tree)
    length = torch.tensor(len(content))
    with _connected():
        dist.broadcast(length, FIRST)
        content = content if rank() == FIRST else torch.empty(int(length), dtype=torch.uint8)
        dist.broadcast(content, FIRST)
    return _from_tensor(content)


def gather(items: list[Any]) -> list[Any]:
    """Gather all learners' items by rank in the first; the others get their own. Each item is part of a tree."""
    if size() == 1:
        return items
    parts = _gather(_to_tensor({"items": items}))
    return items if parts is None else [item for part in parts for item in _from_tensor(part)["items"]]


def gather_episodes(episodes: list[Episode]) -> list[Episode]:
    """Gather all learners' episodes by rank in the first; the others get their own.

    As numbers: to serialise 100 episodes as a tree would take 4 ms of every update.
    """
    if size() == 1:
        return episodes
    parts = _gather(torch.from_numpy(to_rows(episodes)).flatten())
    return episodes if parts is None else from_rows(torch.cat(parts).reshape(-1, len(Episode._fields)).numpy())


def _gather(content: Tensor) -> list[Tensor] | None:
    """Gather all learners' vectors by rank in the first; the others get None."""
    lengths = [torch.tensor(0) for _ in range(size())]
    with _connected():
        dist.all_gather(lengths, torch.tensor(len(content)))
        padded = nn.functional.pad(content, (0, int(max(lengths)) - len(content)))
        parts = [torch.empty_like(padded) for _ in lengths] if rank() == FIRST else None
        if len(padded):
            dist.gather(padded, parts, FIRST)
    return parts and [part[:length] for part, length in zip(parts, lengths, strict=True)]


def _to_tensor(tree: dict[str, Any]) -> Tensor:
    return torch.frombuffer(bytearray(checkpoint.to_bytes(tree)), dtype=torch.uint8)


def _from_tensor(content: Tensor) -> dict[str, Any]:
    return checkpoint.from_bytes(content.numpy().tobytes(), "data from another learner")


@contextmanager
def _connected() -> Iterator[None]:
    """Context for collective operations. Raises LearnerLost if a learner is gone."""
    try:
        yield
    except RuntimeError as error:
        raise LearnerLost(f"one of the {size()} learners has ended, and all end with it") from error
