"""Vector environments for Stable-Baselines3.

Its own differ from gymnasium's at an episode's end. Stable-Baselines3 resets in the same step: the observation is the
next episode's first, and the info holds the last one (`terminal_observation`). In this project, the last observation is
returned like any other, and one more step, with its action ignored, returns the first of the next episode (gymnasium's
`AutoresetMode.NEXT_STEP`).
"""

import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Discrete, MultiBinary, MultiDiscrete
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv, VecMonitor
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvObs, VecEnvStepReturn

from rmc_agents.envs.making import EnvFactory, make_env
from rmc_agents.envs.names import MAPS, STACKED
from rmc_agents.envs.nested import KeyPath, is_nested, pick
from rmc_agents.envs.returned_values import checked_infos, name_of_env
from rmc_agents.envs.warn_once import warn_once
from rmc_agents.spaces import ACTION_MASK
from rmc_agents.spaces.parts import observation_parts

from .entries import Entry, entries
from .lane_access import access_to


def make_sb3_env(
    env: str | EnvFactory,
    num_envs: int = 1,
    seed: int | None = None,
    render_mode: str | None = None,
    *,
    env_kwargs: dict[str, Any] | None = None,
    wrapper_class: Callable[..., gym.Env] | None = None,
    wrapper_kwargs: dict[str, Any] | None = None,
    monitor_dir: str | PathLike[str] | None = None,
) -> VecEnv:
    """An environment for Stable-Baselines3, wrapped in a VecMonitor.

    Args:
      env: a short name, such as minipacman, a gymnasium id, or a class or function that creates the environment, as in
        `rmc.make_env`.
      num_envs: lanes.
      seed: lane i starts from seed + i; None: a random seed.
      render_mode: "rgb_array" for videos.
      env_kwargs: arguments of the environment.
      wrapper_class: a wrapper for each lane's environment, or a function that wraps it. The lanes are then separate
        environments, stepped one by one instead of together by a native engine.
      wrapper_kwargs: further arguments of the wrapper.
      monitor_dir: a folder for `monitor.csv`, created if needed: one line per episode, as read by Stable-Baselines3's
        `load_results`.

    Raises:
      ValueError: as `rmc.make_env` does.
    """
    wrapper = partial(wrapper_class, **wrapper_kwargs or {}) if wrapper_class is not None else None
    make = partial(make_env, env, num_envs, render_mode=render_mode, env_kwargs=env_kwargs, wrapper=wrapper)
    lanes = to_sb3(make(autoreset_mode=cheapest_autoreset(env)))
    lanes.make_next_step = make
    if monitor_dir is not None:
        Path(monitor_dir).mkdir(parents=True, exist_ok=True)
    monitored = VecMonitor(lanes, None if monitor_dir is None else fspath(monitor_dir))
    if seed is not None:
        monitored.seed(seed)
    return monitored


def cheapest_autoreset(env: str | EnvFactory, num_workers: int = 0) -> AutoresetMode:
    """The cheapest mode for a VecEnv: SAME_STEP, except for stacked views, maps and workers, which lack it."""
    if num_workers or (isinstance(env, str) and (env in MAPS or STACKED.fullmatch(env))):
        return AutoresetMode.NEXT_STEP
    return AutoresetMode.SAME_STEP


def to_sb3(vector_env: VectorEnv) -> "EngineVecEnv":
    """Convert a gymnasium vector environment for Stable-Baselines3. Raises ValueError as `EngineVecEnv` does."""
    return EngineVecEnv(vector_env)


