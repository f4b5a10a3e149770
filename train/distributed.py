"""Several learners train one agent: processes that torchrun has started, each with actors of its own.

All hold the same weights at all times. Each finds the gradients of its own actors' rollouts, and all take the step of
their mean. `DistributedDataParallel` does as much, but for modules that are called by `forward`; a learner here calls
`agent.unroll`. Advantages are normalised by each learner over its own rollouts.

The first learner, rank 0, alone reads the command line and owns the run's folder (`run.start`, `run.resume`); the
others get settings and weights from it, and learn along (`follower.follow`). In a process that torchrun has not
started, every function here gives back what it was given, at once.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rmc_agents.config import Config
from rmc_agents.envs.processes import WorkerError
from rmc_agents.runs import checkpoint

FIRST = 0  # rank


class LearnerLost(ValueError):
    """Another learner has ended without a word, so that nothing can be agreed on any more."""


class OtherFailed(WorkerError):
    """Not this learner's actors have failed, but another's."""


@contextmanager
def joined() -> Iterator[None]:
    """In here, this process is one of the learners that torchrun's environment variables tell of; if any.

    Raises:
      ValueError: if the others cannot be reached.
    """
    if "RANK" not in os.environ or int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield
        return
    gpus = torch.cuda.device_count()
    if gpus > _local("RANK"):
        torch.cuda.set_device(_local("RANK"))
    try:
        dist.init_process_group("cpu:gloo,cuda:nccl" if gpus else "gloo")
    except RuntimeError as error:
        place = ":".join(os.environ.get(name, "?") for name in ("MASTER_ADDR", "MASTER_PORT"))
        raise ValueError(f"cannot reach the other learners by way of {place}: {str(error).splitlines()[0]}") from error
    try:
        yield
    finally:
        dist.destroy_process_group()


def _local(name: str) -> int:
    """RANK or WORLD_SIZE on this machine."""
    return int(os.environ.get(f"LOCAL_{name}", os.environ[name]))


def size() -> int:
    """How many learners there are."""
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    """Which of them this process is, from 0."""
    return dist.get_rank() if dist.is_initialized() else FIRST


def check_settings(config: Config, device: torch.device) -> None:
    """Raises ValueError for settings that do not fit with several learners."""
    if size() == 1:
        return
    if config.train.algo != "impala":
        raise ValueError(f"torchrun: expected --algo impala, got {config.train.algo}, which has one learner")
    here, gpus = _local("WORLD_SIZE"), torch.cuda.device_count()
    if device.type == "cuda" and gpus < here:
        raise ValueError(
            f"torchrun: expected a GPU for each of the {here} learners on this machine, got {gpus}; "
            f"use --nproc-per-node {gpus}, or --device cpu"
        )


def check_learners(actors: Sequence[Any], config: Config) -> None:
    """Raises ValueError if a checkpoint's actors, of all learners, are those of another number of learners."""
    learners = len(actors) // config.actors.actors
    if learners != size():
        raise ValueError(
            f"this run has {learners} learners: expected as many to go on with it, got {size()}; "
            f"use {command(learners)} --resume RUN"
        )


def command(learners: int) -> str:
    """How rmc-train is started with so many learners on one machine, for lines that say what to type next."""
    if learners == 1:
        return "rmc-train"
    return f"torchrun --standalone --nproc-per-node {learners} --no-python rmc-train"


def average_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Sets the parameters' gradients to their mean over all learners, the same to the bit in each."""
    if size() == 1:
        return
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    flat = nn.utils.parameters_to_vector(gradients)
    with _connected():
        dist.all_reduce(flat)
    nn.utils.vector_to_parameters(flat / size(), gradients)


def highest(number: int) -> int:
    """The highest of all learners' numbers: what the ranks agree on."""
    if size() == 1:
        return number
    agreed = torch.tensor(number)
    with _connected():
        dist.all_reduce(agreed, dist.ReduceOp.MAX)
    return int(agreed)


@contextmanager
def failing_together() -> Iterator[None]:
    """A WorkerError in here is one in all learners: its own where it was raised, `OtherFailed` in the others."""
    error = None
    try:
        yield
    except WorkerError as raised:
        error = raised
    failed = highest(error is not None)
    if error is not None:
        raise error
    if failed:
        raise OtherFailed("the actors of another learner failed")


def share(tree: dict[str, Any] | None) -> dict[str, Any]:
    """The first learner's tree (see `checkpoint`), in all of them; what the others give does not matter."""
    content = _to_tensor({} if tree is None else tree)
    length = torch.tensor(len(content))
    with _connected():
        dist.broadcast(length, FIRST)
        content = content if rank() == FIRST else torch.empty(int(length), dtype=torch.uint8)
        dist.broadcast(content, FIRST)
    return _from_tensor(content)


def gather(items: list[Any]) -> list[Any]:
    """All learners' items, rank by rank, in the first; in the others what they gave. Each item is a tree's part."""
    if size() == 1:
        return items
    content = _to_tensor({"items": items})
    lengths = [torch.tensor(0) for _ in range(size())]
    with _connected():
        dist.all_gather(lengths, torch.tensor(len(content)))
        padded = nn.functional.pad(content, (0, int(max(lengths)) - len(content)))
        parts = [torch.empty_like(padded) for _ in lengths] if rank() == FIRST else None
        dist.gather(padded, parts, FIRST)
    if parts is None:
        return items
    trees = (_from_tensor(part[:length]) for part, length in zip(parts, lengths, strict=True))
    return [item for tree in trees for item in tree["items"]]


def _to_tensor(tree: dict[str, Any]) -> Tensor:
    return torch.frombuffer(bytearray(checkpoint.to_bytes(tree)), dtype=torch.uint8)


def _from_tensor(content: Tensor) -> dict[str, Any]:
    return checkpoint.from_bytes(content.numpy().tobytes(), "what another learner sent")


@contextmanager
def _connected() -> Iterator[None]:
    """Around what all learners do at the same time. Raises LearnerLost if one of them is gone."""
    try:
        yield
    except RuntimeError as error:
        raise LearnerLost(
            f"another of the {size()} learners has ended, and all end with it; go on with the newest checkpoint: "
            f"{command(size())} --resume RUN"
        ) from error
