"""Trained models of Stable-Baselines3 as policies that evaluation and video take."""

from pathlib import Path
from typing import Any

import torch
from gymnasium import spaces
from sb3_contrib import RecurrentPPO
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
from sb3_contrib.common.recurrent.type_aliases import RNNStates
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.distributions import Distribution
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.vec_env import VecEnv
from torch import nn
from torch.distributions import Normal

from rmc_agents.collect import choose_action
from rmc_agents.types import AgentOutput, State, TimeStep

ALGORITHMS: dict[str, type[OnPolicyAlgorithm]] = {"recurrent-ppo": RecurrentPPO, "sb3-a2c": A2C, "sb3-ppo": PPO}
"""What `rmc-train --algo` calls them."""


def load_model(algo: str, path: Path, device: torch.device, env: VecEnv | None = None) -> OnPolicyAlgorithm:
    """The model of an archive. Whatever code is in the archive is run: it is for the caller to know that it is trusted.

    Args:
      algo: a name of `ALGORITHMS`.
      path: the archive.
      device: where the model is to live.
      env: to go on learning in.

    Raises:
      ValueError: if it cannot be opened.
    """
    try:
        return ALGORITHMS[algo].load(path, env=env, device=device)
    except Exception as error:  # what pickles call may raise anything
        raise ValueError(f"{path} does not hold a model that Stable-Baselines3 can open: {error!r}") from error


class Player(nn.Module):
    """A policy without memory, as `types.Policy` wants it.

    Args:
      policy: any.
    """

    def __init__(self, policy: ActorCriticPolicy) -> None:
        super().__init__()
        self.policy = policy

    def initial_state(self, batch_size: int) -> State:
        """None is needed."""
        return ()

    @torch.no_grad()
    def step(self, steps: TimeStep, state: State) -> tuple[AgentOutput, State]:
        """One step of all lanes."""
        obs = self._to_obs(steps)
        parameters = _parameters(self.policy.get_distribution(obs))
        return AgentOutput(parameters, self.policy.predict_values(obs).flatten()), state

    def choose(self, parameters: torch.Tensor, generator: torch.Generator, deterministic: bool) -> torch.Tensor:
        """Actions `[B, ...]` from the distribution's parameters `[B, P]`: the likeliest, or drawn."""
        space = self.policy.action_space
        if isinstance(space, spaces.Discrete):
            return choose_action(parameters, generator, deterministic)
        if isinstance(space, spaces.MultiDiscrete):
            entries = parameters.split(space.nvec.tolist(), dim=-1)
            return torch.stack([choose_action(logits, generator, deterministic) for logits in entries], dim=-1)
        if isinstance(space, spaces.MultiBinary):
            drawn = torch.rand(parameters.shape, generator=generator, device=parameters.device)
            return (parameters.sigmoid() > (0.5 if deterministic else drawn)).to(torch.int8)
        assert isinstance(space, spaces.Box)
        mean, deviation = parameters.chunk(2, dim=-1)
        noise = torch.randn(mean.shape, generator=generator, device=mean.device)
        actions = mean if deterministic else mean + deviation * noise
        low, high = (torch.as_tensor(bound, device=mean.device) for bound in (space.low, space.high))
        return actions.unflatten(-1, space.shape).clamp(low, high)

    def _to_obs(self, steps: TimeStep) -> torch.Tensor:
        """Observations in the order and on the device that the policy takes them."""
        return self.policy.obs_to_tensor(steps.obs.cpu().numpy())[0]


class RecurrentPlayer(Player):
    """The same with memory; its state is that of sb3-contrib, with the lanes in the second axis."""

    def initial_state(self, batch_size: int) -> RNNStates:
        """Zeros, which stand for a fresh state; `step` resets each lane where its episode begins anyway."""
        layers, _, size = self.policy.lstm_hidden_state_shape
        actor, critic = (
            tuple(torch.zeros(layers, batch_size, size, device=self.policy.device) for _ in range(2)) for _ in range(2)
        )
        return RNNStates(actor, critic)

    @torch.no_grad()
    def step(self, steps: TimeStep, state: RNNStates) -> tuple[AgentOutput, RNNStates]:
        """One step of all lanes, those in which an episode begins from a fresh state."""
        obs, episode_starts = self._to_obs(steps), steps.is_first.float()
        parameters = _parameters(self.policy.get_distribution(obs, state.pi, episode_starts)[0])
        _, value, _, state = self.policy(obs, state, episode_starts, deterministic=True)
        return AgentOutput(parameters, value.flatten()), state


def _parameters(distribution: Distribution) -> torch.Tensor:
    """Of the actions of B lanes, `[B, P]`: logits, of several entries side by side, or means and then deviations."""
    torch_distribution: Any = distribution.distribution
    if isinstance(torch_distribution, list):
        return torch.cat([entry.logits for entry in torch_distribution], dim=-1)
    if isinstance(torch_distribution, Normal):
        return torch.cat([torch_distribution.mean, torch_distribution.stddev], dim=-1)
    return torch_distribution.logits


def make_player(model: OnPolicyAlgorithm) -> Player:
    """The player of a model's policy, ready to play."""
    is_recurrent = isinstance(model.policy, RecurrentActorCriticPolicy)
    player = (RecurrentPlayer if is_recurrent else Player)(model.policy)
    return player.eval()