class EngineVecEnv(VecEnv):
    """A gymnasium vector environment, stepped as a whole, for Stable-Baselines3.

    Python code runs per lane only for lanes that have just ended: only these have an info, with
    `terminal_observation`, `TimeLimit.truncated`, and the environment's info of their last step.

    `get_attr`, `set_attr` and `env_method` reach the lanes if they are separate environments (gymnasium's SyncVectorEnv
    and, all lanes together, AsyncVectorEnv). If one engine steps all lanes, its attributes apply to every lane and
    cannot be set, and its methods are called once for all.

    Nested observations of any structure become flat dictionaries (`camera`, `arm/0`), for `MultiInputPolicy` and
    `RmcPolicy` (see `entries`); an action mask is left out. Categories and discrete actions count from 0. Actions of a
    MultiDiscrete or MultiBinary space are flattened.

    Args:
      vector_env: in any autoreset mode; unless the mode is SAME_STEP, `reset(options={"reset_mask": ...})` has to reset
        these lanes alone, as in this project's and in gymnasium's SyncVectorEnv and AsyncVectorEnv. Otherwise a step
        raises ValueError.

    Raises:
      ValueError: if its autoreset mode is unknown.
    """

    metadata: dict[str, Any]
    make_next_step: Callable[[], VectorEnv] | None = None
    """Creates the same vector environment with NEXT_STEP autoreset; None if that is not possible."""

    def __init__(self, vector_env: VectorEnv) -> None:
        self.vector_env, self._access = vector_env, access_to(vector_env)
        self.autoreset_mode = vector_env.metadata.get("autoreset_mode")
        if not isinstance(self.autoreset_mode, AutoresetMode):
            raise ValueError(
                f"expected a vector environment with autoreset_mode in its metadata, got {vector_env.metadata}"
            )
        single, action_space = vector_env.single_observation_space, vector_env.single_action_space
        mask: set[KeyPath] = {(ACTION_MASK,)} if isinstance(action_space, Discrete | MultiDiscrete) else set()
        self._entries = entries(observation_parts(single, mask)) if is_nested(single) else ()
        flat = gym.spaces.Dict({entry.name: entry.space for entry in self._entries})
        self._first = 0 if self._entries else getattr(single, "start", 0)  # of categories
        observations = flat if self._entries else _from_0(single)
        super().__init__(vector_env.num_envs, observations, _flat_actions(action_space))
        self.metadata = {**vector_env.metadata, **self.metadata}
        self.spec = vector_env.spec

    def reset(self) -> VecEnvObs:
        """The first observations, `[N, ...]`, with the seeds and options set before."""
        options = self._options[0]
        if any(other != options for other in self._options):
            raise ValueError("set_options: expected the same options for all lanes, which are reset together")
        obs, infos = self.vector_env.reset(seed=self._seeds[0], options=options or None)  # lane i has seed + i
        if ACTION_MASK in infos or (isinstance(obs, dict) and ACTION_MASK in obs):
            warn_once("Stable-Baselines3's algorithms ignore the action masks of %r", name_of_env(self.vector_env))
        self._reset_seeds()
        self._reset_options()
        self.reset_infos = _infos_of_lanes(checked_infos(infos), np.arange(self.num_envs))
        return self._flat(obs)

    def step_async(self, actions: np.ndarray) -> None:
        """Store the actions `[N, ...]` for `step_wait`, in the environment's shape and dtype."""
        own: Any = self.vector_env.single_action_space
        if own.shape is not None:  # a Tuple has none
            actions = (np.asarray(actions) + np.ravel(getattr(own, "start", 0))).reshape(-1, *own.shape)
            is_fraction = actions.dtype.kind == "f" and own.dtype.kind != "f"
            if not is_fraction or isinstance(own, MultiBinary):  # other fractions are the environment's to refuse
                actions = actions.astype(own.dtype)
        self._actions = actions

    def step_wait(self) -> VecEnvStepReturn:
        """Observations `[N, ...]`, rewards float32 `[N]`, whether episodes have ended `[N]`, and one info per lane."""
        obs, rewards, terminated, truncated, infos = self.vector_env.step(self._actions)
        shown, rewards, dones = self._flat(obs), np.array(rewards, np.float32), terminated | truncated
        lane_infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        if dones.any():
            lanes, is_cut = np.flatnonzero(dones), (~terminated)[dones].tolist()
            if self.autoreset_mode == AutoresetMode.SAME_STEP:
                self._check_final(infos)
                last_obs = self._ended(infos["final_obs"][lanes])
                last_infos = _infos_of_lanes(infos.get("final_info", {}), lanes)
            else:
                last_obs, last_infos, before = _of_lanes(shown, lanes), _infos_of_lanes(infos, lanes), shown
                obs, infos = self.vector_env.reset(options=_ResetMask(reset_mask=dones.copy()))
                shown = self._flat(obs)
                self._check_others_go_on(before, shown, ~dones)
            ended = zip(lanes.tolist(), last_obs, is_cut, last_infos, _infos_of_lanes(infos, lanes), strict=True)
            for lane, last, cut, info, reset_info in ended:
                info["terminal_observation"], info["TimeLimit.truncated"] = last, cut
                # gymnasium's RecordEpisodeStatistics adds the ended episode to the infos of the reset.
                if self.autoreset_mode == AutoresetMode.SAME_STEP and "episode" in reset_info:
                    info["episode"] = reset_info.pop("episode")
                lane_infos[lane], self.reset_infos[lane] = info, reset_info
        return shown, rewards, dones, lane_infos

    def _check_final(self, infos: dict[str, Any]) -> None:
        """Raises ValueError unless the infos of SAME_STEP have the last observations and infos as gymnasium's do."""
        final_obs, final_info = infos.get("final_obs"), infos.get("final_info", {})
        is_array = isinstance(final_obs, np.ndarray) and len(final_obs) == self.num_envs
        if not is_array or not isinstance(final_info, dict):
            raise ValueError(
                f"the environment {name_of_env(self.vector_env)!r} has autoreset_mode SAME_STEP: expected infos with "
                "final_obs, an array with an observation per lane, and final_info, a dict, as those of gymnasium's "
                f"SyncVectorEnv, got {type(final_obs).__name__} and {type(final_info).__name__}"
            )

    def _check_others_go_on(self, before: VecEnvObs, after: VecEnvObs, others: NDArray[np.bool_]) -> None:
        """Raises ValueError if a reset of the lanes that ended changed the observations `[N, ...]` of the `others`."""
        pairs = [(before[name], after[name]) for name in before] if isinstance(before, dict) else [(before, after)]
        if not all(np.array_equal(old[others], new[others], equal_nan=old.dtype.kind == "f") for old, new in pairs):
            raise ValueError(
                f"the environment {name_of_env(self.vector_env)!r} resets all lanes: expected reset(options="
                "{'reset_mask': ...}) to reset the given lanes alone; take autoreset_mode SAME_STEP, or gymnasium's "
                "SyncVectorEnv"
            )

    def _flat(self, obs: Any) -> Any:
        """A copy of all lanes' observations; nested ones as a dict of arrays, keyed by the names of `SpaceSpec`."""
        if not self._entries:
            return np.array(obs) - self._first if np.any(self._first) else np.array(obs)
        return {entry.name: np.array(entry.arrange(entry.part.observe(obs).numpy())) for entry in self._entries}

    def _ended(self, last_obs: NDArray[Any]) -> list[Any]:
        """`_flat` for the last observations of single lanes."""
        if not self._entries:
            return [self._flat(obs) for obs in last_obs]

        def flat(obs: Any, entry: Entry) -> NDArray[Any]:
            array = np.asarray(pick(obs, entry.part.path))[None]
            return entry.arrange(entry.part.encode(array).numpy())[0]

        return [{entry.name: flat(obs, entry) for entry in self._entries} for obs in last_obs]

    def close(self) -> None:
        self.vector_env.close()

    def get_images(self) -> Sequence[np.ndarray | None]:
        """One image per lane; None without render_mode "rgb_array"."""
        frames: Any = self.vector_env.render() if self.render_mode == "rgb_array" else None
        return [None] * self.num_envs if frames is None else list(frames)

    def has_attr(self, attr_name: str) -> bool:
        """Whether all lanes have an attribute."""
        return self._access.has(attr_name)

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """An attribute of the lanes; raises AttributeError if there is none."""
        lanes = list(self._get_indices(indices))
        if attr_name in ("observation_space", "action_space"):  # the engine's are batched over all lanes
            return [getattr(self, attr_name)] * len(lanes)
        return self._access.get(attr_name, lanes)

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Set an attribute of the lanes. Raises ValueError if one engine steps all lanes."""
        self._access.set(attr_name, value, list(self._get_indices(indices)))

    def env_method(self, method_name: str, *args: Any, indices: VecEnvIndices = None, **kwargs: Any) -> list[Any]:
        """Call a method of the lanes; a tuple from an engine of all lanes is read as one value per lane.

        Raises:
          AttributeError: if there is none.
          ValueError: for a subset of lanes, or `step` and `reset`, if the lanes are not separate environments.
        """
        return self._access.call(method_name, list(self._get_indices(indices)), *args, **kwargs)

    def env_is_wrapped(self, wrapper_class: type[gym.Wrapper], indices: VecEnvIndices = None) -> list[bool]:
        """Whether the lanes have a wrapper; compared by name in other processes; an engine of all lanes has none."""
        return self._access.is_wrapped(wrapper_class, list(self._get_indices(indices)))


class _ResetMask(dict[str, Any]):
    """Options of a reset. gymnasium's SyncVectorEnv pops the mask, which the wrappers around it read afterwards."""

    def pop(self, key: str, *_: Any) -> Any:
        return self[key]


