"""The agent: observations through an encoder, a recurrent core and two heads."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from rmc_agents.config import AgentConfig, CoreConfig
from rmc_agents.cores import RMC, core_gain, make_core
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
        self.skip = agent.core_skip and core.core != "none"
        gain = core_gain(core.core, agent.core_gain)
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
        """`RMC.attention` of the same step: where its slots look; None for other cores."""
        if not isinstance(self.core, RMC):
            return None
        return self.core.attention(self.encoder(steps), steps.is_first, state)

    def record(self, steps: int, state: State) -> "AgentRecording":
        """Begin to act for T = `steps` steps from `state`, to learn from them afterwards."""
        return AgentRecording(self, steps, state)

    def _heads(self, output: Tensor, encoded: Tensor, heads: "_Heads | None" = None) -> AgentOutput:
        heads = heads or self._head_weights()
        sums = functional.linear(output, heads.core, heads.bias)
        if heads.encoder is not None:
            sums = sums + functional.linear(encoded, heads.encoder)
        return AgentOutput(sums[..., :-1], sums[..., -1])

    def _head_weights(self) -> "_Heads":
        size = self.core.output_size
        weight = torch.cat([self.policy.weight, self.value.weight])  # [A+1, features]
        bias = torch.cat([self.policy.bias, self.value.bias])
        return _Heads(weight[:, :size] * self.core_gain, weight[:, size:] if self.skip else None, bias)


class _Heads(NamedTuple):
    """Both heads as one linear map."""

    core: Tensor  # [A+1, H], of the core's output
    encoder: Tensor | None  # [A+1, D], of the encoder's
    bias: Tensor  # [A+1]


class AgentRecording:
    """An unroll that is made by acting: `step` T times, then `replay` or `discard` (see `cores.base.Recording`)."""

    def __init__(self, agent: ActorCritic, steps: int, state: State) -> None:
        self._agent, self._core = agent, agent.core.record(steps, state)
        with torch.no_grad():
            self._heads = agent._head_weights()

    @property
    def state(self) -> State:
        """The core's state after all T steps."""
        return self._core.state

    @torch.no_grad()
    def step(self, steps: TimeStep) -> AgentOutput:
        """As `ActorCritic.step`, from the state after the step before; without gradient."""
        encoded = self._agent.encoder(steps)
        return self._agent._heads(self._core.step(encoded, steps.is_first), encoded, self._heads)

    def replay(self, steps: TimeStep) -> AgentOutput:
        """What `step` said to the T time steps `[T, B, ...]` that it was given, with gradient."""
        encoded = self._agent.encoder(steps)
        return self._agent._heads(self._core.replay(encoded), encoded)

    def discard(self) -> None:
        """Instead of `replay`, where nothing is learned from the steps as they were."""
        self._core.discard()


def _head(inputs: int, outputs: int, gain: float) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain=gain)
    nn.init.zeros_(layer.bias)
    return layer
