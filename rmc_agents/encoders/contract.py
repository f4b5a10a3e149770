"""Whether an encoder does what `register_encoder` asks of it: tried out before it is trained for hours."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from rmc_agents.spaces import SpaceSpec
from rmc_agents.spaces.parts import ArraySpec
from rmc_agents.tryout import is_close, seed_on, trying_out
from rmc_agents.types import TimeStep, at


def check_encoder(encoder: nn.Module, spec: SpaceSpec) -> None:
    """Try a custom encoder on two time steps; the global random numbers stay as they were.

    One that raises an error is not checked: it may take only observations that the environment really returns.

    Raises:
      ValueError: if it keeps a memory, or a time step's features depend on the others in the batch.
    """
    like = next(encoder.parameters(), torch.zeros(()))  # in device
    steps = _two_steps(spec, like.device)
    with trying_out(encoder, like.device):
        try:
            both, other_seed, again = (_encoded(encoder, steps, seed) for seed in (0, 1, 0))
            alone = torch.cat([_encoded(encoder, at(steps, slice(i, i + 1)), 0) for i in range(2)])
        except Exception:
            return
    if len(both) != 2:
        return  # `ActorCritic.encode` names the shape
    if not is_close(both, again):
        raise ValueError(
            f"encoder: expected {type(encoder).__name__} to return the same for the same time steps, got different "
            "features: it has to keep no memory, which is the core's"
        )
    if is_close(both, other_seed) and not is_close(both, alone):
        raise ValueError(
            f"encoder: expected the same of {type(encoder).__name__} for a time step alone and beside another, got "
            "different features: axis 0 is time and lanes, do not compute across it"
        )


def _encoded(encoder: Callable[[TimeStep], Tensor], steps: TimeStep, seed: int) -> Tensor:
    seed_on(steps.is_first.device, seed)
    return encoder(steps)


def _two_steps(spec: SpaceSpec, device: torch.device) -> TimeStep:
    """An episode's first time step, of zeros, and a later one, of ones (white pixels, second categories)."""
    parts = {name: _zeros_and_ones(array).to(device) for name, array in spec.arrays.items()}
    no_yes = torch.tensor([False, True], device=device)
    return TimeStep(
        obs=parts if spec.obs_parts else parts[""],
        is_first=~no_yes,
        prev_action=spec.no_action(2).to(device),
        prev_reward=no_yes.float(),
        terminated=no_yes & False,
        truncated=no_yes & False,
    )


def _zeros_and_ones(array: ArraySpec) -> Tensor:
    one = np.minimum(1, np.reshape(array.categories, array.shape) - 1) if array.categories else 1 / array.scale
    entries = np.stack([np.zeros(array.shape), np.broadcast_to(one, array.shape)])
    return torch.as_tensor(entries).round().to(getattr(torch, array.dtype))
