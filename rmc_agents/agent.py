"""The agent: observations through an encoder, a recurrent core and two heads."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from rmc_agents.config import AgentConfig, CoreConfig
from rmc_agents.cores import make_core
from rmc_agents.encoders import Encoder
from rmc_agents.types import AgentOutput, SpaceSpec, State, TimeStep


class ActorCritic(nn.Module):
    """A policy and a value function on top of one recurrent core.

    The core's state is passed in and out. It is reset where `steps.is_first`, before that observation is consumed, in
    acting and learning alike.

    Args:
      spec: the environment's spaces.
      core: which core, and its sizes.
      agent: encoder and heads.

    Raises:
      ValueError: for actions that are not Discrete, and for settings that do not fit.
    """

    core_gain: Tensor

    def __init__(self, spec: SpaceSpec, core: CoreConfig, agent: AgentConfig) -> None:
        super().__init__()
        if spec.action_space:
            raise ValueError(f"expected a Discrete action space that starts at 0, got {spec.action_space}")
        self.encoder = Encoder(spec, agent)
        self.core = make_core(core, self.encoder.output_size)
        self.skip = agent.core_skip and self.core.initial_state(1) != ()
        gain = self.core.default_gain if agent.core_gain is None else agent.core_gain
        self.register_buffer("core_gain", torch.tensor(gain))  # saved: an agent outlives a change of the default
        features = self.core.output_size + (self.encoder.output_size if self.skip else 0)
        self.policy = _head(features, spec.num_actions, gain=0.01)
        self.value = _head(features, 1, gain=1.0)

    def initial_state(self, batch_size: int) -> State:
        """The core's state before an episode's first observation; every leaf `[batch_size, ...]`."""
        return self.core.initial_state(batch_size)

    def step(self, steps: TimeStep, state: State) -> tuple[AgentOutput, State]:
        """One step of all lanes: time steps `[B, ...]` to an output `[B, ...]` and the next state."""
        encoded = self.encoder(steps)  # [B, D]
        output, state = self.core.step(encoded, steps.is_first, state)
        return self._heads(output, encoded), state

    def unroll(self, steps: TimeStep, state: State) -> tuple[AgentOutput, State]:
        """T steps of all lanes: time steps `[T, B, ...]` to outputs `[T, B, ...]` and the state after them."""
        encoded = self.encoder(steps)  # [T, B, D]
        outputs, state = self.core.unroll(encoded, steps.is_first, state)
        return self._heads(outputs, encoded), state

    @torch.no_grad()
    def attention(self, steps: TimeStep, state: State) -> Tensor | None:
        """`Core.attention_weights` of the same step: where memory slots look; None for a core without attention."""
        return self.core.attention_weights(self.encoder(steps), steps.is_first, state)

    def _heads(self, output: Tensor, encoded: Tensor) -> AgentOutput:
        """Both heads as one linear map."""
        size = self.core.output_size
        weight = torch.cat([self.policy.weight, self.value.weight])  # [A+1, features]
        bias = torch.cat([self.policy.bias, self.value.bias])
        sums = functional.linear(output, weight[:, :size] * self.core_gain, bias)
        if self.skip:
            sums = sums + functional.linear(encoded, weight[:, size:])
        return AgentOutput(sums[..., :-1], sums[..., -1])


def _head(inputs: int, outputs: int, gain: float) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain=gain)
    nn.init.zeros_(layer.bias)
    return layer
