"""An agent as it was saved: what evaluation and video need of a run or a checkpoint."""

from pathlib import Path
from typing import NamedTuple

import torch

from rmc_agents import checkpoint
from rmc_agents.agent import ActorCritic
from rmc_agents.config import Config
from rmc_agents.types import SpaceSpec


class Provenance(NamedTuple):
    """What an exported agent says of itself: how well it did when it was exported."""

    version: str  # of this project
    mean_return: float  # on the environment of its settings, by drawn actions
    ci95: tuple[float, float]  # of the mean return
    episodes: int
    seed: int  # episode i began from seed + i

    def __str__(self) -> str:
        low, high = self.ci95
        return (
            f"mean return {self.mean_return:.2f} (95 % interval {low:.2f} to {high:.2f}) over {self.episodes} episodes "
            f"from seed {self.seed} when exported, by version {self.version}"
        )


class SavedAgent(NamedTuple):
    """An agent and where it comes from."""

    agent: ActorCritic
    config: Config
    spec: SpaceSpec
    path: Path  # the checkpoint
    frames: int  # it was trained for
    provenance: Provenance | None = None  # None: a run's checkpoint, which was not exported


def load_agent(path: Path, device: torch.device) -> SavedAgent:
    """The agent of a checkpoint, or of the newest valid checkpoint of a run's folder.

    Raises:
      CheckpointError: if there is none, or it is damaged or foreign.
    """
    path, tree = checkpoint.find_and_load(path)
    try:
        config = Config().updated(tree["config"], str(path))
        shape, dtype, scale, num_actions, *categories = tree["spec"]
        spec = SpaceSpec(tuple(shape), dtype, scale, num_actions, *map(tuple, categories))
        agent = ActorCritic(spec, config.core, config.agent)
        agent.load_state_dict(tree["agent"])
        provenance = Provenance(**tree["provenance"]) if "provenance" in tree else None
        return SavedAgent(agent.to(device).eval(), config, spec, path, int(tree["frames"]), provenance)
    except (AttributeError, IndexError, KeyError, TypeError, RuntimeError) as error:
        raise checkpoint.CheckpointError(f"{path} does not hold an agent of this version: {error!r}") from error


def save_agent(path: Path, saved: SavedAgent, provenance: Provenance) -> None:
    """Write an agent alone, atomically: a checkpoint that plays, but with nothing of what a resumed run needs.

    Raises:
      OSError: if it cannot be written.
    """
    tree = {
        "config": saved.config.to_mapping(),
        "spec": saved.spec,
        "frames": saved.frames,
        "agent": saved.agent.state_dict(),
        "provenance": provenance._asdict(),
    }
    checkpoint.save(path, tree)


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
