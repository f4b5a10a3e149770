"""A vector environment as a stream of time steps."""

import math
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray
from torch import Tensor

from rmc_agents.envs.blame import Blame
from rmc_agents.envs.nested import pick
from rmc_agents.envs.processes import EnvError
from rmc_agents.envs.returned_values import check_finite, name_of_env
from rmc_agents.envs.saving import guarded
from rmc_agents.envs.sequences.base import NO_TARGET
from rmc_agents.envs.warn_once import warn_once
from rmc_agents.episodes import EndedEpisodes, Episode
from rmc_agents.spaces import ACTION_MASK, SpaceSpec
from rmc_agents.types import Observation, TimeStep, map_leaves

NEWER = ("reports_success", "numbers")
"""Fields of the lanes' state in the order of their arrival: older files lack the last ones."""
FIRST_SEED_AFTER, SEEDS_AFTER = 2**31, 2**30
"""Seeds of training lanes: above those of evaluations, and below 2**32 with all lanes."""


def check_next_step(env: VectorEnv) -> None:
    """Raises ValueError if the vector environment's autoreset mode is not NEXT_STEP."""
    if env.metadata.get("autoreset_mode") != AutoresetMode.NEXT_STEP:
        raise ValueError(
            "expected a vector environment whose metadata has autoreset_mode NEXT_STEP, got "
            f"{env.metadata.get('autoreset_mode')}; make it with autoreset_mode=AutoresetMode.NEXT_STEP, or write "
            "this in your class's metadata if it returns an episode's last observation and resets in the next step"
        )


