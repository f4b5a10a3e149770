"""Experience collection: rollouts of an agent in a vector environment."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from gymnasium.vector import VectorEnv
from torch import Tensor, nn
from torch.nn import functional

from rmc_agents.agent import ActorCritic
from rmc_agents.distributions import forbid
from rmc_agents.envs.checks import checked_int
from rmc_agents.spaces import SpaceSpec
from rmc_agents.stream import NEWER, Lanes, seed_after
from rmc_agents.tree_checks import ANYTHING, Either, unbounded
from rmc_agents.types import AgentOutput, Distribution, Policy, Rollout, State, TimeStep, map_leaves

Act = Callable[[TimeStep, State], tuple[AgentOutput, State]]
"""A policy's step: time steps and state to outputs and the next state."""
GENERATORS = torch.Generator().get_state(), torch.empty(16, dtype=torch.uint8)
"""Examples of generator states, on a CPU and on a GPU, for `tree_checks`."""


class Share(NamedTuple):
    """One learner's lanes: `lanes` lanes from lane `first` on, of the run's `total` lanes."""

    first: int
    lanes: int
    total: int


def choose(policy: Distribution, generator: torch.Generator, deterministic: bool) -> Tensor:
    """Actions from a distribution: the most likely, or sampled. Raises ValueError if a sampled policy has diverged."""
    return policy.mode() if deterministic else policy.sample(generator)


def acting(policy: Policy, state: State, spec: SpaceSpec) -> AbstractContextManager[Act]:
    """The policy's step for acting: `stepping`; `checked_step` without one, or if a subclass has its own `step`."""
    stepping = getattr(policy, "stepping", None)
    has_own_step = isinstance(policy, ActorCritic) and type(policy).step is not ActorCritic.step
    return nullcontext(partial(checked_step, policy, spec)) if stepping is None or has_own_step else stepping(state)


def checked_step(policy: Policy, spec: SpaceSpec, steps: TimeStep, state: State) -> tuple[AgentOutput, State]:
    """One step of any policy, which may ignore `steps.action_mask`: forbidden actions are masked here.

    Raises:
      ValueError: if its result is not an `AgentOutput` for these spaces and a state.
    """
    result, lanes = policy.step(steps, state), len(steps.is_first)
    expected = {"policy_logits": (lanes, spec.num_outputs + spec.num_scales), "value": (lanes,)}
    output = result[0] if isinstance(result, tuple) and len(result) == 2 else result
    found = {name: tuple(getattr(getattr(output, name, None), "shape", ())) for name in expected}
    if not isinstance(output, AgentOutput) or found != expected:
        shapes = " and ".join(f"{name} of shape {shape}" for name, shape in expected.items())
        got = f"an AgentOutput of shapes {found}" if isinstance(output, AgentOutput) else type(result).__name__
        raise ValueError(f"{type(policy).__name__}.step: expected (AgentOutput with {shapes}, next state), got {got}")
    return output._replace(policy_logits=forbid(output.policy_logits, steps.action_mask)), result[1]


class Agent(Policy, Protocol):
    """A policy with parameters, such as `ActorCritic`."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """All learned parameters, on the agent's device."""


