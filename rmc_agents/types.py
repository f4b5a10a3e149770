"""The shared vocabulary: what flows between environment, agent and losses.

T is the number of steps of a rollout, B the number of lanes (environments), A the number of actions.
A rollout holds T + 1 observations: the last one is there to be bootstrapped from, and is the first of the next rollout.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, Self

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space
from gymnasium.vector import VectorEnv
from torch import Tensor

State = Any
"""A core's recurrent state: a tuple of tensors, named or plain, every leaf `[B, ...]`; `()` without memory."""


def map_leaves(function: Callable[..., Tensor], *states: State) -> State:
    """A state of the first one's type, each leaf the function of the leaves at its place in all states.

    Raises:
      ValueError: for states with different numbers of leaves.
    """
    first = states[0]
    leaves = [function(*leaves) for leaves in zip(*states, strict=True)]
    return type(first)(*leaves) if hasattr(first, "_fields") else tuple(leaves)


class NotRegistered(ValueError):
    """A name that no core or encoder has; the message has the nearest, and says how to register one."""


class TimeStep(NamedTuple):
    """What an environment hands out at one step, for all lanes.

    Under NEXT_STEP autoreset an episode's last observation (`terminated` or `truncated`) is followed by the
    first one of the next episode (`is_first`); the step between the two is filler, and its action is ignored.
    """

    obs: Tensor  # [B, ...], the environment's own dtype
    is_first: Tensor  # [B] bool: this observation begins an episode
    prev_action: Tensor  # [B] int64: the action that led here; meaningless where is_first or actions are not Discrete
    prev_reward: Tensor  # [B] float32: the reward that came with the observation; 0 where is_first
    terminated: Tensor  # [B] bool: this observation is its episode's last, and nothing follows
    truncated: Tensor  # [B] bool: this observation is its episode's last, but only because it was cut short


class Rollout(NamedTuple):
    """A piece of experience of T steps: T + 1 time steps, and what the agent did in the first T of them."""

    steps: TimeStep  # every field [T+1, B, ...]
    policy_logits: Tensor  # [T, B, A]: of the policy that acted
    value: Tensor  # [T, B]: what the agent that acted expected
    initial_state: State  # the core's state before steps[0] was consumed


class AgentOutput(NamedTuple):
    """What the agent says to one batch of observations, `[B, ...]` from a step, `[T, B, ...]` from an unroll."""

    policy_logits: Tensor  # [..., A]
    value: Tensor  # [...]


class Policy(Protocol):
    """Whatever plays: an `ActorCritic`, or uniform random play."""

    def initial_state(self, batch_size: int) -> State:
        """The state before an episode."""

    def step(self, steps: TimeStep, state: State) -> tuple[AgentOutput, State]:
        """One step of all lanes."""


class SpaceSpec(NamedTuple):
    """What an agent needs to know of an environment's spaces to be built; plain values, so that it can be saved."""

    obs_shape: tuple[int, ...]
    obs_dtype: str  # a numpy name, 'uint8' or 'float32'
    obs_scale: float  # observations are multiplied by this: 1/255 for pictures
    num_actions: int
    obs_categories: tuple[int, ...] = ()  # of each entry, if all are names of categories instead of amounts: how many
    obs_are_tokens: bool = False  # categories mean the same in whichever entry they are; the most important come first
    action_space: str = ""  # in words, if it is not Discrete; num_actions is then 0

    @classmethod
    def of(cls, env: gym.Env | VectorEnv) -> Self:
        """The spec of an environment, or of one lane of a vector environment. Raises ValueError as `from_spaces`."""
        if isinstance(env, VectorEnv):
            return cls.from_spaces(env.single_observation_space, env.single_action_space)
        return cls.from_spaces(env.observation_space, env.action_space)

    @classmethod
    def from_spaces(cls, observation_space: Space, action_space: Space) -> Self:
        """The spec of one lane's spaces.

        Raises:
          ValueError: if an action is none of `takes_actions`, or the observations are no array of numbers.
        """
        if not takes_actions(action_space):
            raise ValueError(
                "expected a Discrete action space that starts at 0, or with Stable-Baselines3's algorithms a vector in "
                f"MultiDiscrete or MultiBinary, or a Box of floats with finite bounds, got {action_space}"
            )
        actions = int(action_space.n) if isinstance(action_space, Discrete) else 0
        in_words = "" if isinstance(action_space, Discrete) else str(action_space)
        if isinstance(observation_space, MultiDiscrete) and is_vector_of_names(observation_space):
            categories, are_tokens = tuple(map(int, observation_space.nvec)), observation_space.dtype == np.int32
            dtype = str(observation_space.dtype)
            return cls(observation_space.shape, dtype, 1.0, actions, categories, are_tokens, in_words)
        if not isinstance(observation_space, Box) or observation_space.dtype not in (np.uint8, np.float32):
            raise ValueError(
                f"expected observations in a Box of uint8 or float32, got {observation_space}; "
                "wrap the environment, for instance in gymnasium.wrappers.FlattenObservation"
            )
        is_picture = observation_space.dtype == np.uint8
        scale = 1.0 / float(max(observation_space.high.max(), 1)) if is_picture else 1.0
        return cls(observation_space.shape, str(observation_space.dtype), scale, actions, action_space=in_words)


def takes_actions(space: Space) -> bool:
    """Whether there is an algorithm for actions of this space."""
    if isinstance(space, Discrete):
        return bool(space.start == 0)
    if isinstance(space, MultiDiscrete):
        return len(space.shape) == 1 and not space.start.any()
    if isinstance(space, MultiBinary):
        return len(space.shape) == 1
    return isinstance(space, Box) and np.issubdtype(space.dtype, np.floating) and space.is_bounded()


def is_vector_of_names(space: MultiDiscrete) -> bool:
    """Whether observations are vectors in which each entry names one of its categories, counted from 0.

    In uint8 the categories of each entry are its own, in int32 they are tokens, the same for all entries.
    """
    return len(space.shape) == 1 and space.dtype in (np.uint8, np.int32) and not space.start.any()