class Lanes(EndedEpisodes):
    """A NEXT_STEP vector environment as a stream of `TimeStep`, with episode statistics.

    Args:
      env: the environment.
      seed: lane i starts from seed + i.
      device: the device of the time steps.
      needs_targets: whether targets that are not actions are errors; else they are ignored, with a warning.

    Attributes:
      spec: the environment's spaces, and whether it reported action masks at the last reset.
      steps: the current time step of all lanes, `[B, ...]`.
      rewards: `[B]` float64, the rewards that came with it.
      infos: the environment's infos for it.
      targets: the right actions of the current time step, from `infos["target"]`, `[B]` int64, `NO_TARGET` where there
        is none; None if the environment reports none at a reset.
      episodes: episodes that ended since the last `take_episodes`.
      numbers: `[B]` int64, the number of each lane's episode, from 0; -1 if it was running at `restart_numbering`.
    """

    def __init__(self, env: VectorEnv, seed: int, device: torch.device, needs_targets: bool = False) -> None:
        if not isinstance(env, VectorEnv):
            raise ValueError(f"env: expected a vector environment, such as rmc.make_env(...), got {env!r}")
        check_next_step(env)
        name = name_of_env(env)
        self.env = guarded(env, name)
        self._resetting, self._stepping = Blame(name, "reset()"), Blame(name, "step()")
        self.device, self.needs_targets = device, needs_targets
        self.num_lanes = env.num_envs
        self.spec = SpaceSpec.of(env)
        self.episodes: list[Episode] = []
        self._reports_success = np.zeros(env.num_envs, bool)  # equal for all lanes; learners share it by lanes
        self.reset(seed)

    def reset(self, seed: int) -> None:
        """Start new episodes, lane i from seed + i. Raises EnvError as `step` does."""
        with self._resetting:
            obs, self.infos = self.env.reset(seed=int(seed))
            zeros = np.zeros(self.num_lanes)
            self.rewards = zeros
            self._check(obs, zeros, zeros.astype(np.int64))
            false = zeros.astype(bool)
            self._is_last, self._is_stepping = false, False
            self.targets = self._first_targets()
            self._returns, self._lengths, self.numbers = zeros.copy(), zeros.astype(np.int64), zeros.astype(np.int64)
            self.spec = self.spec._replace(is_masked=self.spec.action_mask(obs, self.infos) is not None)
            if not self.spec.mask_sizes and (ACTION_MASK in self.infos or ACTION_MASK in self.spec.arrays):
                warn_once(
                    "the action masks of %r are ignored: masks are for Discrete and MultiDiscrete actions",
                    name_of_env(self.env),
                )
            self.steps = self._to_steps(obs, self.spec.no_action(self.num_lanes), ~false, zeros, false, false)
            self._check_targets_allowed()

    def step(self, action: Tensor) -> TimeStep:
        """Step all lanes by `action` `[B]` int64 or `[B, W]` (see `SpaceSpec`); returns and keeps the next time step.

        Raises:
          EnvError: if the environment's own code fails, or returns NaN, infinity, an episode without a step, a target
            that is not an action, or an action mask that has another shape or forbids every action.
        """
        chosen = self.spec.to_env(action.cpu().numpy())
        self._is_stepping = True
        with self._stepping:
            obs, reward, terminated, truncated, self.infos = self.env.step(chosen)
            self._check(obs, reward, self._lengths + 1)
            reward = np.where(self._is_last, 0, reward)
            if not self.spec.is_masked and ACTION_MASK in self.infos and self.spec.mask_sizes:
                raise EnvError(
                    f"the environment {name_of_env(self.env)!r} reported its first infos['action_mask'] in step(): "
                    "expected one at every step, from the reset on"
                )
            is_first, self._is_last = self._is_last, terminated | truncated
            if (empty := is_first & self._is_last).any():
                raise EnvError(
                    f"the environment {name_of_env(self.env)!r} ended an episode at its first observation, in lane "
                    f"{int(np.flatnonzero(empty)[0])}: expected it to return that of a reset in the step after an "
                    "episode's end, as autoreset_mode NEXT_STEP says"
                )
            if self.targets is not None:
                self.targets = self._next_targets()
            self.rewards = reward
            self._count(reward, is_first)
            self.steps = self._to_steps(obs, action, is_first, reward, terminated, truncated & ~terminated)
            self._check_targets_allowed()
        self._is_stepping = False
        return self.steps

    def _count(self, reward: NDArray[Any], is_first: NDArray[np.bool_]) -> None:
        """Add a step to the running episodes, and those that it ended to `episodes`."""
        self._returns += reward
        self._lengths += ~is_first
        successes = self.infos.get("is_success")
        if successes is not None:
            if np.shape(successes) != (self.num_lanes,):
                raise ValueError(f"infos['is_success']: expected one per lane, got {successes!r}")
            self._reports_success[:] = True  # from now on, an episode without it is a failure
            successes = np.where(self.infos.get("_is_success", True), successes, False)
        for lane in np.flatnonzero(self._is_last):
            success = successes is not None and bool(successes[lane]) if self._reports_success[lane] else None
            total, length = float(self._returns[lane]), int(self._lengths[lane])
            self.episodes.append(Episode(total, length, success, int(self.numbers[lane])))
        self.numbers += self._is_last
        self._returns[self._is_last] = 0.0
        self._lengths[self._is_last] = 0

    @property
    def is_savable(self) -> bool:
        """Whether the environment can save its state."""
        return hasattr(self.env, "get_state")

    def restart_numbering(self) -> None:
        """Number the episodes from 0 again, beginning with the next of each lane; one that is running is -1."""
        self.numbers = np.where(self._is_last, 0, -1)

    def get_state(self) -> dict[str, Any] | None:
        """The state for `set_state` to continue exactly.

        None if the environment cannot save its state, or if a step failed, which some lanes may have taken.
        """
        if self._is_stepping or not self.is_savable:
            return None
        return {
            "env": self.env.get_state(),  # type: ignore[attr-defined]
            "returns": self._returns.copy(),
            "lengths": self._lengths.copy(),
            "reports_success": self._reports_success.copy(),
            "numbers": self.numbers.copy(),
            "steps": [map_leaves(torch.clone, field) for field in self.steps if field is not None],
        } | ({} if self.targets is None else {"targets": self.targets})

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from a state of `get_state`. Raises ValueError for an invalid state."""
        check_ranges(TimeStep(*state["steps"]), self.spec)
        if (state["lengths"] < 0).any():
            raise ValueError("lengths: expected numbers of at least 0")
        if self.targets is not None:
            targets = state["targets"]
            check_targets(targets[targets != NO_TARGET] + self.spec.first_action, self.spec)
            self.targets = state["targets"].to(self.device)
        self.env.set_state(state["env"])  # type: ignore[attr-defined]
        self._returns, self._lengths = state["returns"].copy(), state["lengths"].copy()
        self._reports_success = state.get("reports_success", self._reports_success).copy()
        self.numbers = state.get("numbers", self.numbers).copy()
        self.steps = map_leaves(lambda leaf: leaf.to(self.device), TimeStep(*state["steps"]))
        self._is_last = (self.steps.terminated | self.steps.truncated).cpu().numpy()

    def _check(self, obs: Any, reward: np.ndarray, lengths: np.ndarray) -> None:
        """Raises EnvError for numbers that are not finite."""
        arrays = {name: np.asarray(pick(obs, array.path)) for name, array in self.spec.arrays.items()}
        check_finite(self.env, arrays, reward, lengths)

    def _first_targets(self) -> Tensor | None:
        """The targets of the first step; None without, and if the name means something else to the environment."""
        if "target" not in self.infos or not self.spec.num_actions:
            return None
        try:
            return self.read_targets()
        except ValueError:
            warn_once("infos['target'] of %r is ignored: its values are not actions", name_of_env(self.env))
            return None

    def _next_targets(self) -> Tensor:
        """The targets of a step; none if they are not actions, unless they are needed."""
        try:
            return self.read_targets()
        except ValueError:
            if self.needs_targets:
                raise
            warn_once("infos['target'] of %r is ignored where it is not an action", name_of_env(self.env))
            return torch.full((self.num_lanes,), NO_TARGET, device=self.device)

    def read_targets(self) -> Tensor:
        """The targets `[B]` in the infos of the last step. Raises ValueError if they are not actions."""
        raw = np.asarray(self.infos.get("target", np.full(self.num_lanes, NO_TARGET)))
        if raw.shape != (self.num_lanes,) or raw.dtype.kind not in "biu":
            raise ValueError(f"infos['target']: expected an action per lane, got {raw.dtype} {list(raw.shape)}")
        raw = raw.astype(np.int64)
        has_target = np.asarray(self.infos.get("_target", True), bool)  # gymnasium's mask of lanes with the info
        has_target = has_target & (raw != NO_TARGET)
        if self.needs_targets and (has_target & self._is_last).any():
            warn_once(
                "infos['target'] of %r is ignored at an episode's last observation, where no action follows: end the "
                "episode one step later to ask for it",
                name_of_env(self.env),
            )
        is_asked = has_target & ~self._is_last
        check_targets(torch.as_tensor(raw[is_asked]), self.spec)
        targets = np.where(is_asked, raw - self.spec.first_action, NO_TARGET)
        return torch.as_tensor(targets, device=self.device)

    def _check_targets_allowed(self) -> None:
        mask = self.steps.action_mask
        if self.targets is None or mask is None:
            return
        allowed = mask.gather(1, self.targets.clamp(min=0).unsqueeze(1)).squeeze(1)
        if (wrong := (self.targets != NO_TARGET) & ~allowed).any():
            if not self.needs_targets:
                warn_once("infos['target'] of %r is ignored where its mask forbids it", name_of_env(self.env))
                self.targets = self.targets.masked_fill(wrong, NO_TARGET)
                return
            lane = int(wrong.nonzero()[0])
            raise EnvError(
                f"the environment {name_of_env(self.env)!r} asks in lane {lane}, at step {self._lengths[lane]} of its "
                f"episode, for an action that its mask forbids: {int(self.targets[lane]) + self.spec.first_action}"
            )

    def _to_steps(self, obs: Any, action: Tensor, *fields: np.ndarray) -> TimeStep:
        is_first, reward, terminated, truncated = (torch.as_tensor(x, device=self.device) for x in fields)
        seen = map_leaves(lambda leaf: leaf.to(self.device), self.spec.observe(obs))
        action = action.to(self.device, torch.float32 if self.spec.num_scales else torch.int64)
        steps = TimeStep(seen, is_first, action, reward.float(), terminated, truncated)
        return steps._replace(action_mask=self._to_mask(obs)) if self.spec.is_masked else steps

    def _to_mask(self, obs: Any) -> Tensor:
        """The allowed actions `[B, A]`; all at the end of an episode, where the action is ignored.

        Raises:
          EnvError: if an environment allows none.
        """
        allowed = self.spec.action_mask(obs, self.infos)
        if allowed is not None and len(allowed) != self.num_lanes:
            raise ValueError(f"action_mask: expected one for each of {self.num_lanes} lanes, got {len(allowed)}")
        has_mask = np.asarray(self.infos.get(f"_{ACTION_MASK}", allowed is not None), bool)  # gymnasium's, by lane
        if (missing := ~(has_mask | self._is_last)).any():
            lane = int(np.flatnonzero(missing)[0])
            raise ValueError(
                f"infos['action_mask'] is missing in lane {lane}, at step {self._lengths[lane]} of its episode: "
                "expected one at every step, as at the reset"
            )
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
    check_categories(steps.obs, spec)


def check_categories(obs: Observation, spec: SpaceSpec) -> None:
    """Raises ValueError for observations `[...]` with categories out of range."""
    for name, array in spec.arrays.items():
        sizes = (2,) * math.prod(array.shape) if array.dtype == "int8" else array.categories
        if sizes:
            part = obs[name] if spec.obs_parts else obs
            limits, first = (
                torch.tensor(numbers, device=part.device).reshape(array.shape).expand_as(part)
                for numbers in (sizes, array.start or (0,) * len(sizes))
            )
            if (wrong := (part < 0) | (part >= limits)).any():
                start, limit, got = (int(numbers[wrong][0]) for numbers in (first, limits, part))
                known = f"categories from {start} to {start + limit - 1}"
                raise ValueError(f"{f'obs {name}'.rstrip()}: expected {known}, got {start + got}")


def check_targets(asked: Tensor, spec: SpaceSpec) -> None:
    """Raises ValueError for targets, in the environment's own counting, that are not among its actions."""
    low, high = spec.first_action, spec.first_action + spec.num_actions - 1
    if low < 0:
        raise ValueError(
            f"infos['target']: expected actions that count from 0 or more, got a space from {low} to {high}"
        )
    if (asked < low).any() or (asked > high).any():
        raise ValueError(
            f"infos['target']: expected actions from {low} to {high}, or {NO_TARGET} where nothing is asked, got "
            f"{asked.unique().tolist()[:8]}"
        )


def seed_after(seed: int, frames: int) -> int:
    """The seed of a run's lanes that start after `frames` frames; its range does not overlap with evaluation seeds.

    The ranges of different seeds are drawn at random, and those of N lanes overlap with a probability of N / 2^29. With
    `seed + frames`, all neighbouring seeds would share lanes.
    """
    drawn = np.random.SeedSequence((seed, frames)).generate_state(1, np.uint32)[0]
    return FIRST_SEED_AFTER + int(drawn) % SEEDS_AFTER
