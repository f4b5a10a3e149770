"""Shared types: the data that flows between environment, agent and losses.

T is the number of steps of a rollout, B the number of lanes (environments), P the number of parameters of the action
distribution: for Discrete actions, one logit per action. A rollout holds T + 1 observations: the last one provides the
bootstrap value and is the first one of the next rollout.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

State = Any
"""A core's recurrent state: a tuple of tensors, named or plain, every leaf `[B, ...]`; `()` without memory."""
Step = Callable[[Tensor, Tensor, State], tuple[Tensor, State]]
"""As `Core.step`: (inputs `[B, D]`, should_reset `[B]` bool, state) to the output `[B, H]` and the next state."""
Observation = Any
"""A tensor, or the tensors of a nested observation by name (see `SpaceSpec`); each `[B, ...]`."""


def map_leaves(function: Callable[..., Tensor], *trees: Any) -> Any:
    """Apply a function to the corresponding leaves of one or more trees (states, time steps).

    Leaves are tensors; nodes are tuples, named or plain, and dicts; None stays None.

    Raises:
      ValueError: for tuples of different lengths.
    """
    first = trees[0]
    if isinstance(first, Tensor):
        return function(*trees)
    if first is None:
        return None
    if isinstance(first, dict):
        return {name: map_leaves(function, *(tree[name] for tree in trees)) for name in first}
    parts = [map_leaves(function, *parts) for parts in zip(*trees, strict=True)]
    return type(first)(*parts) if hasattr(first, "_fields") else tuple(parts)


def at(tree: Any, *index: Any) -> Any:
    """Index every leaf: `at(steps, t)` is one of T time steps, `at(steps, slice(None), lanes)` selects lanes."""
    return map_leaves(lambda leaf: leaf[index], tree)


class TimeStep(NamedTuple):
    """One step of the environment, for all lanes. `map_leaves` slices, stacks and moves it.

    Under NEXT_STEP autoreset an episode's last observation (`terminated` or `truncated`) is followed by the
    first one of the next episode (`is_first`); the step between the two is filler, and its action is ignored.

    Attributes:
      obs: `[B, ...]`, in the dtype of its `ArraySpec`.
      is_first: `[B]` bool: this observation begins an episode.
      prev_action: `[B]` int64, or `[B, W]` (see `SpaceSpec`): the action that led here; meaningless where is_first.
      prev_reward: `[B]` float32: the reward that came with the observation; 0 where is_first.
      terminated: `[B]` bool: the episode's last observation, without a bootstrap value.
      truncated: `[B]` bool: the episode's last observation, because the episode was cut short.
      action_mask: `[B, A]` bool: the allowed actions; None: all.
    """

    obs: Observation
    is_first: Tensor
    prev_action: Tensor
    prev_reward: Tensor
    terminated: Tensor
    truncated: Tensor
    action_mask: Tensor | None = None


class Distribution(Protocol):
    """A distribution of actions, with batch shape `[...]`; see `distributions`."""

    def sample(self, generator: torch.Generator) -> Tensor:
        """Sampled actions."""

    def mode(self) -> Tensor:
        """The most likely actions."""

    def log_prob(self, action: Tensor) -> Tensor:
        """Log-probabilities, or log-densities, `[...]`."""

    def entropy(self) -> Tensor:
        """Entropies in nats, `[...]`."""

    def kl(self, other: Any) -> Tensor:
        """KL(self, other) in nats, `[...]`."""

    def canonical(self) -> Tensor:
        """The parameters `[..., K]` that equal distributions share, such as probabilities."""


class Rollout(NamedTuple):
    """T steps of experience: T + 1 time steps, and the agent's outputs at the first T of them.

    Attributes:
      steps: every field `[T+1, B, ...]`.
      policy_logits: `[T, B, P]`: from the policy that acted.
      value: `[T, B]`: values from the agent that acted.
      initial_state: the core's state before `steps[0]` was consumed.
      targets: `[T, B]` int64: the correct actions, -1 for steps without one; None: not reported.
      distribution: makes one from `policy_logits`; None: `Categorical`.
    """

    steps: TimeStep
    policy_logits: Tensor
    value: Tensor
    initial_state: State
    targets: Tensor | None = None
    distribution: Callable[[Tensor], Distribution] | None = None

    def lanes(self, index: Tensor | slice) -> "Rollout":
        """The rollout of some lanes, such as a minibatch: whole sequences with their own initial state."""
        by_time = at(self._replace(initial_state=None, distribution=None), slice(None), index)
        return by_time._replace(initial_state=at(self.initial_state, index), distribution=self.distribution)


class AgentOutput(NamedTuple):
    """The agent's outputs for a batch of observations: `[B, ...]` from `step`, `[T, B, ...]` from `unroll`.

    Attributes:
      policy_logits: `[..., P]`: logits, means and log standard deviations, for `SpaceSpec.distribution`.
      value: `[...]`: the expected discounted return, in the scale of the losses (`reward_scale`).
    """

    policy_logits: Tensor
    value: Tensor


class OutputWithRewards(NamedTuple):
    """As `AgentOutput`, from the `unroll` of an agent that predicts rewards.

    Attributes:
      policy_logits: as there.
      value: as there.
      reward: `[..., A]`: the predicted reward of each action.
    """

    policy_logits: Tensor
    value: Tensor
    reward: Tensor


UnrollOutput = AgentOutput | OutputWithRewards


class Policy(Protocol):
    """Anything that can act: an `ActorCritic`, uniform random play, or an object of one's own with these methods.

    Lanes are independent: where `steps.is_first`, an episode begins, and `step` has to start from the initial state. It
    may ignore `steps.action_mask`, since forbidden actions are masked in its outputs.
    """

    def initial_state(self, batch_size: int) -> State:
        """The state at the start of an episode; every leaf `[batch_size, ...]`."""

    def step(self, steps: TimeStep, state: State) -> tuple[AgentOutput, State]:
        """One step of all lanes: policy logits `[B, P]`, with P = spec.num_outputs + spec.num_scales, values `[B]`, and
        the next state."""
