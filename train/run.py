"""One run from its settings to its summary."""

import signal
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from rmc_agents import pretrained
from rmc_agents.collect import Episode
from rmc_agents.command_line import interrupted_by_stops, quoted
from rmc_agents.config import Config
from rmc_agents.envs.names import NAMESPACE
from rmc_agents.envs.processes import WorkerError
from rmc_agents.evaluate.episodes import check_fits
from rmc_agents.evaluate.statistics import Statistics
from rmc_agents.runs import checkpoint
from rmc_agents.runs.best import take_best
from rmc_agents.runs.folder import RunFolder, branch_path, default_path, run_of
from rmc_agents.runs.saved import load_agent

from . import distributed, learners
from .clock import TrainingClock
from .evaluating import Evaluator
from .finish import env_of, extra_flags, finish, summarize
from .follower import END, GO_ON, SAVE, lead
from .own_env import OwnEnv, settle_env
from .reporting import Reporter, say
from .resuming import Saved, new_trainer, notes, reopen
from .stopping import StopSignals
from .tracking import MakeTracker, Tracking
from .trainer import TrainedAgent, Trainer


class Run(NamedTuple):
    """A finished run."""

    path: Path  # its folder
    summary: dict[str, Any]  # as in summary.json: frames, seconds, evaluation, ...
    agent: TrainedAgent  # in eval mode, unless the run was stopped by a signal
    stopped_by: signal.Signals | None = None  # what ended it before it was done; it is saved and can be resumed


class Progress(NamedTuple):
    """What a callback is told after every update."""

    frames: int  # environment steps so far, over all lanes
    updates: int
    seconds: float  # of training so far
    metrics: dict[str, float]  # scalars by their names in TensorBoard
    episodes: list[Episode]  # that ended since the last update
    evaluation: Statistics | None = None  # if there was one after this update (eval_every)


Callback = Callable[[Progress], bool | None]
"""Called after every update; returns True to end the training there, as if total_frames had been reached."""


def train(
    config: Config | Mapping[str, Any],
    *,
    env: OwnEnv | None = None,
    run_dir: Path | str | None = None,
    callback: Callback | None = None,
    console: Console | None = None,
    track: str | MakeTracker | None = None,
) -> Run:
    """Train an agent, evaluate it and record a video, as rmc-train does.

        run = train({"core": "lstm", "total_frames": 500_000}, env=MyEnv, callback=lambda p: p.seconds > 60)

    SIGINT (Ctrl-C), SIGTERM and SIGHUP end the training between two updates: the run is saved and returned, with
    `stopped_by` set.

    Args:
      config: all settings, or those that differ from the defaults, by name.
      env: an environment of your own, in place of that of the settings: a class or function, called once for each lane
        (once for all lanes if it takes `num_envs`); an environment, of which each lane is a copy; or a vector
        environment, which is stepped as it is, and not evaluated or filmed at the end.
      run_dir: the run's folder, which must hold no run; None: a new one under runs/.
      callback: called after every update with the run's `Progress`; returns True to end the training.
      console: where progress is shown; None: standard output; Console(quiet=True): nowhere.
      track: "wandb", or what makes a `Tracker` of the run's folder and settings: it is told of every point.

    Raises:
      ValueError: for settings, an environment or a folder that cannot be.
      EnvError: if the environment's own code fails; the run is saved.
    """
    if not isinstance(config, Config):
        config = Config().updated(dict(config), "config")
    lanes, console = None, console or Console()
    with _clock(console) as clock:
        if env is not None:
            config, lanes = settle_env(config, env)
        trainer = new_trainer(config, lanes)
        if config.run.init_from is not None:
            _take_weights(trainer, config.run.init_from)
        path = default_path(trainer.config) if run_dir is None else Path(run_dir)
        with RunFolder(path, resuming=False) as folder, Tracking(track, path, trainer.config, console) as tracking:
            return _run(trainer, folder, None, callback, console, clock, tracking)


