"""Stable-Baselines3's algorithms as trainers, with this project's settings, run folder and metric names."""

import io
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnvWrapper
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn
from torch import nn

from rmc_agents.config import CORES, Config
from rmc_agents.envs.guarded import GuardedVectorEnv
from rmc_agents.envs.registry import make_vector_env
from rmc_agents.envs.returned_values import check_finite
from rmc_agents.envs.saving import layers
from rmc_agents.episodes import EndedEpisodes, Episode
from rmc_agents.files import write_atomically
from rmc_agents.kernels.modes import untouched_generators
from rmc_agents.losses import Metrics
from rmc_agents.runs import archive, checkpoint
from rmc_agents.runs.folder import BEST
from rmc_agents.runs.saved import Provenance, count_parameters
from rmc_agents.sb3 import RmcPolicy, to_sb3
from rmc_agents.sb3.saved import Sb3Policy, load_model, make_policy
from rmc_agents.sb3.vec_env import cheapest_autoreset
from rmc_agents.spaces import SpaceSpec
from rmc_agents.stream import check_next_step, seed_after
from rmc_agents.train.learner import diverged
from rmc_agents.train.trainer import Trainer, describe

from .model import make_model

NAMES = {
    "train/learning_rate": "charts/learning_rate",
    "train/policy_loss": "losses/policy_loss",
    "train/policy_gradient_loss": "losses/policy_loss",
    "train/value_loss": "losses/value_loss",
    "train/explained_variance": "losses/explained_variance",
    "train/clip_fraction": "losses/clipfrac",
    "train/approx_kl": "losses/approx_kl",
}
"""Stable-Baselines3's metric names -> this project's. The losses use scaled rewards, as this project's do."""


