"""Custom modules are tried out on a few made-up inputs when they are built, before they are trained for hours."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from rmc_agents.kernels.modes import eval_mode


@contextmanager
def trying_out(module: nn.Module, device: torch.device) -> Iterator[None]:
    """Context in eval mode and without gradients, after which the global random numbers are as before."""
    with torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []), eval_mode(module):
        yield


def seed_on(device: torch.device, seed: int) -> None:
    """Seed the generators of the CPU and of this device; torch.manual_seed would seed those of all GPUs."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)


def is_close(one: Tensor, other: Tensor, rtol: float = 1e-2, atol: float = 1e-3) -> bool:
    """Whether both have one shape, and differ by no more than another order of adding may change."""
    return one.shape == other.shape and torch.allclose(one, other, rtol=rtol, atol=atol, equal_nan=True)
