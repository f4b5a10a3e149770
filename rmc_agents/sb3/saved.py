"""Trained models of Stable-Baselines3 as policies for evaluation and video."""

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

from rmc_agents.kernels.modes import untouched_generators
from rmc_agents.registry import NotRegistered
from rmc_agents.spaces import SpaceSpec
from rmc_agents.types import AgentOutput, State, TimeStep, map_leaves

from .entries import entries

ALGORITHMS: dict[str, type[OnPolicyAlgorithm]] = {"recurrent-ppo": RecurrentPPO, "sb3-a2c": A2C, "sb3-ppo": PPO}
"""Model classes by their names in `rmc-train --algo`."""


def load_model(algo: str, path: Path, device: torch.device, env: VecEnv | None = None) -> OnPolicyAlgorithm:
    """Load the model of an archive. This can run any code in the archive: the caller must know that it is trusted.

    Args:
      algo: a name of `ALGORITHMS`.
      path: the archive.
      device: the model's device.
      env: for further training.

    Raises:
      ValueError: if it cannot be opened.
    """
    try:
        with untouched_generators():  # it seeds them
            return ALGORITHMS[algo].load(path, env=env, device=device)
    except NotRegistered:
        raise
    except Exception as error:  # unpickling may raise anything
        raise ValueError(f"{path} does not hold a model that Stable-Baselines3 can open: {error!r}") from error


class Sb3Policy(nn.Module):
    """A policy without memory, as a `types.Policy`.

    Args:
      policy: the policy of a model.
      spec: the spaces of the environment that it was trained in.
    """

    def __init__(self, policy: ActorCriticPolicy, spec: SpaceSpec) -> None:
        super().__init__()
        self.policy, self.spec, self._entries = policy, spec, entries(spec.obs_parts)

    def initial_state(self, batch_size: int) -> State:
        """`()`: there is no state."""
        return ()

    @torch.no_grad()
    def step(self, steps: TimeStep, state: State) -> tuple[AgentOutput, State]:
        obs = self._to_obs(steps)
        parameters = self._to_parameters(self.policy.get_distribution(obs))
        return AgentOutput(parameters, self.policy.predict_values(obs).flatten()), state

    def _to_obs(self, steps: TimeStep) -> Any:
        """Observations in the layout and on the device of the policy."""
        obs = map_leaves(torch.Tensor.cpu, steps.obs)
        arrays = (
            {entry.name: entry.arrange(obs[entry.name].numpy()) for entry in self._entries}
            if isinstance(obs, dict)
            else obs.numpy()
        )
        return self.policy.obs_to_tensor(arrays)[0]

    def _to_parameters(self, distribution: Distribution) -> torch.Tensor:
        """The parameters `[B, P]` that `SpaceSpec.distribution` takes."""
        torch_distribution: Any = distribution.distribution
        if isinstance(torch_distribution, list):
            return torch.cat([entry.logits for entry in torch_distribution], dim=-1)
        if not isinstance(torch_distribution, Normal):
            return torch_distribution.logits
        mean, deviation = torch_distribution.mean, torch_distribution.stddev  # in the environment's own units
        part = self.spec.action_parts[0]
        low, high = (mean.new_tensor(bound) for bound in (part.low, part.high))
        is_fixed = low == high  # to one value, whatever the distribution
        from_middle = (mean - (low + high) / 2).masked_fill(is_fixed, 0.0)
        half = ((high - low) / 2).masked_fill(is_fixed, 1.0)
        return torch.cat([from_middle / half, (deviation / half).log()], dim=-1)


class RecurrentSb3Policy(Sb3Policy):
    """A policy with memory; its state is sb3-contrib's, with the lanes in the first axis instead of the second."""

    def initial_state(self, batch_size: int) -> RNNStates:
        """Zeros, the packed initial state; `step` also resets each lane where an episode begins."""
        layers, _, size = self.policy.lstm_hidden_state_shape
        zeros = torch.zeros(batch_size, layers, size, device=self.policy.device)
        return RNNStates((zeros, zeros), (zeros, zeros))

    @torch.no_grad()
    def step(self, steps: TimeStep, state: RNNStates) -> tuple[AgentOutput, RNNStates]:
        """One step of all lanes, from the initial state where an episode begins."""
        obs, episode_starts, state = self._to_obs(steps), steps.is_first.float(), _transposed(state)
        parameters = self._to_parameters(self.policy.get_distribution(obs, state.pi, episode_starts)[0])
        _, value, _, state = self.policy(obs, state, episode_starts, deterministic=True)
        return AgentOutput(parameters, value.flatten()), _transposed(state)


def _transposed(state: RNNStates) -> RNNStates:
    """The state with layers and lanes exchanged."""
    exchanged: RNNStates = map_leaves(lambda leaf: leaf.transpose(0, 1).contiguous(), state)
    return exchanged


def make_policy(model: OnPolicyAlgorithm, spec: SpaceSpec) -> Sb3Policy:
    """A model's policy as a `types.Policy`, for environments with these spaces."""
    is_recurrent = isinstance(model.policy, RecurrentActorCriticPolicy)
    return (RecurrentSb3Policy if is_recurrent else Sb3Policy)(model.policy, spec).eval()