class Collector:
    """Runs the agent in an environment, one rollout at a time.

        collector = Collector(agent, env, unroll_length=64)
        rollout = collector.collect()
        output, _ = agent.unroll(rollout.steps, rollout.initial_state)  # [T+1, B, ...], with gradient

    Args:
      agent: an `ActorCritic` or any other policy with parameters.
      env: a vector environment with NEXT_STEP autoreset (gymnasium's default), which is reset here; or `Lanes`.
      unroll_length: T, the steps of a rollout.
      seed: of the actions and of the lanes, as in `rmc-train`: runs with different seeds hardly ever share lanes.
      deterministic: take the most likely action instead of sampling.
      share: which of a run's lanes these are; None: all. The random numbers of a lane's actions do not depend on it.

    Attributes:
      lanes: the environment as a stream of time steps; `lanes.take_episodes()` returns the finished episodes.
      state: the core's state after the steps so far.
      rollout: the last rollout, after the first `collect`.

    Raises:
      ValueError: for an environment with another autoreset, or other spaces than the agent's, and for numbers out of
        range.
    """

    rollout: Rollout

    def __init__(
        self,
        agent: Agent,
        env: VectorEnv | Lanes,
        unroll_length: int,
        seed: int = 0,
        deterministic: bool = False,
        share: Share | None = None,
    ) -> None:
        self.unroll_length, seed = checked_int("unroll_length", unroll_length, 1), checked_int("seed", seed, 0)
        weight = next(iter(getattr(agent, "parameters", tuple)()), None)
        if weight is None:
            raise ValueError(f"agent: expected one with parameters, such as an ActorCritic, got {type(agent).__name__}")
        if weight.dtype != torch.float32:
            raise ValueError(f"agent: expected parameters of torch.float32, as observations are, got {weight.dtype}")
        self.lanes = lanes = env if isinstance(env, Lanes) else Lanes(env, seed_after(seed, 0), weight.device)
        spec = getattr(agent, "spec", lanes.spec)
        if not spec.fits(lanes.spec):
            raise ValueError(
                f"agent: expected one for the environment's {lanes.spec.described()}, got one for {spec.described()}"
            )
        if lanes.spec.is_masked and isinstance(agent, nn.Module) and hasattr(agent, "spec"):
            agent.spec = spec._replace(is_masked=True)  # type: ignore[assignment]  # so that `Player` asks for masks
        self.agent, self.generator = agent, torch.Generator(lanes.device).manual_seed(seed)
        with torch.no_grad():
            self.state: State = agent.initial_state(lanes.num_lanes)
        self.deterministic = deterministic
        self._share = share or Share(0, lanes.num_lanes, lanes.num_lanes)

    @torch.no_grad()
    def collect(self) -> Rollout:
        """T steps of all lanes, in new tensors."""
        lanes, length = self.lanes, self.unroll_length
        vars(self).pop("rollout", None)  # so that two rollouts are in memory only if the caller keeps one
        outputs = lanes.spec.num_outputs + lanes.spec.num_scales
        rollout = Rollout(
            steps=map_leaves(partial(_buffer, length + 1), lanes.steps),
            policy_logits=torch.empty(length, lanes.num_lanes, outputs, device=lanes.device),
            value=torch.empty(length, lanes.num_lanes, device=lanes.device),
            initial_state=self.state,
            targets=map_leaves(partial(_buffer, length), lanes.targets),
            distribution=lanes.spec.distribution,
        )
        _record(rollout.steps, 0, lanes.steps)
        with acting(self.agent, self.state, lanes.spec) as step:
            for t in range(length):
                output, self.state = step(lanes.steps, self.state)
                rollout.policy_logits[t], rollout.value[t] = output
                _record(rollout.targets, t, lanes.targets)
                lanes.step(self._choose_action(output.policy_logits))
                _record(rollout.steps, t + 1, lanes.steps)
        self.rollout = rollout
        return rollout

    def _choose_action(self, policy_logits: Tensor) -> Tensor:
        """Sample the actions of all lanes, as every learner does, and return those of this learner's lanes."""
        first, lanes, total = self._share
        if lanes < total:
            policy_logits = functional.pad(policy_logits, (0, 0, first, total - first - lanes))
        policy = self.lanes.spec.distribution(policy_logits)
        return choose(policy, self.generator, self.deterministic)[first : first + lanes]

    def get_state(self) -> dict[str, Any]:
        """The state for `set_state`, exact if the environment can be saved; otherwise the lanes restart."""
        lanes = self.lanes.get_state()
        core = list(self.state) if lanes is not None else None
        device = self.lanes.device.type
        return {"lanes": lanes, "core": core, "device": device, "generator": self.generator.get_state()}

    def expected_state(self) -> dict[str, Any]:
        """The structure of a saved state (see `tree_checks`); the environment checks its own part."""
        state = self.get_state()
        kinds: list[Any] = [None]
        if state["lanes"] is not None:
            lanes = state["lanes"] | {"env": ANYTHING}
            kinds += [{name: lanes[name] for name in lanes.keys() - NEWER[n:]} for n in range(len(NEWER) + 1)]
        return state | {
            "lanes": Either(*kinds),
            "core": Either(None, unbounded(state["core"])),
            "generator": Either(*GENERATORS),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from a state of `get_state`; on another kind of device action sampling restarts from the seed."""
        if state["device"] == self.lanes.device.type:
            self.generator.set_state(state["generator"])
        if state["lanes"] is None:
            return
        self.lanes.set_state(state["lanes"])
        self.state = map_leaves(lambda _, leaf: leaf.to(self.lanes.device), self.state, state["core"])


def _buffer(length: int, like: Tensor) -> Tensor:
    return torch.empty(length, *like.shape, dtype=like.dtype, device=like.device)


def _record(buffers: Any, t: int, tree: Any) -> None:
    """Write step t of a rollout."""
    map_leaves(lambda buffer, leaf: buffer[t].copy_(leaf), buffers, tree)
