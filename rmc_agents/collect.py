"""Experience collection: time steps from a vector environment, and rollouts of an agent in it."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from torch import Tensor, nn
from torch.nn import functional

from rmc_agents.envs.guarded import check_finite, name_of_env
from rmc_agents.envs.nested import pick
from rmc_agents.envs.processes import EnvError
from rmc_agents.envs.sequences.base import NO_TARGET
from rmc_agents.spaces import SpaceSpec
from rmc_agents.tree_checks import ANYTHING, Either
from rmc_agents.types import AgentOutput, Distribution, Policy, Rollout, State, TimeStep, map_leaves

Act = Callable[[TimeStep, State], tuple[AgentOutput, State]]
"""A policy's step: time steps and state to outputs and the next state."""
FIRST_SEED_AFTER, SEEDS_AFTER = 2**31, 2**30
"""Seeds of lanes that restart in a resumed run: above those of evaluations, and below 2**32 with all lanes."""
GENERATORS = torch.Generator().get_state(), torch.empty(16, dtype=torch.uint8)
"""Examples of generator states, on a CPU and on a GPU, for `tree_checks`."""


class Share(NamedTuple):
    """One learner's lanes: `lanes` lanes from lane `first` on, of the run's `total` lanes."""

    first: int
    lanes: int
    total: int


class Episode(NamedTuple):
    """A finished episode."""

    episode_return: float
    length: int
    success: bool | None  # None if the environment does not report it


