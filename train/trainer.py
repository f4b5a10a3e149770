"""What a run needs of whoever learns in it: this project's own trainers and Stable-Baselines3's algorithms alike."""

from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn
from torch.utils.tensorboard import SummaryWriter

from rmc_agents.collect import Episode
from rmc_agents.config import Config, TrainConfig
from rmc_agents.losses import Metrics
from rmc_agents.runs.saved import Provenance
from rmc_agents.types import AgentOutput, State, TimeStep

__all__ = ["Measure", "Metrics", "TrainedAgent", "Trainer", "TrainingLanes", "count_parameters", "describe"]


class Measure(Protocol):
    """Writes more of a training to TensorBoard than its metrics; see `diagnostics`."""

    def remember_parameters(self) -> None:
        """To be called after every update."""

    def write(self, frames: int) -> None:
        """A point at that many frames; after an update, before `remember_parameters`."""


class TrainedAgent(Protocol):
    """An agent that plays (an `types.Policy`) and is a module of torch."""

    def initial_state(self, batch_size: int) -> State:
        """The state before an episode."""

    def step(self, steps: TimeStep, state: State) -> tuple[AgentOutput, State]:
        """One step of all lanes."""

    training: bool  # not in eval mode

    def eval(self) -> Any:
        """Switch to eval mode."""

    def train(self, mode: bool = True) -> Any:
        """Switch to training mode, or back."""

    def parameters(self) -> Any:
        """All that is learned."""

    def state_dict(self) -> dict[str, Any]:
        """All tensors by name."""


class TrainingLanes(Protocol):
    """Where a trainer plays."""

    @property
    def device(self) -> torch.device:
        """Where the agent lives."""

    def take_episodes(self) -> list[Episode]:
        """The episodes that ended since the last call."""


class Trainer(Protocol):
    """A training run: made from settings alone, it learns update by update and can be saved in between.

    Attributes:
      config: all settings, as they are really used.
      train: its section of the learner's settings.
      backend: which code runs the core's scan.
      frames: environment steps so far, over all lanes.
      updates: calls of `update` so far.
      trust_flag: what a command needs on top to open the run's checkpoints, with a space in front; or nothing.
    """

    config: Config
    train: TrainConfig
    backend: str
    frames: int
    updates: int
    trust_flag: str

    @property
    def agent(self) -> TrainedAgent:
        """Who learns."""

    @property
    def lanes(self) -> TrainingLanes:
        """Where it plays."""

    def update(self) -> Metrics:
        """Collect one rollout and learn from it. Returns scalars that name what happened."""

    def take_weights(self, weights: dict[str, Any]) -> None:
        """Begin with another agent's `state_dict`. Raises ValueError where that cannot be."""

    def measure(self, writer: SummaryWriter) -> Measure | None:
        """What the settings want measured besides, if anything."""

    def close(self) -> None:
        """Ends the processes and environments that it learns from; the agent stays."""

    def describe(self) -> list[str]:
        """What a run's first lines say of it."""

    def save(self, run_dir: Path, seconds: float) -> Path:
        """Save a checkpoint in a run's folder, after so many seconds of training."""

    def save_best(self, run_dir: Path, provenance: Provenance) -> None:
        """Keep the agent in a run's folder as the best so far, with how well it did (see `runs.best`)."""

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from what was saved."""

    def resume_notes(self, state: dict[str, Any]) -> list[str]:
        """Why the run does not go on exactly from what was saved; nothing if it does."""


def describe(trainer: Trainer, *memory: nn.Module) -> str:
    """A run's first line, with the parameters of those modules counted as the core's."""
    config = trainer.config
    core = sum(parameter.numel() for module in memory for parameter in module.parameters())
    threads = torch.get_num_threads()
    return (
        f"{config.env.env}, core {config.core.core}: {count_parameters(trainer.agent):,} parameters ({core:,} in the "
        f"core), {config.env.num_envs} lanes on {trainer.lanes.device}{_learners(config)}, {trainer.backend} scan, "
        f"{threads} {'thread' if threads == 1 else 'threads'}, seed {config.run.seed}"
    )


def _learners(config: Config) -> str:
    shares_lanes = config.run.learners != 1 and config.train.algo != "impala"
    return f" shared by {config.run.learners} learners" if shares_lanes else ""


def count_parameters(agent: TrainedAgent) -> int:
    """How many numbers are learned."""
    return sum(parameter.numel() for parameter in agent.parameters())
