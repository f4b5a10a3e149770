"""Trained models of Stable-Baselines3 as policies that evaluation and video take."""

from pathlib import Path
from typing import Any

import torch
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

from rmc_agents.spaces import SpaceSpec
from rmc_agents.types import AgentOutput, State, TimeStep, map_leaves

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
      spec: the spaces of the environment that it was trained in.
    """

    def __init__(self, policy: ActorCriticPolicy, spec: SpaceSpec) -> None:
        super().__init__()
        self.policy, self.spec = policy, spec

    def initial_state(self, batch_size: int) -> State:
        """None is needed."""
        return ()

    @torch.no_grad()
    def step(self, steps: TimeStep, state: State) -> tuple[AgentOutput, State]:
        """One step of all lanes."""
        obs = self._to_obs(steps)
        parameters = self._to_parameters(self.policy.get_distribution(obs))
        return AgentOutput(parameters, self.policy.predict_values(obs).flatten()), state

    def _to_obs(self, steps: TimeStep) -> Any:
        """Observations in the order and on the device that the policy takes them."""
        obs = map_leaves(torch.Tensor.cpu, steps.obs)
        arrays = {name: x.numpy() for name, x in obs.items()} if isinstance(obs, dict) else obs.numpy()
        return self.policy.obs_to_tensor(arrays)[0]

    def _to_parameters(self, distribution: Distribution) -> torch.Tensor:
        """Of the actions of B lanes, `[B, P]`, as `SpaceSpec.distribution` takes them."""
        torch_distribution: Any = distribution.distribution
        if isinstance(torch_distribution, list):
            return torch.cat([entry.logits for entry in torch_distribution], dim=-1)
        if not isinstance(torch_distribution, Normal):
            return torch_distribution.logits
        mean, deviation = torch_distribution.mean, torch_distribution.stddev  # in the environment's own units
        part = self.spec.action_parts[0]
        low, high = (mean.new_tensor(bound) for bound in (part.low, part.high))
        half = ((high - low) / 2).clamp(min=torch.finfo(mean.dtype).tiny)
        return torch.cat([(mean - (low + high) / 2) / half, (deviation / half).log()], dim=-1)


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
        parameters = self._to_parameters(self.policy.get_distribution(obs, state.pi, episode_starts)[0])
        _, value, _, state = self.policy(obs, state, episode_starts, deterministic=True)
        return AgentOutput(parameters, value.flatten()), state


def make_player(model: OnPolicyAlgorithm, spec: SpaceSpec) -> Player:
    """The player of a model's policy, ready to play in environments of these spaces."""
    is_recurrent = isinstance(model.policy, RecurrentActorCriticPolicy)
    player = (RecurrentPlayer if is_recurrent else Player)(model.policy, spec)
    return player.eval()
