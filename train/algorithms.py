"""The one place where the name of an algorithm becomes a trainer."""

import torch

from rmc_agents.config import Config

from .a2c import A2C
from .ppo import PPO

ALGORITHMS: dict[str, type[A2C]] = {"a2c": A2C, "ppo": PPO}


def make_trainer(config: Config, device: torch.device) -> A2C:
    """The trainer that `config.train.algo` names; raises ValueError for settings that do not fit together."""
    return ALGORITHMS[config.train.algo](config, device)