def resume(
    run: Path | str,
    settings: Mapping[str, Any] | Callable[[Config], Config] | None = None,
    *,
    env: OwnEnv | None = None,
    run_dir: Path | str | None = None,
    trust: bool = False,
    callback: Callback | None = None,
    console: Console | None = None,
    track: str | MakeTracker | None = None,
) -> Run:
    """Continue a run from its newest valid checkpoint, as rmc-train --resume does.

        run = resume("runs/mine", {"total_frames": 1_000_000}, env=MyEnv)

    The result equals that of an uninterrupted run to the bit if the environment can save its state: vector
    environments by `get_state()` and `set_state(state)`, others by the same methods for one lane (`envs.saving`).
    Other environments start new episodes.

    Args:
      run: the run's folder; or one of its checkpoints, from which a copy of the run continues in another folder.
      settings: the settings to change, by name, such as total_frames; or a function from the saved settings to the
        wanted ones. Most settings cannot be changed.
      env: the run's environment, if it was given to `train` in Python.
      run_dir: of a copy, its folder; None: beside the run.
      trust: open checkpoints of Stable-Baselines3's algorithms, which may run code.
      callback, console, track: as of `train`.

    Raises:
      CheckpointError: if there is no valid checkpoint.
      ValueError: for a setting that cannot be changed, and as `train` does.
      EnvError: if the environment's own code fails; the run is saved.
    """
    source, console = Path(run), console or Console()

    def changed(saved: Config) -> Config:
        return settings(saved) if callable(settings) else saved.updated(dict(settings or {}), "settings")

    if source.is_file():
        copy = branch_path(source) if run_dir is None else Path(run_dir)
        return _branch(source, copy, changed, env, trust, callback, console, track)
    if run_dir is not None:
        raise ValueError("run_dir: expected none, since a run continues in its own folder; a checkpoint takes one")
    with RunFolder(source, resuming=True) as folder, _clock(console) as clock:
        trainer, saved = reopen(source, changed, trust, env)
        for path in checkpoint.set_aside_newer(saved.path):
            say(console, f"set aside, because it could not be opened: {path}")
        with Tracking(track, source, trainer.config, console) as tracking:
            return _run(trainer, folder, saved, callback, console, clock, tracking)


def _branch(
    source: Path,
    run_dir: Path,
    settings: Callable[[Config], Config],
    env: OwnEnv | None,
    trust: bool,
    callback: Callback | None,
    console: Console,
    track: str | MakeTracker | None,
) -> Run:
    """Continue from a checkpoint in a new folder, with the curve and the best agent so far.

    The checkpoint's own run stays as it is.
    """
    with _clock(console) as clock:
        trainer, saved = reopen(source, settings, trust, env)
        with (
            RunFolder(run_dir, resuming=False) as folder,
            Tracking(track, run_dir, trainer.config, console) as tracking,
        ):
            folder.take_curve(source)
            if (original := run_of(source)) is not None:
                take_best(original, run_dir, trainer.frames)
            return _run(trainer, folder, saved, callback, console, clock, tracking)


def _clock(console: Console) -> TrainingClock:
    return TrainingClock(lambda: say(console, "compiling kernels, once: later runs find them compiled"))


def _take_weights(trainer: Trainer, source: str) -> None:
    """Begin with the weights of a saved agent: a path, or a pretrained policy's name where there is no such path."""
    path = Path(source)
    pretrained.check(source, "--init-from")
    saved = load_agent(path if path.exists() else pretrained.find(source), trainer.lanes.device)
    check_fits(saved.spec, env_of(trainer))
    here, there = ({**asdict(config.core), **asdict(config.agent)} for config in (trainer.config, saved.config))
    other = [f"{name} {there[name]} (got {here[name]})" for name in there if there[name] != here[name]]
    if other:
        raise ValueError(f"--init-from {source}: its agent needs other settings: {', '.join(other)}")
    trainer.take_weights(saved.agent.state_dict())


