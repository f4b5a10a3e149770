"""Vector environments as those of Stable-Baselines3, and the other way round.

They differ in what follows an episode's end. Stable-Baselines3 resets at once: the observation is the next episode's
first, and the info has the last one (`terminal_observation`). Here, the last observation comes as any other, and a
further step, whose action is ignored, brings the first of the next episode (gymnasium's `AutoresetMode.NEXT_STEP`).
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import MultiDiscrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecMonitor
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvObs, VecEnvStepReturn

from rmc_agents.envs.names import STACKED
from rmc_agents.envs.registry import as_numbers, make_vector_env

from .lane_access import access_to

PROCESS_ENDED = (EOFError, ConnectionError)


def make_sb3_env(
    name: str,
    num_envs: int = 1,
    seed: int | None = None,
    render_mode: str | None = None,
    *,
    env_kwargs: dict[str, Any] | None = None,
    wrapper_class: Callable[..., gym.Env] | None = None,
    wrapper_kwargs: dict[str, Any] | None = None,
    monitor_dir: str | PathLike[str] | None = None,
) -> VecEnv:
    """An environment of `rmc-train --env` for Stable-Baselines3, with its episodes counted.

    Args:
      name: a short name, such as minipacman, or a gymnasium id; see `make_vector_env`.
      num_envs: lanes.
      seed: lane i starts from seed + i; None: from anywhere.
      render_mode: "rgb_array" for videos.
      env_kwargs: arguments of the environment.
      wrapper_class: a wrapper for each lane's environment, or a function that wraps it. The lanes are then environments
        of their own, stepped one by one, where else a native engine steps them all at once.
      wrapper_kwargs: arguments of the wrapper, behind the environment.
      monitor_dir: a folder, made if there is none, for `monitor.csv`: a line for each episode of all lanes, as
        Stable-Baselines3's `load_results` reads it.

    Raises:
      ValueError: as `make_vector_env` does.
    """
    wrapper = partial(wrapper_class, **wrapper_kwargs or {}) if wrapper_class is not None else None
    make = partial(make_vector_env, name, num_envs, render_mode, env_kwargs=env_kwargs, wrapper=wrapper)
    lanes = to_sb3(make(autoreset_mode=cheapest_autoreset(name)))
    lanes.make_next_step = make
    if monitor_dir is not None:
        Path(monitor_dir).mkdir(parents=True, exist_ok=True)
    env = VecMonitor(lanes, None if monitor_dir is None else fspath(monitor_dir))
    if seed is not None:
        env.seed(seed)
    return env


def cheapest_autoreset(name: str, num_workers: int = 0) -> AutoresetMode:
    """The mode that costs a VecEnv least: SAME_STEP, but for stacked views and workers, which do not know it."""
    if STACKED.fullmatch(name) or num_workers:
        return AutoresetMode.NEXT_STEP
    return AutoresetMode.SAME_STEP


def to_sb3(vector_env: VectorEnv) -> "EngineVecEnv":
    """A vector environment of gymnasium for Stable-Baselines3. Raises ValueError as `EngineVecEnv` does."""
    return EngineVecEnv(vector_env)


def from_sb3(vec_env: VecEnv) -> VectorEnv:
    """An environment of Stable-Baselines3 as a NEXT_STEP vector environment, with observations that agents can take.

    A lane that waits for its next episode's first observation must stand still while the others step, and a VecEnv
    steps all lanes or none. So its environments are stepped one by one, by `env_method`: their own terminated and
    truncated come through as they are, but the processes of a SubprocVecEnv take turns. What `to_sb3` made is given
    back, at full speed, and what `make_sb3_env` made is made anew.

    Args:
      vec_env: a DummyVecEnv, a SubprocVecEnv, or what `make_sb3_env`, or `to_sb3` of a NEXT_STEP environment, made.
        A VecMonitor around it is left out.

    Raises:
      ValueError: for another one, and as `make_vector_env` does for its spaces.
    """
    base = vec_env
    while isinstance(base, VecMonitor):
        base = base.venv
    if isinstance(base, EngineVecEnv) and base.make_next_step is not None:
        return base.make_next_step()
    if isinstance(base, EngineVecEnv) and base.autoreset_mode == AutoresetMode.NEXT_STEP:
        return base.vector_env
    if not isinstance(base, DummyVecEnv | SubprocVecEnv):
        raise ValueError(
            "expected a DummyVecEnv, a SubprocVecEnv, or a NEXT_STEP environment by to_sb3, "
            f"got {type(base).__name__}; wrap the environments inside it instead"
        )
    return _LanesOfVecEnv(base)


class EngineVecEnv(VecEnv):
    """A vector environment of gymnasium, stepped as a whole, for Stable-Baselines3.

    Nothing is done for each lane in Python but for those whose episode has just ended: they alone have an info, with
    `terminal_observation`, `TimeLimit.truncated`, and what the environment said of their last step.

    `get_attr`, `set_attr` and `env_method` reach the lanes where these are environments of their own (gymnasium's
    SyncVectorEnv and, all lanes at once, AsyncVectorEnv). Where one engine plays all lanes, its attributes are every
    lane's, cannot be set, and its methods are called once for all.

    Args:
      vector_env: with any autoreset mode, and new arrays from every step; where the mode is not SAME_STEP, it has to
        support `reset(options={"reset_mask": ...})`, as this project's and gymnasium's do.

    Raises:
      ValueError: if its autoreset mode is unknown.
    """

    metadata: dict[str, Any]
    make_next_step: Callable[[], VectorEnv] | None = None
    """Makes the same vector environment again, with NEXT_STEP autoreset; None if that is not known how."""

    def __init__(self, vector_env: VectorEnv) -> None:
        """See the class."""
        self.vector_env, self._access = vector_env, access_to(vector_env)
        self.autoreset_mode = vector_env.metadata.get("autoreset_mode")
        if not isinstance(self.autoreset_mode, AutoresetMode):
            raise ValueError(
                f"expected a vector environment with autoreset_mode in its metadata, got {vector_env.metadata}"
            )
        observation_space = _with_large_counts(vector_env.single_observation_space)
        super().__init__(vector_env.num_envs, observation_space, vector_env.single_action_space)
        self.metadata = {**vector_env.metadata, **self.metadata}
        self.spec = vector_env.spec
        self._no_infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]

    def reset(self) -> VecEnvObs:
        """The first observations, `[N, ...]`, from the seeds and options set before."""
        options = self._options[0]
        if any(other != options for other in self._options):
            raise ValueError("set_options: expected the same options for all lanes, which are reset together")
        seeds = self._seeds if any(seed is not None for seed in self._seeds) else None
        obs, infos = self.vector_env.reset(seed=seeds, options=options or None)
        self._reset_seeds()
        self._reset_options()
        self.reset_infos = _infos_of_lanes(infos, np.arange(self.num_envs))
        return obs

    def step_async(self, actions: np.ndarray) -> None:
        """Keeps the actions `[N, ...]` for `step_wait`."""
        self._actions = actions

    def step_wait(self) -> VecEnvStepReturn:
        """Observations `[N, ...]`, rewards float32 `[N]`, whether episodes have ended `[N]`, and infos, one a lane."""
        obs, rewards, terminated, truncated, infos = self.vector_env.step(self._actions)
        dones = terminated | truncated
        lane_infos = self._no_infos.copy()
        if dones.any():
            if self.autoreset_mode == AutoresetMode.SAME_STEP:
                last_obs, last_infos = infos["final_obs"], infos.get("final_info", {})
            else:
                last_obs, last_infos = obs, infos
                obs, infos = self.vector_env.reset(options={"reset_mask": dones.copy()})
            lanes = np.flatnonzero(dones)
            ended = (_of_lanes(last_obs, lanes), (~terminated)[lanes].tolist(), _infos_of_lanes(last_infos, lanes))
            reset_infos = _infos_of_lanes(infos, lanes)
            for lane, last, cut, info, reset_info in zip(lanes.tolist(), *ended, reset_infos, strict=True):
                info["terminal_observation"], info["TimeLimit.truncated"] = last, cut
                lane_infos[lane], self.reset_infos[lane] = info, reset_info
        return obs, np.array(rewards, np.float32), dones, lane_infos

    def close(self) -> None:
        """Closes the vector environment."""
        self.vector_env.close()

    def get_images(self) -> Sequence[np.ndarray | None]:
        """One picture a lane; None each without render_mode "rgb_array"."""
        frames: Any = self.vector_env.render() if self.render_mode == "rgb_array" else None
        return [None] * self.num_envs if frames is None else list(frames)

    def has_attr(self, attr_name: str) -> bool:
        """Whether all lanes have an attribute."""
        return self._access.has(attr_name)

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """An attribute of the lanes; raises AttributeError if there is none."""
        lanes = list(self._get_indices(indices))
        if attr_name in ("observation_space", "action_space"):  # the engine's own are those of all lanes
            return [getattr(self, attr_name)] * len(lanes)
        return self._access.get(attr_name, lanes)

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Set an attribute of the lanes. Raises ValueError where one engine plays all: it takes settings when made."""
        self._access.set(attr_name, value, list(self._get_indices(indices)))

    def env_method(self, method_name: str, *args: Any, indices: VecEnvIndices = None, **kwargs: Any) -> list[Any]:
        """What a method of the lanes returns; a tuple that the engine of all lanes returns is taken for one each.

        Raises:
          AttributeError: if there is none.
          ValueError: for some of the lanes, or `step` and `reset`, where the lanes cannot be reached one by one.
        """
        return self._access.call(method_name, list(self._get_indices(indices)), *args, **kwargs)

    def env_is_wrapped(self, wrapper_class: type[gym.Wrapper], indices: VecEnvIndices = None) -> list[bool]:
        """Whether the lanes have a wrapper: those of other processes by its name; an engine of all lanes has none."""
        return self._access.is_wrapped(wrapper_class, list(self._get_indices(indices)))