class Lanes:
    """A NEXT_STEP vector environment as a stream of `TimeStep`, with episode statistics.

    Args:
      env: the environment.
      seed: lane i starts from seed + i.
      device: the device of the time steps.

    Attributes:
      spec: the environment's spaces.
      steps: the current time step of all lanes, `[B, ...]`.
      infos: the environment's infos for it.
      targets: the right actions of the current time step, `[B]` int64, `NO_TARGET` where there is none: what
        `infos["target"]` says; None for an environment that reports none at a reset.
      episodes: episodes that ended since the last `take_episodes`.
    """

    def __init__(self, env: VectorEnv, seed: int, device: torch.device) -> None:
        if env.metadata.get("autoreset_mode") != AutoresetMode.NEXT_STEP:
            raise ValueError(
                "expected a vector environment whose metadata has autoreset_mode NEXT_STEP, got "
                f"{env.metadata.get('autoreset_mode')}; make it with autoreset_mode=AutoresetMode.NEXT_STEP"
            )
        self.env = env
        self.device = device
        self.num_lanes = env.num_envs
        self.spec = SpaceSpec.from_spaces(env.single_observation_space, env.single_action_space)
        self.episodes: list[Episode] = []
        self.reset(seed)

    def reset(self, seed: int) -> None:
        """Start new episodes, lane i from seed + i."""
        obs, self.infos = self.env.reset(seed=seed)
        zeros = np.zeros(self.num_lanes)
        self._check(obs, zeros, zeros.astype(np.int64))
        self.targets = self._to_targets() if "target" in self.infos and self.spec.num_actions else None
        self._returns, self._lengths = zeros.copy(), zeros.astype(np.int64)
        false = zeros.astype(bool)
        self._is_last, self._is_masked = false, self.spec.action_mask(obs, self.infos) is not None
        self.steps = self._to_steps(obs, self.spec.no_action(self.num_lanes), ~false, zeros, false, false)

    def step(self, action: Tensor) -> TimeStep:
        """Step all lanes by `action` `[B]` int64 or `[B, W]` (see `SpaceSpec`); returns and keeps the next time step.

        Raises:
          EnvError: if the environment's own code fails, or gives what is no finite number.
        """
        obs, reward, terminated, truncated, self.infos = self.env.step(self.spec.to_env(action.cpu().numpy()))
        self._check(obs, reward, self._lengths + 1)
        if self.targets is not None:
            self.targets = self._to_targets()
        is_first, self._is_last = self._is_last, terminated | truncated
        self._returns += reward
        self._lengths += ~is_first
        successes = self.infos.get("is_success")
        for lane in np.flatnonzero(self._is_last):
            success = None if successes is None else bool(successes[lane])
            self.episodes.append(Episode(float(self._returns[lane]), int(self._lengths[lane]), success))
        self._returns[self._is_last] = 0.0
        self._lengths[self._is_last] = 0
        self.steps = self._to_steps(obs, action, is_first, reward, terminated, truncated & ~terminated)
        return self.steps

    def take_episodes(self) -> list[Episode]:
        """The episodes that ended since the last call."""
        episodes, self.episodes = self.episodes, []
        return episodes

    def get_state(self) -> dict[str, Any] | None:
        """The state for `set_state` to continue exactly; None if the environment cannot save its state."""
        if not hasattr(self.env, "get_state"):
            return None
        return {
            "env": self.env.get_state(),
            "returns": self._returns.copy(),
            "lengths": self._lengths.copy(),
            "steps": [field for field in self.steps if field is not None],
        } | ({} if self.targets is None else {"targets": self.targets})

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from a state of `get_state`. Raises ValueError for an invalid state."""
        check_ranges(TimeStep(*state["steps"]), self.spec)
        if (state["lengths"] < 0).any():
            raise ValueError("lengths: expected numbers of at least 0")
        if self.targets is not None:
            check_targets(state["targets"], self.spec)
            self.targets = state["targets"].to(self.device)
        self.env.set_state(state["env"])  # type: ignore[attr-defined]
        self._returns, self._lengths = state["returns"], state["lengths"]
        self.steps = map_leaves(lambda leaf: leaf.to(self.device), TimeStep(*state["steps"]))
        self._is_last = (self.steps.terminated | self.steps.truncated).cpu().numpy()

    def _check(self, obs: Any, reward: np.ndarray, lengths: np.ndarray) -> None:
        """Raises EnvError for numbers that are not finite."""
        arrays = {name: np.asarray(pick(obs, array.path)) for name, array in self.spec.arrays.items()}
        check_finite(self.env, arrays, reward, lengths)

    def _to_targets(self) -> Tensor:
        unset = np.full(self.num_lanes, NO_TARGET)
        has_target = self.infos.get("_target", True)  # gymnasium's mask of the lanes that have the info
        targets = torch.as_tensor(np.where(has_target, self.infos.get("target", unset), unset), device=self.device)
        check_targets(targets, self.spec)
        return targets.long()

    def _to_steps(self, obs: Any, action: Tensor, *fields: np.ndarray) -> TimeStep:
        is_first, reward, terminated, truncated = (torch.as_tensor(x, device=self.device) for x in fields)
        seen = map_leaves(lambda leaf: leaf.to(self.device), self.spec.observe(obs))
        action = action.to(self.device, torch.float32 if self.spec.num_scales else torch.int64)
        steps = TimeStep(seen, is_first, action, reward.float(), terminated, truncated)
        return steps._replace(action_mask=self._to_mask(obs)) if self._is_masked else steps

    def _to_mask(self, obs: Any) -> Tensor:
        """The allowed actions `[B, A]`; all at the end of an episode, where the action is ignored.

        Raises:
          EnvError: if an environment allows none.
        """
        allowed = self.spec.action_mask(obs, self.infos)
        if allowed is None:
            allowed = np.ones((self.num_lanes, sum(self.spec.mask_sizes)), bool)
        allowed |= self._is_last[:, None]
        ends = np.cumsum(self.spec.mask_sizes)[:-1]
        for choice in np.split(allowed, ends, axis=1):
            if not choice.any(axis=1).all():
                lane = int(np.flatnonzero(~choice.any(axis=1))[0])
                raise EnvError(
                    f"the environment {name_of_env(self.env)!r} forbids every action in lane {lane}, at step "
                    f"{self._lengths[lane]} of its episode: expected at least one True for each choice"
                )
        return torch.as_tensor(allowed, device=self.device)


def check_ranges(steps: TimeStep, spec: SpaceSpec) -> None:
    """Raises ValueError for time steps `[...]` with actions or categories out of range."""
    columns = steps.prev_action.unsqueeze(-1) if spec.num_actions else steps.prev_action
    for column, limit in enumerate(spec.action_limits):
        low, high = columns[..., column].min().item(), columns[..., column].max().item()
        if limit is not None and (low < 0 or high >= limit):
            raise ValueError(f"prev_action: expected 0 to {limit - 1}, got {low:g} to {high:g}")
    for name, array in spec.arrays.items():
        if array.categories:
            obs = steps.obs[name] if spec.obs_parts else steps.obs
            if (obs < 0).any() or (obs >= torch.tensor(array.categories).reshape(array.shape)).any():
                raise ValueError(
                    " ".join(["obs", name]).strip() + ": expected names of categories, got one beyond them"
                )


def check_targets(targets: Tensor, spec: SpaceSpec) -> None:
    """Raises ValueError for targets `[B]` that are not actions of the environment."""
    if targets.is_floating_point() or (targets < NO_TARGET).any() or (targets >= spec.num_actions).any():
        raise ValueError(
            f"infos['target']: expected actions from 0 to {spec.num_actions - 1}, or {NO_TARGET} where nothing is "
            f"asked, got {targets.unique().tolist()[:8]}"
        )


def seed_after(seed: int, frames: int) -> int:
    """The seed of lanes that restart after `frames` frames: for new episodes, different from any evaluation's.

    `seed + frames` would not do: it reaches the evaluation's seeds sooner or later.
    """
    drawn = np.random.SeedSequence((seed, frames)).generate_state(1, np.uint32)[0]
    return FIRST_SEED_AFTER + int(drawn) % SEEDS_AFTER


def choose(policy: Distribution, generator: torch.Generator, deterministic: bool) -> Tensor:
    """Actions from a distribution: the most likely, or sampled. Raises ValueError if the policy has diverged."""
    return policy.mode() if deterministic else policy.sample(generator)


def acting(policy: Policy, state: State) -> AbstractContextManager[Act]:
    """The policy's step for acting: `stepping` if it has that (a custom agent need not), else `step`."""
    stepping = getattr(policy, "stepping", None)
    return nullcontext(policy.step) if stepping is None else stepping(state)


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
      env: a vector environment with NEXT_STEP autoreset (gymnasium's default), on which it is reset with `seed`; or
        `Lanes`.
      unroll_length: T, the steps of a rollout.
      seed: of the environments (lane i gets seed + i) and of the actions.
      deterministic: take the most likely action instead of sampling.
      share: which of a run's lanes these are. The random numbers of a lane's actions are the same, whoever plays the
        other lanes; None: all lanes.

    Attributes:
      lanes: the environment as a stream of time steps; `lanes.take_episodes()` returns the finished episodes.
      state: the core's state after the steps so far.
      rollout: the last rollout, after the first `collect`.

    Raises:
      ValueError: for an environment with another autoreset.
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
        device = next(agent.parameters()).device
        self.lanes = lanes = env if isinstance(env, Lanes) else Lanes(env, seed, device)
        self.agent, self.generator = agent, torch.Generator(lanes.device).manual_seed(seed)
        with torch.no_grad():
            self.state: State = agent.initial_state(lanes.num_lanes)
        self.unroll_length, self.deterministic = unroll_length, deterministic
        self._share = share or Share(0, lanes.num_lanes, lanes.num_lanes)
        self._steps: TimeStep = map_leaves(partial(_buffer, unroll_length + 1), lanes.steps)
        logits = torch.empty(lanes.num_lanes, lanes.spec.num_outputs + lanes.spec.num_scales, device=lanes.device)
        self._policy_logits, self._value = _buffer(unroll_length, logits), _buffer(unroll_length, logits[:, 0])
        self._targets = None if lanes.targets is None else _buffer(unroll_length, lanes.targets)

    @torch.no_grad()
    def collect(self) -> Rollout:
        """T steps of all lanes. The rollout's tensors are overwritten by the next call."""
        initial_state = self.state
        self._record(0)
        with acting(self.agent, self.state) as step:
            for t in range(self.unroll_length):
                output, self.state = step(self.lanes.steps, self.state)
                self._policy_logits[t], self._value[t] = output
                if self._targets is not None and (targets := self.lanes.targets) is not None:
                    self._targets[t] = targets
                self.lanes.step(self._choose_action(output.policy_logits))
                self._record(t + 1)
        distribution = self.lanes.spec.distribution
        self.rollout = Rollout(
            self._steps, self._policy_logits, self._value, initial_state, self._targets, distribution
        )
        return self.rollout

    def _choose_action(self, policy_logits: Tensor) -> Tensor:
        """Sample actions for the lanes of all learners and return this one's: all draw the same random numbers."""
        first, lanes, total = self._share
        if lanes < total:
            policy_logits = functional.pad(policy_logits, (0, 0, first, total - first - lanes))
        policy = self.lanes.spec.distribution(policy_logits)
        return choose(policy, self.generator, self.deterministic)[first : first + lanes]

    def _record(self, t: int) -> None:
        map_leaves(lambda buffer, leaf: buffer[t].copy_(leaf), self._steps, self.lanes.steps)

    def get_state(self) -> dict[str, Any]:
        """The state for `set_state`, exact if the environment can be saved; otherwise the lanes restart."""
        lanes = self.lanes.get_state()
        core = list(self.state) if lanes is not None else None
        device = self.lanes.device.type
        return {"lanes": lanes, "core": core, "device": device, "generator": self.generator.get_state()}

    def expected_state(self) -> dict[str, Any]:
        """The structure of a saved state (see `tree_checks`); the environment checks its own part."""
        state = self.get_state()
        lanes = None if state["lanes"] is None else state["lanes"] | {"env": ANYTHING}
        return state | {
            "lanes": Either(None, lanes),
            "core": Either(None, state["core"]),
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