def _run(
    trainer: Trainer,
    folder: RunFolder,
    saved: Saved | None,
    callback: Callback | None,
    console: Console,
    clock: TrainingClock,
    tracking: Tracking,
) -> Run:
    """Train until total_frames, a signal or the callback, save, evaluate, record."""
    _print_header(trainer, folder, saved, console)
    folder.write_config(trainer.config)
    if trainer.frames < trainer.train.total_frames:
        folder.drop_summary()
    resume_command = _resume_command(trainer, folder)
    with closing(trainer), learners.beside(trainer.config), StopSignals() as stop:
        lead(trainer, saved, folder.path)
        try:
            seconds = _train(trainer, folder, saved.seconds if saved else 0.0, stop, callback, console, clock, tracking)
        except WorkerError:
            say(
                console,
                f"an environment or an actor failed at {trainer.frames:,} frames; saved; go on with: {resume_command}",
            )
            raise
        except distributed.LearnerLost:
            say(console, f"go on from the newest checkpoint with: {resume_command}")
            raise
    tracking.summary = summary = summarize(trainer, seconds, folder.path)
    if stop.received is not None:
        say(console, f"stopped by {stop.received.name} and saved; go on with: {resume_command}")
        return Run(folder.path, summary, trainer.agent, stop.received)
    try:
        with interrupted_by_stops():
            folder.write_summary(summary)
            finish(trainer, folder, summary, console)
    except KeyboardInterrupt:
        say(console, f"interrupted, but the training is complete and saved; evaluate and record with: {resume_command}")
        return Run(folder.path, summary, trainer.agent, signal.SIGINT)
    except WorkerError:
        say(console, f"the training is complete and saved; evaluate and record with: {resume_command}")
        raise
    return Run(folder.path, summary, trainer.agent)


def _train(
    trainer: Trainer,
    folder: RunFolder,
    seconds: float,
    stop: StopSignals,
    callback: Callback | None,
    console: Console,
    clock: TrainingClock,
    tracking: Tracking,
) -> float:
    """The training loop; returns the seconds it took, earlier parts of the run included."""
    settings = trainer.config.run
    saved_at = seconds
    wants_end = False
    evaluator = Evaluator(trainer, folder.path)
    with Reporter(folder.path, trainer, seconds, settings.log_every, console, clock, tracking) as reporter:
        while trainer.frames < trainer.train.total_frames and not wants_end and not stop.agreed():
            try:
                metrics = trainer.update()
            except WorkerError:  # in a rollout, of which nothing is learned yet
                trainer.save(folder.path, reporter.seconds)
                raise
            try:
                episodes = reporter.update(metrics)
                evaluation = _evaluate(evaluator, reporter, clock) if evaluator.is_due else None
            except (WorkerError, SystemExit):  # in the evaluation; by rich: nobody reads on
                distributed.highest(END)
                trainer.save(folder.path, reporter.seconds)
                raise
            if callback is not None:
                scalars = {name: value.item() for name, value in metrics.items()}
                told = Progress(trainer.frames, trainer.updates, reporter.seconds, scalars, episodes, evaluation)
                wants_end = bool(callback(told))
            is_due = trainer.updates == 1 or reporter.seconds - saved_at >= settings.save_every
            order = distributed.highest(END if wants_end else SAVE if is_due else GO_ON)
            if order == SAVE:  # the first at once: from then on the run can be resumed
                trainer.save(folder.path, reporter.seconds)
                saved_at = reporter.seconds
        trainer.save(folder.path, reporter.seconds)
        return reporter.seconds


def _evaluate(evaluator: Evaluator, reporter: Reporter, clock: TrainingClock) -> Statistics:
    """An evaluation between two updates, which is no training time."""
    with clock.standing_still():
        reporter.evaluating()
        evaluation = evaluator.evaluate()
        reporter.evaluated(evaluation)
    return evaluation.statistics


def _resume_command(trainer: Trainer, folder: RunFolder) -> str:
    if trainer.config.env.env.startswith(NAMESPACE):
        return f"rmc.resume({str(folder.path)!r}, env=...)"
    return f"rmc-train --resume {quoted(folder.path)}{extra_flags(trainer)}"


def _print_header(trainer: Trainer, folder: RunFolder, saved: Saved | None, console: Console) -> None:
    init_from = trainer.config.run.init_from
    lines = trainer.describe()
    lines.append(f"run folder: {folder.path}   watch it learn: tensorboard --logdir {quoted(folder.path)}")
    if saved is None and init_from is not None:
        lines.append(f"begins with the weights of {init_from}")
    if saved is not None:
        lines += notes(trainer, saved, folder)
    lines += learners.notes(trainer.config, trainer.lanes.device)
    if trainer.frames >= (total := trainer.train.total_frames):
        lines.append(f"nothing to train: {trainer.frames:,} frames are trained, and total_frames is {total:,}")
    for line in lines:
        say(console, line)