class _LanesOfVecEnv(SyncVectorEnv):
    """The environments inside a DummyVecEnv or a SubprocVecEnv, stepped one by one."""

    def __init__(self, vec_env: VecEnv) -> None:
        self._vec_env = vec_env
        lanes = [partial(_make_lane, vec_env, lane) for lane in range(vec_env.num_envs)]
        super().__init__(lanes, autoreset_mode=AutoresetMode.NEXT_STEP)

    def close_extras(self, **kwargs: Any) -> None:
        try:
            self._vec_env.close()
        except PROCESS_ENDED:  # those behind it were not told to end
            for process in self._vec_env.processes:
                process.terminate()


class _Lane(gym.Env):
    """One environment of a VecEnv, through `env_method`."""

    def __init__(self, vec_env: VecEnv, lane: int) -> None:
        self._vec_env, self._lane = vec_env, lane
        self.observation_space, self.action_space = vec_env.observation_space, vec_env.action_space
        self.metadata, self.render_mode = vec_env.get_attr("metadata", [lane])[0], vec_env.render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self._call("reset", seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._call("step", action)

    def render(self) -> Any:
        return self._call("render")

    def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return self._vec_env.env_method(method, *args, indices=[self._lane], **kwargs)[0]
        except PROCESS_ENDED:
            raise OSError(f"lane {self._lane}: the environment's process has ended; its own error is above") from None


def _make_lane(vec_env: VecEnv, lane: int) -> gym.Env:
    return as_numbers(_Lane(vec_env, lane))


def _with_large_counts(space: gym.Space[Any]) -> gym.Space[Any]:
    """The same space, whose numbers of categories can be summed up: Stable-Baselines3 does so in their own type."""
    if not isinstance(space, MultiDiscrete):
        return space
    large = deepcopy(space)
    large.nvec = space.nvec.astype(np.int64)
    return large


def _infos_of_lanes(infos: dict[str, Any], lanes: NDArray[np.int64]) -> list[dict[str, Any]]:
    """The infos of a vector environment, where `_name` tells which lanes have a `name`, as one dictionary a lane."""
    lane_infos: list[dict[str, Any]] = [{} for _ in lanes]
    for name, values in infos.items():
        if name.startswith("_") or name in ("final_obs", "final_info"):  # under SAME_STEP, of the episode before
            continue
        column = _infos_of_lanes(values, lanes) if isinstance(values, dict) else values[lanes]
        has_name = infos[f"_{name}"][lanes].tolist() if f"_{name}" in infos else [True] * len(lanes)
        for info, value, has in zip(lane_infos, column, has_name, strict=True):
            if has:
                info[name] = value
    return lane_infos


def _of_lanes(obs: Any, lanes: NDArray[np.int64]) -> list[Any]:
    """A copy of each lane's observation."""
    if not isinstance(obs, dict):
        return list(obs[lanes])
    columns = (_of_lanes(part, lanes) for part in obs.values())
    return [dict(zip(obs, parts, strict=True)) for parts in zip(*columns, strict=True)]
