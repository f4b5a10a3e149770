"""`rmc.train` and `rmc.resume`: a run from its settings, or from a checkpoint."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict
from functools import partial
from os import PathLike, fspath
from pathlib import Path
from threading import RLock
from typing import Any

import gymnasium as gym
import torch
from gymnasium.vector import VectorEnv
from rich.console import Console

from rmc_agents import command_line, plugins, pretrained
from rmc_agents.command_line import say
from rmc_agents.config import Config
from rmc_agents.cores import built_in_name, settings_unused
from rmc_agents.envs.own import registrations_kept
from rmc_agents.envs.processes import check_main_guarded
from rmc_agents.evaluate.episodes import check_spec_fits
from rmc_agents.kernels import pointwise
from rmc_agents.kernels.modes import torch_threads
from rmc_agents.runs import checkpoint
from rmc_agents.runs.best import copy_best
from rmc_agents.runs.folder import RunFolder, branch_path, check_no_file, check_resumable, new_folder, run_of
from rmc_agents.runs.saved import load_agent

from . import distributed
from .algorithms import new_trainer
from .evaluating import check_evaluation
from .loop import Callback, Observers, Progress, Run, RunLoop
from .own_env import OwnEnv, settle_env
from .reporting.clock import TrainingClock
from .reporting.tracking import MakeTracker
from .resuming import Saved, reopen
from .trainer import Trainer

_training = RLock()  # held by a training: a callback may train as well, another thread may not


def _unlock() -> None:
    """In a new process, which has none of its parent's threads."""
    global _training  # noqa: PLW0603
    _training = RLock()


os.register_at_fork(after_in_child=_unlock)

__all__ = ["Callback", "Progress", "Run", "resume", "train"]


def train(
    config: Config | Mapping[str, Any],
    *,
    env: OwnEnv | None = None,
    run_dir: str | PathLike[str] | None = None,
    callback: Callback | None = None,
    console: Console | None = None,
    track: str | MakeTracker | None = None,
) -> Run:
    """Train an agent, evaluate it and record a video, as rmc-train does.

        run = train({"core": "lstm", "total_frames": 500_000}, env=MyEnv, callback=lambda p: p.seconds > 60)
        run = train({"config": "nth-farthest-rmc", "seed": 1})

    SIGINT (Ctrl-C), SIGTERM and SIGHUP end the training between two updates: the run is saved and returned, with
    `stopped_by` set.

    Args:
      config: all settings, or those that differ from the defaults, by name; "config" names a preset or a YAML file
        whose settings replace the defaults.
      env: an environment instead of that of a Config or a preset; a dict then has no "env". A name; a class or function
        called once for each lane (once for all lanes if it takes `num_envs`); an environment, which is copied for each
        lane; or a vector environment, which is used directly, without evaluation and video at the end. Unless it is a
        name, it is known as own/NAME, after the class or function; if a later one has that name, `evaluate` and
        `resume` ask for it.
      run_dir: the run's folder, which must not hold a run; None: a new one under runs/.
      callback: called after every update with the run's `Progress`; returns True to end the training. If it raises, the
        run is saved.
      console: where progress is shown; None: standard output; Console(quiet=True): nowhere.
      track: "wandb" or "module:Class", or a function from the run's folder and settings to a `Tracker`, which receives
        every point.

    Raises:
      ValueError: for invalid settings, or an environment or folder that cannot be used.
      EnvError: if the environment's own code fails; the run is saved.
    """
    if isinstance(config, Config):
        base = config
        if env is None:
            plugins.check_named(config.env.env, "config")  # it may have been read from a file
    else:
        base, config = _config(config, env)
    if callback is not None and not callable(callback):
        raise ValueError(f"callback: expected a function of a Progress, got {callback!r}")
    _check_folder(run_dir)
    lanes, console = None, console or command_line.console()
    say_unused(console, base, config)
    with _clock(console) as clock, _restored():
        observers = Observers(console, clock, callback, track)
        if env is not None:
            config, lanes = settle_env(config, env)
        if lanes is not None:
            say(console, "no evaluation and video at the end: a VectorEnv object cannot be created again")
        with closing(new_trainer(config, lanes)) as trainer:
            check_evaluation(trainer)
            if config.run.init_from is not None:
                _take_weights(trainer, config.run.init_from)
            path = new_folder(trainer.config) if run_dir is None else Path(run_dir)
            with RunFolder(path, resuming=False) as folder:
                return RunLoop(trainer, folder, None, observers).run()


