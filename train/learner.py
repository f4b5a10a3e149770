"""The base class of this project's trainers: an agent, its optimizer, and optimizer steps from losses."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rmc_agents.agent import ActorCritic
from rmc_agents.config import Config, TrainConfig
from rmc_agents.distributions import NotFinite
from rmc_agents.kernels.modes import reuse_freed_memory
from rmc_agents.losses import Metrics
from rmc_agents.runs import checkpoint
from rmc_agents.runs.folder import BEST
from rmc_agents.runs.saved import Provenance, SavedAgent, save_agent, weights_like
from rmc_agents.spaces import SpaceSpec
from rmc_agents.tree_checks import ANYTHING, check_like
from rmc_agents.types import State

from . import distributed
from .optimizers import make_optimizer
from .trainer import Trainer, describe


class Diverged(NotFinite):
    """Training cannot continue: the gradient is not finite, or the recurrent state is NaN; all learners find that."""


def diverged(what: str) -> Diverged:
    """The error, with advice."""
    return Diverged(
        f"training diverged {what}: try a smaller --learning-rate, or look for huge observations or rewards, or NaN in "
        "custom parts"
    )


class Learner(Trainer):
    """An agent with its optimizer; subclasses define the experience it learns from.

    Args:
      config: all settings.
      spec: the environment's spaces.
      device: the agent's device.
    """

    agent: ActorCritic

    def __init__(self, config: Config, spec: SpaceSpec, device: torch.device) -> None:
        self.config, self.train, self.spec = config, config.train, spec
        reuse_freed_memory()
        torch.manual_seed(config.run.seed)
        self.agent = make_agent(config, spec, device)
        self.backend = self.agent.core.chosen_backend()
        self.optimizer = make_optimizer(self.agent, self.train)
        self.frames = 0
        self.updates = 0

    def _optimize(self, loss: Tensor, metrics: Metrics, steps: Tensor) -> Metrics:
        """One optimizer step along the clipped gradient of a loss; returns the metrics with further ones.

        Args:
          loss: a mean over steps of a rollout.
          metrics: other means.
          steps: their number. With several learners, loss and metrics are averaged over all learners' steps.

        Raises:
          Diverged: if the gradient is not finite; the weights are not changed.
        """
        learning_rate = learning_rate_at(self.frames, self.train)
        self.optimizer.set_learning_rate(learning_rate)
        self.optimizer.zero_grad()
        loss.backward()
        metrics = distributed.average(self.agent.parameters(), metrics, steps)
        grad_norm = nn.utils.clip_grad_norm_(self.agent.parameters(), self.train.max_grad_norm)
        if not torch.isfinite(grad_norm):
            raise diverged(f"after {self.frames:,} frames (the gradient's norm is {grad_norm.item()})")
        self.optimizer.step()
        if self.config.has_own_parts:
            distributed.share_buffers(self.agent)
        return metrics | {"losses/grad_norm": grad_norm, "charts/learning_rate": torch.tensor(learning_rate)}

    def describe(self) -> list[str]:
        """The first lines that a run prints."""
        return [describe(self, self.agent.core)]

    def save(self, run_dir: Path, seconds: float) -> Path:
        """Save a checkpoint in a run's folder; `seconds` is the training time so far."""
        tree = self.get_state() | {"seconds": seconds}
        return checkpoint.write_numbered(
            run_dir, self.updates, checkpoint.to_bytes(tree), self.config.run.keep_checkpoints
        )

    def save_best(self, run_dir: Path, provenance: Provenance) -> None:
        """As `Trainer.save_best`."""
        path = run_dir / f"{BEST}{checkpoint.SUFFIX}"
        save_agent(path, SavedAgent(self.agent, self.config, self.spec, path, self.frames), provenance)

    def get_state(self) -> dict[str, Any]:
        """The tree of a checkpoint (see `checkpoint`). Collective: all learners call this together."""
        return self._own_state() | {"optimizer": self.optimizer.get_state()}

    def _own_state(self) -> dict[str, Any]:
        """The part of the state that needs no other learner."""
        return {
            "config": self.config.to_mapping(),
            "spec": self.spec,
            "frames": self.frames,
            "updates": self.updates,
            "agent": self.agent.state_dict(),
            "torch_rng": torch.get_rng_state(),
        }

    def expected_state(self) -> dict[str, Any]:
        """The structure of a checkpoint's tree (see `tree_checks`), without settings and spec."""
        checked = {"config": ANYTHING, "spec": ANYTHING, "optimizer": self.optimizer.expected_state()}
        checked["agent"] = weights_like(self.agent)
        return self._own_state() | checked

    def check_state(self, state: dict[str, Any]) -> None:
        """Raises ValueError unless a checkpoint's tree fits a run with these settings."""
        if not (found := SpaceSpec.from_fields(state["spec"])).fits(self.spec):
            raise ValueError(
                f"spec: expected that of the environment, {self.spec.described()}, got {found.described()}"
            )
        for name, kind in self.expected_state().items():
            if name not in state:
                raise ValueError(f"{name} is missing")
            check_like(state[name], kind, name)

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint's tree that has passed `check_state`."""
        self.agent.load_state_dict(state["agent"])
        self.optimizer.set_state(state["optimizer"])
        torch.set_rng_state(state["torch_rng"])
        self.frames, self.updates = state["frames"], state["updates"]


def learning_rate_at(frames: int, train: TrainConfig) -> float:
    """The learning rate after this many frames."""
    return learning_rate_before_end(1.0 - frames / train.total_frames, train)


def learning_rate_before_end(remaining: float, train: TrainConfig) -> float:
    """The learning rate while this share of `total_frames` remains."""
    if train.learning_rate_schedule == "constant":
        return train.learning_rate
    return train.learning_rate * min(1.0, max(0.0, remaining) / (1.0 - train.decay_start))


def state_norm(state: State) -> Tensor:
    """Norm of a lane's recurrent state without whole numbers, averaged over lanes; 0 for a core without state."""
    numbers = [leaf.abs() if leaf.is_complex() else leaf for leaf in state]
    leaves = [leaf.float().reshape(len(leaf), -1) for leaf in numbers if leaf.is_floating_point()]
    return torch.cat(leaves, dim=1).norm(dim=1).mean() if leaves else torch.tensor(0.0)


def is_lost(state: State, agent: ActorCritic) -> bool:
    """Whether a recurrent state is NaN where the initial one is not: a checkpoint with it could not be resumed."""
    if not state_norm(state).isnan():
        return False
    pairs = zip(state, agent.initial_state(1), strict=True)
    return any(bool(leaf.isnan().any() and not first.isnan().any()) for leaf, first in pairs)


def make_agent(config: Config, spec: SpaceSpec, device: torch.device) -> ActorCritic:
    """A new agent from the settings, with the run's backend and precision for the core's scan.

    Raises:
      ValueError: as `ActorCritic` does, and if no checkpoint can hold the agent's state.
    """
    agent = ActorCritic.from_config(spec, config.core, config.agent).to(device)
    extra = {name: value for name, value in agent.state_dict().items() if not isinstance(value, Tensor)}
    try:
        checkpoint.to_bytes(extra)
    except TypeError as error:
        raise ValueError(f"get_extra_state() of the agent's modules: {error}") from error
    try:
        agent.load_state_dict(extra | {name: x.clone() for name, x in agent.state_dict().items() if name not in extra})
    except RuntimeError as error:  # of an expanded buffer
        raise ValueError(f"the agent's state cannot be loaded again: {error}") from error
    agent.core.backend, agent.core.precision = config.run.backend, config.run.precision
    return agent
