"""The base class of trainers: this project's own and those of Stable-Baselines3's algorithms."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn
from torch.utils.tensorboard import SummaryWriter

from rmc_agents.config import Config, TrainConfig
from rmc_agents.episodes import Episode
from rmc_agents.formatting import counted
from rmc_agents.losses import Metrics
from rmc_agents.runs.saved import Provenance, count_parameters
from rmc_agents.spaces import SpaceSpec
from rmc_agents.types import Policy

if TYPE_CHECKING:
    from .reporting.diagnostics import Diagnostics


class TrainedAgent(Policy, Protocol):
    """A policy that is a torch module, with the spaces that it acts in."""

    training: bool  # not in eval mode
    spec: SpaceSpec

    def eval(self) -> Any:
        """Switch to eval mode."""

    def train(self, mode: bool = True) -> Any:
        """Switch to training mode, or back."""

    def parameters(self) -> Any:
        """All learned parameters."""

    def state_dict(self) -> dict[str, Any]:
        """All tensors by name."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any:
        """Take the tensors of another agent with the same settings."""


class TrainingLanes(Protocol):
    """A trainer's lanes."""

    @property
    def device(self) -> torch.device:
        """The agent's device."""

    def take_episodes(self) -> list[Episode]:
        """The episodes that ended since the last call."""


class Trainer(ABC):
    """A training: created from settings, it learns update by update and can be saved in between.

    Attributes:
      config: all settings, as actually used.
      train: the section with the learner's settings.
      backend: the implementation of the core's scan.
      frames: environment steps so far, over all lanes.
      updates: calls of `update` so far.
      agent: the agent that learns.
      lanes: the lanes it acts in.
    """

    config: Config
    train: TrainConfig
    backend: str
    frames: int
    updates: int
    agent: TrainedAgent
    lanes: TrainingLanes

    @abstractmethod
    def update(self) -> Metrics:
        """Collect one rollout and learn from it. Returns metrics."""

    def diagnostics(self, writer: SummaryWriter) -> "Diagnostics | None":
        """Further measurements, if the settings ask for them and the trainer has them."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Close the environments and end their processes; the agent stays usable."""

    @abstractmethod
    def describe(self) -> list[str]:
        """The first lines that a run prints."""

    @abstractmethod
    def save(self, run_dir: Path, seconds: float) -> Path:
        """Save a checkpoint in a run's folder; `seconds` is the training time so far."""

    @abstractmethod
    def save_best(self, run_dir: Path, provenance: Provenance) -> None:
        """Save the agent in a run's folder as the best so far, with its evaluation (see `runs.best`)."""

    @property
    def stage(self) -> int:
        """The stage of the curriculum, from 1."""
        return 1

    @abstractmethod
    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""

    @abstractmethod
    def resume_notes(self, state: dict[str, Any]) -> list[str]:
        """Reasons why the run does not resume exactly from a saved state; empty if it does."""


def describe(trainer: Trainer, *memory: nn.Module) -> str:
    """The first line of a run; the parameters of `memory` count as the core's."""
    config = trainer.config
    total = count_parameters(trainer.agent.parameters())
    core = count_parameters(parameter for module in memory for parameter in module.parameters())
    return (
        f"{config.env.env}, core {config.core.core}: {total:,} parameters ({core:,} in the core), "
        f"{counted(config.env.num_envs, 'lane')} on {trainer.lanes.device}{_learners(config)}, {trainer.backend} scan, "
        f"{counted(torch.get_num_threads(), 'thread')}, seed {config.run.seed}"
    )


def _learners(config: Config) -> str:
    shares_lanes = config.run.learners != 1 and config.train.algo != "impala"
    return f" shared by {config.run.learners} learners" if shares_lanes else ""
