"""Small agents and trainers, random time steps, and a rollout in which episodes end in every way."""

from collections.abc import Callable

import pytest
import torch

from rmc_agents.agent import ActorCritic
from rmc_agents.config import Config
from rmc_agents.losses import Metrics
from rmc_agents.spaces import SpaceSpec
from rmc_agents.train.on_policy import OnPolicy
from rmc_agents.train.trainer import Trainer
from rmc_agents.types import Rollout, TimeStep

CPU = torch.device("cpu")
SPEC = SpaceSpec((5, 5, 3), "uint8", 1 / 255, 5)


def make_agent(core: str = "rmc", **settings: object) -> ActorCritic:
    """An agent of one of the cores, for observations and actions of SPEC."""
    config = Config().updated({"core": core, "mem_slots": 3, "head_size": 4, "hidden_size": 16} | settings, "test")
    return ActorCritic.from_config(SPEC, config.core, config.agent)


def set_gradients(agent: ActorCritic, seed: int) -> None:
    """Random gradients, the same ones for a seed."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in agent.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def random_steps(*leading: int, spec: SpaceSpec = SPEC, seed: int = 0) -> TimeStep:
    """Time steps `[*leading, ...]`, about a third of which begin an episode; none ends one."""
    generator = torch.Generator().manual_seed(seed)
    obs = torch.randint(0, 256, (*leading, *spec.obs_shape), generator=generator, dtype=torch.uint8)
    flags = torch.rand(leading, generator=generator)
    action = torch.randint(0, spec.num_actions, leading, generator=generator)
    reward = torch.randn(leading, generator=generator)
    return TimeStep(obs, flags < 0.3, action, reward, flags > 2, flags > 2)


LENGTH, LANES = 9, 3


def rollout_with_every_ending() -> Rollout:
    """Lane 0: one episode throughout. Lane 1: terminated at step 4. Lane 2: truncated at step 4."""
    steps = random_steps(LENGTH + 1, LANES)
    is_first, terminated, truncated = (torch.zeros(LENGTH + 1, LANES, dtype=torch.bool) for _ in range(3))
    terminated[4, 1] = truncated[4, 2] = True
    is_first[5, 1:] = True
    steps = steps._replace(
        is_first=is_first,
        terminated=terminated,
        truncated=truncated,
        prev_reward=torch.where(is_first, 0.0, steps.prev_reward),
    )
    logits, value = torch.zeros(LENGTH, LANES, SPEC.num_actions), torch.zeros(LENGTH, LANES)
    return Rollout(steps, logits, value, make_agent("lstm").initial_state(LANES))


def before_update(
    monkeypatch: pytest.MonkeyPatch, number: int, act: Callable[[], object], kind: type[Trainer] = OnPolicy
) -> None:
    """Call `act` before the update that follows the first `number` of a training."""
    update = kind.update

    def acting(trainer: Trainer) -> Metrics:
        if trainer.updates == number:
            act()
        return update(trainer)

    monkeypatch.setattr(kind, "update", acting)


def small_trainer(algo: str = "a2c", core: str = "none", **settings: object) -> OnPolicy:
    """A trainer with 6 lanes of the environment that asks for a cue."""
    sizes = {"hidden_size": 8, "mem_slots": 3, "head_size": 4, "encoder_sizes": [8], "num_envs": 6, "unroll_length": 7}
    config = Config().updated({"algo": algo, "env": "recall", "core": core} | sizes | settings, "test")
    return OnPolicy(config, CPU)
