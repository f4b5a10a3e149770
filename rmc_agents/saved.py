"""An agent as it was saved: what evaluation and video need of a run or a checkpoint."""

from pathlib import Path
from typing import NamedTuple

import torch

from rmc_agents import checkpoint
from rmc_agents.agent import ActorCritic
from rmc_agents.config import Config
from rmc_agents.types import SpaceSpec


class SavedAgent(NamedTuple):
    """An agent and where it comes from."""

    agent: ActorCritic
    config: Config
    spec: SpaceSpec
    path: Path  # the checkpoint
    frames: int  # it was trained for


def load_agent(path: Path, device: torch.device) -> SavedAgent:
    """The agent of a checkpoint, or of the newest valid checkpoint of a run's folder.

    Raises:
      CheckpointError: if there is none, or it is damaged or foreign.
    """
    path, tree = checkpoint.find_and_load(path)
    try:
        config = Config().updated(tree["config"], str(path))
        shape, *rest = tree["spec"]
        spec = SpaceSpec(tuple(shape), *rest)
        agent = ActorCritic(spec, config.core, config.agent)
        agent.load_state_dict(tree["agent"])
        return SavedAgent(agent.to(device).eval(), config, spec, path, int(tree["frames"]))
    except (AttributeError, IndexError, KeyError, TypeError, RuntimeError) as error:
        raise checkpoint.CheckpointError(f"{path} does not hold an agent of this version: {error!r}") from error


def pick_device(name: str) -> torch.device:
    """'auto', 'cpu' or 'cuda' to a device that works.

    Raises:
      ValueError: if CUDA is asked for and there is none.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device cuda: this torch sees no CUDA GPU; use --device cpu, or a CUDA build of torch")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)