def _flat_actions(space: gym.Space[Any]) -> gym.Space[Any]:
    """The action space as Stable-Baselines3 takes it: counted from 0, and with one axis at most."""
    match space:
        case Discrete():
            return Discrete(space.n, dtype=space.dtype)
        case MultiDiscrete():
            return _from_0(MultiDiscrete(space.nvec.ravel(), space.dtype))
        case MultiBinary():
            return MultiBinary(math.prod(space.shape))
    return space


def _from_0(space: gym.Space[Any]) -> gym.Space[Any]:
    """A space with its categories counted from 0.

    The counts of a MultiDiscrete become int64: Stable-Baselines3 sums them in their dtype, which can overflow.
    """
    if isinstance(space, Discrete) and space.start:
        return Discrete(space.n, dtype=space.dtype)
    if not isinstance(space, MultiDiscrete):
        return space
    large = deepcopy(space)
    large.nvec, large.start = space.nvec.astype(np.int64), np.zeros_like(space.start)
    return large


def _infos_of_lanes(infos: dict[str, Any], lanes: NDArray[np.int64]) -> list[dict[str, Any]]:
    """A vector environment's infos, where `_name` marks the lanes that have `name`, as one dict per lane."""
    lane_infos: list[dict[str, Any]] = [{} for _ in lanes]
    for name, values in infos.items():
        if not isinstance(name, str) or name.startswith("_") or not _is_per_lane(values):
            continue
        if name in ("final_obs", "final_info"):  # under SAME_STEP, from the previous episode
            continue
        column = _infos_of_lanes(values, lanes) if isinstance(values, dict) else [values[lane] for lane in lanes]
        has_name = np.asarray(infos[f"_{name}"])[lanes].tolist() if f"_{name}" in infos else [True] * len(lanes)
        for info, value, has in zip(lane_infos, column, has_name, strict=True):
            if has:
                info[name] = value
    return lane_infos


def _is_per_lane(values: Any) -> bool:
    return isinstance(values, dict | list | tuple) or (isinstance(values, np.ndarray) and values.ndim > 0)


def _of_lanes(obs: Any, lanes: NDArray[np.int64]) -> list[Any]:
    """A copy of each lane's observation."""
    if isinstance(obs, dict):  # a flat one
        return [{name: part[lane] for name, part in obs.items()} for lane in lanes]
    return list(obs[lanes])