def resume(
    run: str | PathLike[str],
    settings: Mapping[str, Any] | Callable[[Config], Config] | None = None,
    *,
    env: OwnEnv | None = None,
    run_dir: str | PathLike[str] | None = None,
    trust: bool = False,
    callback: Callback | None = None,
    console: Console | None = None,
    track: str | MakeTracker | None = None,
) -> Run:
    """Continue a run from its newest valid checkpoint, as rmc-train --resume does.

        run = resume("runs/mine", {"total_frames": 1_000_000}, env=MyEnv)

    With A2C, PPO and supervised learning, and equal threads and learners, the result is bitwise equal to that of an
    uninterrupted run if the environment can save its state: vector environments with `get_state()` and
    `set_state(state)`, others with the same methods for one lane (`envs.saving`). Others start new episodes.

    Args:
      run: the run's folder; or one of its checkpoints, to continue from it in a copy of the run.
      settings: the settings to change, by name, such as total_frames; or a function from the saved settings to the
        wanted ones. Most settings cannot be changed.
      env: the run's environment, if it was given to `train` in Python.
      run_dir: the folder of a copy; None: next to the run.
      trust: open checkpoints of Stable-Baselines3's algorithms, which can run code.
      callback, console, track: as in `train`.

    Raises:
      CheckpointError: if there is no valid checkpoint.
      ValueError: for a setting that cannot be changed, and as `train` does.
      EnvError: if the environment's own code fails; the run is saved.
    """
    _check_folder(run_dir)
    if not (settings is None or callable(settings) or isinstance(settings, Mapping)):
        raise ValueError(f"settings: expected a dict, or a function of the saved Config, got {settings!r}")
    source, console = Path(run), console or command_line.console()

    def changed(saved: Config) -> Config:
        new = settings(saved) if callable(settings) else saved.updated(dict(settings or {}), "settings")
        if not isinstance(new, Config):
            raise ValueError(f"settings: expected a function that returns a Config, got {new!r} from it")
        return new

    with _clock(console) as clock, _restored():
        observers = Observers(console, clock, callback, track)
        reopened = partial(reopen, source, lambda saved: saved.changed(changed, source), trust, env)
        if source.is_file():
            return _branch(source, branch_path(source) if run_dir is None else Path(run_dir), reopened, observers)
        check_resumable(source)
        if run_dir is not None:
            raise ValueError("run_dir: expected None: a run continues in its own folder; a checkpoint takes one")
        with RunFolder(source, resuming=True) as folder:
            trainer, saved = reopened()
            with closing(trainer):
                say_unused(console, saved.config, trainer.config)
                for path in checkpoint.rename_unreadable(saved.path):
                    say(console, f"renamed, because it could not be opened: {path}")
                return RunLoop(trainer, folder, saved, observers).run()


def _check_folder(run_dir: str | PathLike[str] | None) -> None:
    if run_dir == "":
        raise ValueError("run_dir: expected a folder's name, got an empty one")
    if run_dir is not None:
        check_no_file(Path(run_dir))


