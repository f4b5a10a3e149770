"""Environments of Stable-Baselines3 as lanes of a gymnasium vector environment."""

from functools import partial
from typing import Any

import gymnasium as gym
from gymnasium.vector import AutoresetMode, VectorEnv
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecMonitor

from rmc_agents.envs.guarded import GuardedEnv, GuardedLanes
from rmc_agents.envs.processes import WorkerError
from rmc_agents.envs.registry import as_numbers

from .vec_env import EngineVecEnv

PROCESS_ENDED = (EOFError, ConnectionError)


def from_sb3(vec_env: VecEnv) -> VectorEnv:
    """Convert an environment of Stable-Baselines3 to a NEXT_STEP vector environment that agents can take.

    With NEXT_STEP, a lane that waits for its next episode must not step while the others do, but a VecEnv steps all
    lanes or none. Its environments are therefore stepped one by one, through `env_method`: terminated and truncated
    stay separate, but the processes of a SubprocVecEnv take turns. An environment from `to_sb3` is unwrapped, and one
    from `make_sb3_env` is created again; both keep their full speed.

    Args:
      vec_env: a DummyVecEnv, a SubprocVecEnv, or an environment from `make_sb3_env` or from `to_sb3` with NEXT_STEP.
        A VecMonitor around it is removed.

    Raises:
      ValueError: for another environment, and as `make_vector_env` does for its spaces.
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


class _LanesOfVecEnv(GuardedLanes):
    """The environments inside a DummyVecEnv or a SubprocVecEnv, stepped one by one."""

    def __init__(self, vec_env: VecEnv) -> None:
        self._vec_env = vec_env
        lanes = [partial(_make_lane, vec_env, lane) for lane in range(vec_env.num_envs)]
        super().__init__(lanes, AutoresetMode.NEXT_STEP)

    def close_extras(self, **kwargs: Any) -> None:
        try:
            self._vec_env.close()
        except PROCESS_ENDED:  # the processes after it did not receive the command
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
            raise WorkerError(f"lane {self._lane}: the environment's process has ended; see its error above") from None


def _make_lane(vec_env: VecEnv, lane: int) -> gym.Env:
    return GuardedEnv(as_numbers(_Lane(vec_env, lane)), f"lane {lane} of a {type(vec_env).__name__}")
