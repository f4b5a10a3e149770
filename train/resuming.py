"""Resuming a run: the checkpoint, the settings that may change, and notes for the user."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from rmc_agents import plugins
from rmc_agents.config import Config
from rmc_agents.envs.names import NAMESPACE
from rmc_agents.envs.own import check_given_once, own_id
from rmc_agents.envs.processes import WorkerError
from rmc_agents.evaluate.episodes import check_spec_fits
from rmc_agents.registry import NotRegistered
from rmc_agents.runs import archive, checkpoint
from rmc_agents.runs.folder import CONFIG, RunFolder, run_of
from rmc_agents.runs.saved import to_settings
from rmc_agents.runs.texts import check_text
from rmc_agents.spaces import SpaceSpec
from rmc_agents.tree_checks import check_progress

from .algorithms import new_trainer
from .learner import learning_rate_at
from .own_env import OwnEnv, settle_env
from .trainer import Trainer

MAY_CHANGE_ON_RESUME = frozenset(
    {"total_frames", "env_workers", "rollouts_ahead", "max_policy_lag", "actor_timeout", "actor_engine", "ray_address"}
    | {"device", "backend", "threads", "learners", "save_every", "keep_checkpoints", "log_every", "diagnostics"}
    | {"video", "eval_episodes", "eval_every", "eval_max_steps"}
)


class Saved(NamedTuple):
    """A run to be resumed."""

    config: Config
    path: Path  # the checkpoint
    frames: int  # trained so far
    seconds: float  # of training so far
    tree: dict[str, Any]  # for the trainer's set_state
    spec: SpaceSpec | None = None  # None: in an archive of Stable-Baselines3

    def is_of(self, run_dir: Path) -> bool:
        """Whether the checkpoint lies in this run's folder."""
        run = run_of(self.path)
        return run is not None and run.resolve() == run_dir.resolve()


def reopen(
    source: Path, settings: Callable[[Config], Config], trust: bool, env: OwnEnv | None = None
) -> tuple[Trainer, Saved]:
    """A trainer in the state of a checkpoint.

    Args:
      source: a checkpoint, or a run's folder for its newest valid one.
      settings: maps the saved settings to the wanted ones; few may differ.
      trust: whether to open checkpoints that can run code.
      env: the run's environment, if it was given in Python (see `settle_env`).

    Raises:
      CheckpointError: if there is no valid checkpoint.
      ValueError: if a setting cannot be changed, the environment has other spaces, or a checkpoint can run code and is
        not trusted.
    """

    def open_one(path: Path) -> tuple[Trainer, Saved]:
        saved = read_saved(path, trust)
        config, lanes = settings(saved.config), None
        if env is None:
            plugins.check_named(config.env.env, path)
            check_given_once(config.env.env)
        else:
            config, lanes = settle_env(config, env)
        _check_unchanged(saved.config, config)
        config = _as_trained(config, saved)
        if (run := run_of(path)) is not None:
            check_text(config.env, run, "start a new run, by --init-from with this agent")
        trainer = new_trainer(config, lanes)
        try:
            if saved.spec is not None:
                check_spec_fits(saved.spec, trainer.agent.spec, config.env.env)
            with checkpoint.opening(path, passing=WorkerError):
                trainer.set_state(saved.tree)
        except BaseException:
            trainer.close()
            raise
        return trainer, saved

    suffix = archive.SUFFIX if archive.is_archive(source) else checkpoint.SUFFIX
    return checkpoint.find(source, open_one, suffix)