class Sb3Trainer(Trainer):
    """A model of Stable-Baselines3 in training; an update is one round of its `learn`.

    Args:
      config: all settings.
      device: the model's device.

    Attributes: as in `Trainer`, and
      model: Stable-Baselines3's.

    Raises:
      ValueError: for settings that do not fit together.
    """

    agent: Sb3Policy
    lanes: "Sb3Lanes"

    def __init__(self, config: Config, device: torch.device) -> None:
        _check(config)
        self.requested, self.config = config, config.settled()
        self.train = self.config.train
        self.lanes = Sb3Lanes(self.config, device)
        self.frames, self.updates = 0, 0
        with ExitStack() as on_error:
            on_error.callback(self.lanes.close)
            on_error.enter_context(untouched_generators())  # Stable-Baselines3 seeds them, and draws from them
            self._take(make_model(self.config, self.lanes, device))
            self._at_end = on_error.pop_all()

    def _take(self, model: OnPolicyAlgorithm) -> None:
        """Use this model, with new episodes."""
        self.model = model
        model.set_logger(Logger(folder=None, output_formats=[]))
        model.num_timesteps = self.frames
        _, self._callback = model._setup_learn(self.train.total_frames, reset_num_timesteps=self.frames == 0)
        policy = model.policy
        is_ours = isinstance(policy, RmcPolicy)
        self.backend = policy.lstm_actor.core.chosen_backend() if is_ours else "reference"
        self.agent = make_policy(model, self.lanes.spec)

    def update(self) -> Metrics:
        """Collect one rollout and learn from it. Returns metrics."""
        model = self.model
        frames = self.frames + model.n_steps * model.n_envs
        try:
            model.collect_rollouts(model.env, self._callback, model.rollout_buffer, model.n_steps)
            model._update_current_progress_remaining(self.frames, self.train.total_frames)
            model.train()
        except ValueError as error:
            if str(error).startswith("Expected parameter"):  # of a distribution, in many lines
                raise diverged(f"after {self.frames:,} frames") from None
            raise
        finally:
            if not all(parameter.isfinite().all() for parameter in self.agent.parameters()):
                raise diverged(f"after {self.frames:,} frames") from None
        self.frames, self.updates = frames, self.updates + 1
        logged = model.logger.name_to_value
        metrics = {ours: logged[theirs] for theirs, ours in NAMES.items() if theirs in logged}
        metrics["losses/entropy"] = -logged["train/entropy_loss"]
        return {name: torch.tensor(float(value)) for name, value in metrics.items()}

    def describe(self) -> list[str]:
        """The first lines that a run prints."""
        config, policy = self.config, self.model.policy
        lines = [describe(self, *_memory(policy))]
        packages = f"stable-baselines3 {version('stable-baselines3')}, sb3-contrib {version('sb3-contrib')}"
        lines.append(f"{config.train.algo} of {packages}: {type(policy).__name__}, optimizer Adam")
        if self.requested.core.core != config.core.core:
            lines.append(f"core {self.requested.core.core} is not used: this policy's is {config.core.core}")
        return lines

    def close(self) -> None:
        """Close the environments, and restore the global random generators."""
        self._at_end.close()

    def save(self, run_dir: Path, seconds: float) -> Path:
        """Save the model's archive in a run's folder; `seconds` is the training time so far."""
        keep = self.config.run.keep_checkpoints
        return checkpoint.write_numbered(run_dir, self.updates, self._archived(seconds), keep, archive.SUFFIX)

    def save_best(self, run_dir: Path, provenance: Provenance) -> None:
        """As `Trainer.save_best`."""
        write_atomically(run_dir / f"{BEST}{archive.SUFFIX}", self._archived(0.0, provenance._asdict()))

    def _archived(self, seconds: float, provenance: dict[str, Any] | None = None) -> bytes:
        content = io.BytesIO()
        self.model.save(content)
        info = archive.ArchiveInfo(
            self.config.to_mapping(),
            list(self.lanes.spec),
            self.frames,
            self.updates,
            seconds,
            count_parameters(self.agent.parameters()),
            provenance,
        )
        return archive.with_info(content.getvalue(), info)

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from an archive, which can run code: `path` and its `info`. Raises ValueError as `load_model`."""
        info: archive.ArchiveInfo = state["info"]
        self.frames, self.updates = info.frames, info.updates
        model = load_model(self.train.algo, state["path"], self.lanes.device, self.lanes)
        model.set_random_seed(seed_after(self.config.run.seed, self.frames))
        self._take(model)

    def resume_notes(self, state: dict[str, Any]) -> list[str]:
        """Reasons why resuming is not exact."""
        return ["Stable-Baselines3 does not save episodes and random states, so the resume is not exact"]


class Sb3Lanes(EndedEpisodes, VecEnvWrapper):
    """The training environment of a model, with scaled rewards, and episodes counted as in `stream.Lanes`.

    Args:
      config: the environment and `reward_scale`.
      device: the model's device.

    Attributes:
      spec: the environment's spaces.
      episodes: episodes that ended since the last `take_episodes`, with unscaled returns.
    """

    def __init__(self, config: Config, device: torch.device) -> None:
        env = config.env
        mode = cheapest_autoreset(env.env, env.env_workers)
        workers, backend = env.env_workers, env.env_backend
        lanes = make_vector_env(env.env, env.num_envs, None, workers, backend, mode, env.env_kwargs)
        if any(isinstance(layer, GuardedVectorEnv) for layer in layers(lanes)):  # the user's own, in its own mode
            check_next_step(lanes)  # evaluations and videos need it
        self.spec = SpaceSpec.of(lanes)
        self.device, self.num_lanes, self.reward_scale = device, env.num_envs, config.train.reward_scale
        self.episodes: list[Episode] = []
        self._reports_success = False
        super().__init__(to_sb3(lanes))

    def reset(self) -> VecEnvObs:
        """The first observations of all lanes."""
        self._returns, self._lengths = np.zeros(self.num_lanes), np.zeros(self.num_lanes, np.int64)
        obs = self.venv.reset()
        self._check(_named(obs), self._returns)
        return obs

    def step_wait(self) -> VecEnvStepReturn:
        """As the environment's, with scaled rewards."""
        obs, rewards, dones, infos = self.venv.step_wait()
        self._returns += rewards
        self._lengths += 1
        ended = np.flatnonzero(dones)
        self._check(_last(obs, infos, ended), rewards)
        for lane in ended:
            self._reports_success |= "is_success" in infos[lane]
            success = bool(infos[lane].get("is_success")) if self._reports_success else None
            self.episodes.append(Episode(float(self._returns[lane]), int(self._lengths[lane]), success))
        self._returns[dones], self._lengths[dones] = 0.0, 0
        if len(ended):
            self._check(_named(obs), rewards)
        return obs, rewards * np.float32(self.reward_scale), dones, infos

    def _check(self, obs: Mapping[str, NDArray[Any]], rewards: NDArray[Any]) -> None:
        check_finite(self.venv.vector_env, obs, rewards, self._lengths)


def _named(obs: Any) -> dict[str, NDArray[Any]]:
    return obs if isinstance(obs, dict) else {"": obs}


def _last(obs: VecEnvObs, infos: Sequence[Mapping[str, Any]], ended: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """The observations after a step, [N, ...] by name; of lanes that ended, the last of the episode."""
    if not len(ended):
        return _named(obs)
    arrays = {name: array.copy() for name, array in _named(obs).items()}
    for lane in ended:
        for name, array in _named(infos[lane]["terminal_observation"]).items():
            arrays[name][lane] = array
    return arrays


def _memory(policy: nn.Module) -> list[nn.Module]:
    """The recurrent parts of a policy."""
    if not isinstance(policy, RecurrentActorCriticPolicy):
        return []
    parts = (getattr(policy, name, None) for name in ("lstm_actor", "lstm_critic"))
    return [part for part in parts if part is not None]


def _check(config: Config) -> None:
    """Raises ValueError for settings that only apply to this project's own agents."""
    if config.core.core in CORES and config.core.core_args:
        raise ValueError(config.core.core_args_error())
    for flag, is_set in (("--init-from", config.run.init_from is not None), ("--diagnostics", config.run.diagnostics)):
        if is_set:
            raise ValueError(
                f"{flag}: expected one of this project's own algorithms, got {config.train.algo}, which has another "
                "agent"
            )
