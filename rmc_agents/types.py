"""The shared vocabulary: what flows between environment, agent and losses.

T is the number of steps of a rollout, B the number of lanes (environments), P the number of parameters of the actions'
distribution: for Discrete actions, one logit for each. A rollout holds T + 1 observations: the last one is there to be
bootstrapped from, and is the first of the next rollout.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

State = Any
"""A core's recurrent state: a tuple of tensors, named or plain, every leaf `[B, ...]`; `()` without memory."""
Observation = Any
"""A tensor, or the tensors of a nested observation by name (see `SpaceSpec`); each `[B, ...]`."""


def map_leaves(function: Callable[..., Tensor], *trees: Any) -> Any:
    """A tree like the first one (a state, time steps), each leaf the function of the leaves at its place in all trees.

    Leaves are tensors, nodes are tuples, named or plain, and dicts; None stays None.

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
    """Every leaf at an index: `at(steps, t)` is one of T time steps, `at(steps, slice(None), lanes)` some lanes."""
    return map_leaves(lambda leaf: leaf[index], tree)


class NotRegistered(ValueError):
    """A name that no core or encoder has; the message has the nearest, and says how to register one."""


class TimeStep(NamedTuple):
    """What an environment hands out at one step, for all lanes. `map_leaves` slices, stacks and moves it.

    Under NEXT_STEP autoreset an episode's last observation (`terminated` or `truncated`) is followed by the
    first one of the next episode (`is_first`); the step between the two is filler, and its action is ignored.
    """

    obs: Observation  # [B, ...], in the dtype of its `ArraySpec`
    is_first: Tensor  # [B] bool: this observation begins an episode
    prev_action: Tensor  # [B] int64, or [B, W] (see `SpaceSpec`): what led here; meaningless where is_first
    prev_reward: Tensor  # [B] float32: the reward that came with the observation; 0 where is_first
    terminated: Tensor  # [B] bool: this observation is its episode's last, and nothing follows
    truncated: Tensor  # [B] bool: this observation is its episode's last, but only because it was cut short
    action_mask: Tensor | None = None  # [B, A] bool: the actions that are allowed now; None: all are


class Distribution(Protocol):
    """Of actions, batched as `[...]`; see `distributions`."""

    def sample(self, generator: torch.Generator) -> Tensor:
        """Drawn actions."""

    def mode(self) -> Tensor:
        """The likeliest actions."""

    def log_prob(self, action: Tensor) -> Tensor:
        """Log-probabilities, or log-densities, `[...]`."""

    def entropy(self) -> Tensor:
        """In nats, `[...]`."""

    def kl(self, other: Any) -> Tensor:
        """KL(self, other) in nats, `[...]`."""


class Rollout(NamedTuple):
    """A piece of experience of T steps: T + 1 time steps, and what the agent did in the first T of them."""

    steps: TimeStep  # every field [T+1, B, ...]
    policy_logits: Tensor  # [T, B, P]: of the policy that acted
    value: Tensor  # [T, B]: what the agent that acted expected
    initial_state: State  # the core's state before steps[0] was consumed
    targets: Tensor | None = None  # [T, B] int64: the right actions, -1 where nothing is asked; None: not told
    distribution: Callable[[Tensor], Distribution] | None = None  # made of policy_logits; None: `Categorical`


class AgentOutput(NamedTuple):
    """What the agent says to one batch of observations, `[B, ...]` from a step, `[T, B, ...]` from an unroll."""

    policy_logits: Tensor  # [..., P]: logits, means and deviations, as `SpaceSpec.distribution` takes them
    value: Tensor  # [...]


class Policy(Protocol):
    """Whatever plays: an `ActorCritic`, or uniform random play."""

    def initial_state(self, batch_size: int) -> State:
        """The state before an episode."""

    def step(self, steps: TimeStep, state: State) -> tuple[AgentOutput, State]:
        """One step of all lanes."""