def _config(settings: Mapping[str, Any], env: OwnEnv | None) -> tuple[Config, Config]:
    """The settings of "config" or the defaults, and all settings of the run. Raises ValueError for a class in place of
    a name, for a file that names an environment whose module the user has not named, and as `Config` does."""
    if not isinstance(settings, Mapping):
        hint = f'; a preset is {{"config": {settings!r}}}' if isinstance(settings, str) else ""
        raise ValueError(f"config: expected a Config or a dict of settings, got {settings!r}{hint}")
    for part in ("core", "encoder", "loss"):
        if callable(kind := settings.get(part)):
            name = getattr(kind, "__name__", type(kind).__name__)
            own = f"for one of your own, call rmc.register_{part}({name.lower()!r}, {name}) and pass {name.lower()!r}"
            built_in = built_in_name(kind) if part == "core" else None
            raise ValueError(
                f"config: {part}: expected a name, got {name}; {f'pass {built_in!r}' if built_in else own}"
            )
    if isinstance(named := settings.get("env", ""), gym.Env | VectorEnv) or callable(named):
        raise ValueError("config: env: expected a name; pass a class, function or object as rmc.train(config, env=...)")
    if env is not None and named not in ("", env):
        raise ValueError(f"config: env: expected no {named!r} beside rmc.train(config, env=...), which gives another")
    changed = dict(settings)
    if not isinstance(preset := changed.get("config"), str | PathLike | None):
        raise ValueError(f"config: config: expected a preset's or file's name, got {preset!r}")
    if isinstance(source := changed.get("init_from"), PathLike):
        changed["init_from"] = fspath(source)
    base = Config().updated_from_yaml(changed.pop("config", None))
    if env is None and "env" not in changed:
        plugins.check_named(base.env.env, preset)
    return base, base.changed(lambda settings: settings.updated(changed, "config"), preset)


def say_unused(console: Console, before: Config, after: Config) -> None:
    """Name the changed settings that have no effect."""
    unused = settings_unused(after)
    if names := [name for name in before.differing(after) if name in unused]:
        say(console, f"warning: without effect under the other settings: {', '.join(names)}")


def _branch(source: Path, run_dir: Path, reopened: Callable[[], tuple[Trainer, Saved]], observers: Observers) -> Run:
    """Continue from a checkpoint in a new folder, with the curve and the best agent so far.

    The checkpoint's run is not changed.
    """
    trainer, saved = reopened()
    with closing(trainer), RunFolder(run_dir, resuming=False) as folder:
        loop = RunLoop(trainer, folder, saved, observers)
        if (original := run_of(source)) is not None:
            folder.take_curve(original)
            copy_best(original, run_dir, trainer.frames)
        return loop.run()


def _clock(console: Console) -> TrainingClock:
    uncached = "every process does: no folder for their cache can be written; set NUMBA_CACHE_DIR to one"
    often = "they are cached, so this happens once" if pointwise.is_cached() else uncached
    return TrainingClock(lambda: say(console, f"compiling kernels; {often}"))


@contextmanager
def _restored() -> Iterator[None]:
    """Context that computes gradients, and afterwards restores torch's modes, number of threads and global generators,
    and the environments of a training around this one.

    Raises:
      ValueError: if torch's default device is not the CPU, another thread is training, or a training with several
        learners, whose callback this is.
    """
    check_main_guarded()
    if (device := torch.get_default_device()).type != "cpu":
        raise ValueError(f"torch's default device: expected cpu, got {device}; the setting device is for the training")
    if distributed.size() > 1 and not distributed.by_torchrun():
        raise ValueError("a callback of a training with several learners cannot train: they would wait for each other")
    if not _training.acquire(blocking=False):
        raise ValueError(
            "another thread of this process is training: both would draw from torch's one generator, and neither could "
            "be repeated; train in processes, as rmc-compare and rmc.sweep do"
        )
    with ExitStack() as stack:
        stack.callback(_training.release)
        stack.enter_context(registrations_kept())
        stack.enter_context(torch_threads(torch.get_num_threads()))
        stack.enter_context(torch.random.fork_rng(range(torch.cuda.device_count())))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        yield


def _take_weights(trainer: Trainer, source: str) -> None:
    """Start with the weights of a saved agent: a path, or the name of a pretrained policy."""
    saved = load_agent(pretrained.choose(source), trainer.lanes.device)
    check_spec_fits(saved.spec, trainer.agent.spec, trainer.config.env.env)
    here, there = ({**asdict(config.core), **asdict(config.agent)} for config in (trainer.config, saved.config))
    without_effect = settings_unused(saved.config) - {"predict_rewards"}  # the head has weights even if it is unused
    names = [name for name in there if there[name] != here[name] and name not in without_effect]
    other = [f"{name} {there[name]} (got {here[name]})" for name in names]
    if other:
        raise ValueError(f"--init-from {source}: its agent needs other settings: {', '.join(other)}")
    trainer.agent.load_state_dict(saved.agent.state_dict())