def read_saved(path: Path, trust: bool) -> Saved:
    """Read a checkpoint and check it as far as possible without an environment.

    Raises:
      CheckpointError: if it is damaged, or is not of a run.
      ValueError: if it can run code and is not trusted.
    """
    if archive.is_archive(path):
        info = archive.ArchiveInfo.read(path)
        if info.provenance is not None:
            raise _holds_only_an_agent(path, "rmc-evaluate and rmc-watch")
        archive.check_trust(path, trust)
        with checkpoint.opening(path):
            config = Config().updated(info.config, "config")
            return Saved(config, path, info.frames, info.seconds, {"path": path, "info": info})
    tree = checkpoint.load(path)
    if "provenance" in tree:
        raise _holds_only_an_agent(path, "rmc-evaluate, rmc-watch and --init-from")
    with checkpoint.opening(path, passing=NotRegistered):
        config, spec = to_settings(tree)
        check_progress(tree)
        if not isinstance(tree.get("actors", []), list):
            raise TypeError("actors: expected a list")
        return Saved(config, path, tree["frames"], tree["seconds"], tree, spec)


def _holds_only_an_agent(path: Path, taken_by: str) -> checkpoint.CheckpointError:
    return checkpoint.CheckpointError(f"{path} holds only an agent: {taken_by} take it, but it cannot be resumed")


def _check_unchanged(old: Config, new: Config) -> None:
    changed = [name for name in old.differing(new) if name not in MAY_CHANGE_ON_RESUME]
    module, _, name = new.env.env.rpartition(":")
    if module and own_id(name) == old.env.env:
        changed = [name for name in changed if name != "env"]  # given in Python, now by 'module:Class'
    if "env" in changed and new.env.env.startswith(NAMESPACE):
        by_name = f"; pass env={old.env.env!r}" if ":" in old.env.env else ""
        raise ValueError(
            f"a resumed run cannot change env: expected {old.env.env!r}, got {new.env.env!r}, the given one's "
            f"name{by_name}"
        )
    if changed:
        raise ValueError(
            f"a resumed run cannot change {', '.join(changed)}: start a new run with its weights by --init-from; "
            f"it can change {', '.join(sorted(MAY_CHANGE_ON_RESUME))}"
        )


def _as_trained(config: Config, saved: Saved) -> Config:
    """The settings, with the frames trained so far in place of a smaller new `total_frames`: the run then ends.

    They may exceed the saved one, because updates are whole rollouts.
    """
    if config.train.total_frames < min(saved.frames, saved.config.train.total_frames):
        return config.updated({"total_frames": saved.frames}, "settings")
    return config


def notes(trainer: Trainer, saved: Saved, folder: RunFolder) -> list[str]:
    """Notes for the user before the run continues."""
    where = "" if saved.is_of(folder.path) else f" in a new folder, {folder.path}; the checkpoint's run is not changed"
    return [
        f"resumed from {saved.path} at {trainer.frames:,} frames{where}",
        *_edited(saved.config, trainer.config, folder),
        *_learning_rate(trainer, saved.config),
        *trainer.resume_notes(saved.tree),
    ]


def _edited(saved: Config, config: Config, folder: RunFolder) -> list[str]:
    """Warnings about settings edited in `config.yaml`, which the checkpoint's and the flags override."""
    path = folder.path / CONFIG
    if not path.is_file():
        return []
    try:
        written = Config().updated_from_yaml(path).settled()
    except ValueError as error:
        return [f"warning: {error}; it is overwritten"]
    there, here = written.to_mapping(), config.to_mapping()
    return [
        f"warning: {path} has {name} {there[name]}, but the run continues with {here[name]}: only flags change settings"
        for name in written.differing(config)
        if there[name] != saved.to_mapping()[name]
    ]


def _learning_rate(trainer: Trainer, old: Config) -> list[str]:
    """A warning if a changed end of the linear schedule makes the learning rate jump."""
    train, before = trainer.train, old.train.total_frames
    then, now = (learning_rate_at(trainer.frames, each) for each in (replace(train, total_frames=before), train))
    if then == now or trainer.frames >= train.total_frames:
        return []
    return [
        f"warning: the learning rate jumps from {then:.3g} to {now:.3g}: its linear schedule ends at total_frames, "
        f"now {train.total_frames:,} instead of {before:,}"
    ]
