"""From settings to a trainer."""

import torch
from gymnasium.vector import VectorEnv

from rmc_agents.config import LOSSES, Config
from rmc_agents.runs.saved import pick_device

from .distributed import learners
from .impala.trainer import Impala
from .on_policy import OnPolicy
from .supervised import Supervised
from .trainer import Trainer

ON_POLICY = ("a2c", "ppo")


def new_trainer(config: Config, env: VectorEnv | None = None) -> Trainer:
    """A trainer with the threads, device and learners of the settings; `env` and errors as in `make_trainer`."""
    torch.set_num_threads(config.run.threads)
    device = pick_device(config.run.device)
    return make_trainer(learners.with_number(config, device), device, env)


def make_trainer(config: Config, device: torch.device, env: VectorEnv | None = None) -> Trainer:
    """Create the trainer that `config.train.algo` names.

    Args:
      config: all settings.
      device: the learner's device.
      env: replaces the environment of the settings; only for a2c, ppo and supervised.

    Raises:
      ValueError: for settings that do not fit together, or if Stable-Baselines3 is needed and not installed.
    """
    if config.env.curriculum:
        _check_curriculum(config, env)
    if config.train.loss not in LOSSES and config.train.algo not in ON_POLICY:
        raise ValueError(f"loss: expected algo a2c or ppo for {config.train.loss}, got {config.train.algo}")
    if config.train.algo in ON_POLICY:
        return OnPolicy(config, device, env)
    if config.train.is_supervised:
        return Supervised(config, device, env)
    if env is not None:
        raise ValueError(f"env: expected algo a2c, ppo or supervised for a vector environment, got {config.train.algo}")
    if config.train.algo == "impala":
        return Impala(config, device)
    try:
        import rmc_agents.sb3  # noqa: F401  # raises an error that says what is missing
    except ImportError as error:
        raise ValueError(f"--algo {config.train.algo}: {error}") from error
    from .sb3.trainer import Sb3Trainer

    return Sb3Trainer(config, device)


def _check_curriculum(config: Config, env: VectorEnv | None) -> None:
    if config.train.algo not in (*ON_POLICY, "supervised"):
        raise ValueError(f"curriculum: expected algo a2c, ppo or supervised, got {config.train.algo}")
    if env is not None:
        raise ValueError("curriculum: every stage creates a new environment: expected its name or class, got an object")
