"""The agent: observations through an encoder, a recurrent core and heads."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from rmc_agents.config import AgentConfig, CoreConfig
from rmc_agents.cores import Core, as_core, make_core
from rmc_agents.cores.inspection import attention_of
from rmc_agents.cores.registry import build_core
from rmc_agents.distributions import forbid
from rmc_agents.encoders import BuildEncoder, hidden_layers, make_encoder, orthogonal_layer, rectified
from rmc_agents.kernels.modes import no_autocast
from rmc_agents.kernels.weights import affine
from rmc_agents.spaces import SpaceSpec
from rmc_agents.types import AgentOutput, OutputWithRewards, State, Step, TimeStep, UnrollOutput, map_leaves

BuildCore = Callable[[int], nn.Module]

LOG_STD = -0.5
"""Initial log standard deviation of continuous (Box) actions, which are rescaled to -1..1."""


def check_default_dtype() -> None:
    """Raises ValueError unless torch's default dtype, of new weights and observations, is float32."""
    if torch.get_default_dtype() != torch.float32:
        raise ValueError(f"torch's default dtype: expected float32, as of all agents, got {torch.get_default_dtype()}")


class ActorCritic(nn.Module):
    """A policy and a value function on top of one recurrent core.

    The core's state is passed in and out. It is reset where `steps.is_first`, before that observation is consumed, in
    acting and learning alike.

        agent = ActorCritic(SpaceSpec.of(env), LSTM)
        agent = ActorCritic(SpaceSpec.of(env), partial(RMC, mem_slots=8), encoder="conv", core_skip=False)

    Args:
      spec: the environment's spaces.
      core: the recurrent core: a class or function that takes the input size and returns a core, a registered name, or
        a core with the encoder's output size as its input size. A core is a `Core`, or any module with the methods
        `initial_state`, `step` and `unroll`.
      encoder: maps observations to features: a class or function that takes the spec and returns a module, a
        registered name, or a module (see `register_encoder`).
      encoder_sizes: widths of the fully connected layers of a built-in encoder.
      encoder_args: further arguments of an encoder that is a class, a function or a registered name.
      core_skip: the heads read the encoder's output as well as the core's, if the core has memory.
      core_gain: the heads multiply the core's output by this; None: the core's `default_gain`.
      head_sizes: widths of fully connected layers with ReLUs between these outputs and the heads, shared by them.
      predict_rewards: a third head predicts the reward of each action. Only the losses use it: its gradient shapes
        encoder and core.

    Attributes:
      spec: as above.
      encoder, core: the modules.
      head_layers: the layers of `head_sizes`.

    Raises:
      ValueError: if a name is not registered (the message suggests the nearest), the parts do not fit together, a
        width is not a positive integer, the rewards of other actions than Discrete ones are to be predicted, or
        torch's default dtype is not float32.
    """

    encoder: Any  # a module with output_size
    core: Core
    core_gain: Tensor
    reward: nn.Linear | None
    log_std: nn.Parameter | None  # [D] for D continuous actions: learned, the same in all states

    def __init__(
        self,
        spec: SpaceSpec,
        core: str | nn.Module | BuildCore,
        encoder: str | nn.Module | BuildEncoder = "auto",
        *,
        encoder_sizes: Sequence[int] = (256, 128),
        encoder_args: Mapping[str, Any] | None = None,
        core_skip: bool = True,
        core_gain: float | None = None,
        head_sizes: Sequence[int] = (),
        predict_rewards: bool = False,
    ) -> None:
        super().__init__()
        check_default_dtype()
        if not isinstance(spec, SpaceSpec):
            raise ValueError(f"spec: expected a SpaceSpec, such as SpaceSpec.of(env), got {type(spec).__name__}")
        self.spec = spec
        self.encoder = make_encoder(encoder, spec, encoder_sizes, encoder_args)
        self.core = _make_core(core, int(self.encoder.output_size))
        self.skip = core_skip and self.core.initial_state(1) != ()
        gain = self.core.default_gain if core_gain is None else core_gain
        self.register_buffer("core_gain", torch.tensor(float(gain)))  # saved: a later default must not change it
        features = self.core.output_size + (self.encoder.output_size if self.skip else 0)
        self.head_layers, width = hidden_layers("head_sizes", features, head_sizes)
        self.policy = orthogonal_layer(width, spec.num_outputs, gain=0.01)
        self.value = orthogonal_layer(width, 1, gain=1.0)
        if predict_rewards and not spec.num_actions:
            raise ValueError(
                f"predict_rewards: expected Discrete actions, each with its reward, got {spec.described()}"
            )
        self.reward = orthogonal_layer(width, spec.num_actions, gain=0.01) if predict_rewards else None
        self.log_std = nn.Parameter(torch.full((spec.num_scales,), LOG_STD)) if spec.num_scales else None

    @classmethod
    def from_config(cls, spec: SpaceSpec, core: CoreConfig, agent: AgentConfig) -> Self:
        """Build the agent from settings. Raises ValueError as the constructor does."""
        return cls(
            spec,
            partial(make_core, core),
            agent.encoder,
            encoder_sizes=agent.encoder_sizes,
            encoder_args=agent.encoder_args,
            core_skip=agent.core_skip,
            core_gain=agent.core_gain,
            head_sizes=agent.head_sizes,
            predict_rewards=agent.predict_rewards,
        )

    def initial_state(self, batch_size: int) -> State:
        """The core's state at the start of an episode; every leaf `[batch_size, ...]`."""
        return self.core.initial_state(batch_size)

    def step(self, steps: TimeStep, state: State) -> tuple[AgentOutput, State]:
        """One step of all lanes: time steps `[B, ...]` to an output `[B, ...]` and the next state."""
        return self._step(self.core.step, self.readout(), steps, state)

    @contextmanager
    def stepping(self, state: State) -> Iterator[Callable[[TimeStep, State], tuple[AgentOutput, State]]]:
        """A faster `step` for acting: the weights must not change in this context, and there are no gradients.

        Args:
          state: any state with the number of lanes of the steps.
        """
        if type(self).step is not ActorCritic.step:
            yield self.step
            return
        with torch.no_grad(), self.core.stepping(state) as core_step:
            yield partial(self._step, core_step, self.readout())

    def unroll(self, steps: TimeStep, state: State) -> tuple[UnrollOutput, State]:
        """T steps of all lanes: time steps `[T, B, ...]` to outputs `[T, B, ...]` and the state after them.

        With `predict_rewards`, the outputs are `OutputWithRewards`.
        """
        encoded = self.encode(steps)  # [T, B, D]
        outputs, state = self.core.unroll(encoded, steps.is_first, state)
        return self.heads(outputs, encoded, steps.action_mask), state

    def heads(self, outputs: Tensor, encoded: Tensor, action_mask: Tensor | None = None) -> UnrollOutput:
        """The heads' outputs, as `unroll` returns them.

        A loss that needs the core's outputs too calls `encode`, the core's `unroll` and this, instead of `unroll`. A
        subclass with heads of its own overrides it.

        Args:
          outputs: the core's, `[..., H]`.
          encoded: what `encode` returned, `[..., D]`.
          action_mask: the allowed actions, `[..., A]`.
        """
        return self._heads(outputs, encoded, action_mask, self.readout(self.reward))

    def encode(self, steps: TimeStep) -> Tensor:
        """Features `[..., D]` of time steps with fields `[..., *obs_shape]` and `[...]`.

        Raises:
          ValueError: if a custom encoder returns another shape than its `output_size` says, or another dtype.
        """
        leading = steps.is_first.shape
        if len(leading) != 1:
            steps = map_leaves(lambda x: x.flatten(0, len(leading) - 1), steps)  # [N, ...]
        features: Any = self.encoder(steps)
        expected = (steps.is_first.shape[0], int(self.encoder.output_size))
        if not isinstance(features, Tensor) or features.shape != expected:
            got = list(features.shape) if isinstance(features, Tensor) else type(features).__name__
            raise ValueError(f"encoder: expected features {list(expected)}, got {got}")
        self._check_dtype("encoder: expected features", features)
        return features if len(leading) == 1 else features.unflatten(0, leading)

    @torch.no_grad()
    def attention(self, steps: TimeStep, state: State) -> Tensor | None:
        """The core's attention weights in this step (see `Core.attention_weights`); None if it has no attention."""
        return attention_of(self.core, self.encode(steps), steps.is_first, state)

    def _step(self, core_step: Step, readout: "Readout", steps: TimeStep, state: State) -> tuple[AgentOutput, State]:
        encoded = self.encode(steps)  # [B, D]
        output, state = core_step(encoded, steps.is_first, state)
        if type(self).heads is not ActorCritic.heads:
            policy_logits, value, *_ = self.heads(output, encoded, steps.action_mask)
            return AgentOutput(policy_logits, value), state
        return self._heads(output, encoded, steps.action_mask, readout), state

    def _heads(self, output: Tensor, encoded: Tensor, action_mask: Tensor | None, readout: "Readout") -> Any:
        self._check_dtype("core: expected outputs", output)
        dtype = readout.bias.dtype
        with no_autocast(output.device.type):  # bfloat16 is too coarse for probabilities and values
            sums = functional.linear(output.to(dtype), readout.core, readout.bias)
            if readout.encoder is not None:
                sums = sums + functional.linear(encoded.to(dtype), readout.encoder)
            if readout.heads is not None:
                sums = functional.linear(rectified(self.head_layers[1:], sums.relu()), *readout.heads)
        outputs = self.spec.num_outputs
        parameters, value, rewards = sums[..., :outputs], sums[..., outputs], sums[..., outputs + 1 :]
        if self.log_std is not None:
            parameters = torch.cat([parameters, self.log_std.expand(*value.shape, -1)], dim=-1)
        logits = forbid(parameters, action_mask)
        return OutputWithRewards(logits, value, rewards) if rewards.shape[-1] else AgentOutput(logits, value)

    def _check_dtype(self, expected: str, values: Tensor) -> None:
        """Raises ValueError for a dtype that the heads cannot read; they can read those of autocast."""
        if values.dtype not in (self.policy.weight.dtype, torch.bfloat16, torch.float16):
            raise ValueError(f"{expected} of {self.policy.weight.dtype}, got {values.dtype}")

    def readout(self, *further: nn.Linear | None) -> "Readout":
        """The layer after core and encoder: the first of `head_layers`, else policy, value and further heads as one."""
        size, heads = self.core.output_size, _side_by_side([self.policy, self.value, *filter(None, further)])
        weight, bias = _side_by_side(self.head_layers[:1]) if self.head_layers else heads  # [M, features]
        encoder = weight[:, size:] if self.skip else None
        return Readout(weight[:, :size] * self.core_gain, encoder, bias, heads if self.head_layers else None)


class Readout(NamedTuple):
    """A linear map of the core's and the encoder's output, to the M outputs of the heads or to M units."""

    core: Tensor  # [M, H], of the core's output
    encoder: Tensor | None  # [M, D], of the encoder's
    bias: Tensor  # [M]
    heads: tuple[Tensor, Tensor] | None  # weight and bias of the heads after `head_layers`


def _side_by_side(layers: Iterable[Any]) -> tuple[Tensor, Tensor]:
    """Weight and bias of linear layers of the same inputs, as one."""
    weights, biases = zip(*map(affine, layers), strict=True)
    return torch.cat(weights), torch.cat(biases)


def _make_core(core: str | nn.Module | BuildCore, input_size: int) -> Core:
    """Build the core for inputs `[..., input_size]`."""
    if isinstance(core, str):
        return make_core(CoreConfig(core=core), input_size)
    if not callable(core):
        raise ValueError(f"core: expected a name, a class, a function or a module, got {type(core).__name__}")
    if isinstance(core, nn.Module):
        return as_core(core, input_size)
    return build_core(core, getattr(core, "__name__", type(core).__name__), input_size, {})
