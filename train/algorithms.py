"""The one place where the name of an algorithm becomes a trainer."""

from collections.abc import Callable

import torch

from rmc_agents.config import SB3_ALGORITHMS, Config
from rmc_agents.train.impala.learner import Impala

from . import distributed
from .a2c import A2C
from .ppo import PPO
from .trainer import Trainer

ALGORITHMS: dict[str, Callable[[Config, torch.device], Trainer]] = {"a2c": A2C, "ppo": PPO, "impala": Impala}
"""This project's own."""


def make_trainer(config: Config, device: torch.device) -> Trainer:
    """The trainer that `config.train.algo` names.

    Raises:
      ValueError: for settings that do not fit together, or if Stable-Baselines3 is needed and not installed.
    """
    distributed.check_settings(config, device)
    if config.train.algo not in SB3_ALGORITHMS:
        return ALGORITHMS[config.train.algo](config, device)
    try:
        import rmc_agents.sb3  # noqa: F401  # says what is missing
    except ImportError as error:
        raise ValueError(f"--algo {config.train.algo}: {error}") from error
    from rmc_agents.train.sb3.trainer import Sb3Trainer

    return Sb3Trainer(config, device)
