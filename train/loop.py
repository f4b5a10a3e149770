"""One run from its trainer to its summary: train, save, evaluate, record a video."""

import signal
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from rmc_agents.command_line import interrupted_by_stops, quoted, say, signal_of
from rmc_agents.distributions import NotFinite
from rmc_agents.envs.names import NAMESPACE
from rmc_agents.envs.processes import WorkerError
from rmc_agents.episodes import Episode
from rmc_agents.evaluate.statistics import Statistics
from rmc_agents.kernels.modes import torch_threads
from rmc_agents.losses import Metrics
from rmc_agents.runs.checkpoint import is_saved
from rmc_agents.runs.folder import SUMMARY, RunFolder, has_checkpoints, resume_command
from rmc_agents.runs.texts import keep_text

from . import distributed
from .distributed import learners
from .distributed.follower import CONTINUE, END, SAVE, lead
from .evaluating import Evaluator
from .finish import finish, only_python_opens, summarize
from .learner import Learner
from .reporting.clock import TrainingClock
from .reporting.reporter import Reporter
from .reporting.tracking import MakeTracker, Tracking
from .resuming import Saved, notes
from .stopping import StopSignals
from .trainer import TrainedAgent, Trainer


class Run(NamedTuple):
    """A finished run; also the path of its folder, for functions that take one.

    Attributes:
      path: its folder.
      summary: as in summary.json: `frames`, `seconds`, `frames_per_second`, `evaluation` and others.
      agent: in eval mode, unless the run was stopped by a signal.
      stopped_by: the signal that ended it early; it is saved and can be resumed. None: it is complete.
    """

    path: Path
    summary: dict[str, Any]
    agent: TrainedAgent
    stopped_by: signal.Signals | None = None

    def __fspath__(self) -> str:
        return str(self.path)


class Progress(NamedTuple):
    """What a callback receives after every update.

    Attributes:
      frames: environment steps so far, over all lanes.
      updates: so far; each learns from one rollout (IMPALA: `batch_rollouts`), in PPO with several optimizer steps.
      seconds: of training so far.
      metrics: of this update, by their names in TensorBoard: `losses/...`, `charts/learning_rate`.
      episodes: those that ended since the last update.
      evaluation: if there was one after this update (`eval_every`).
      agent: the agent in training: leave its weights, and its mode, as they are.
    """

    frames: int
    updates: int
    seconds: float
    metrics: dict[str, float]
    episodes: list[Episode]
    evaluation: Statistics | None = None
    agent: TrainedAgent | None = None


Callback = Callable[[Progress], bool | None]
"""Called after every update; returns True to end the training there, as if total_frames had been reached."""


class Observers(NamedTuple):
    """The observers of a run besides its own folder."""

    console: Console
    clock: TrainingClock
    callback: Callback | None = None
    track: str | MakeTracker | None = None


class RunLoop:
    """Trains until total_frames, a signal or the callback, then evaluates and records.

    Args:
      trainer: at the start of a run, or in the state of a checkpoint.
      folder: the run's folder.
      saved: the checkpoint that the run continues from; None: a new run.
      observers: see `Observers`.

    Raises:
      ValueError: if the tracker cannot be created.
    """

    def __init__(self, trainer: Trainer, folder: RunFolder, saved: Saved | None, observers: Observers) -> None:
        self.trainer, self.folder, self.saved, self.observers = trainer, folder, saved, observers
        self.tracking = Tracking(observers.track, folder.path, trainer.config, observers.console)

    def run(self) -> Run:
        """The whole run. Raises WorkerError if an environment or an actor fails; the run is saved by then."""
        trainer, folder = self.trainer, self.folder
        with self.tracking:
            self._print_header()
            keep_text(trainer.config.env, folder.path)
            with closing(trainer), learners.with_other_learners(trainer.config), StopSignals() as stop:
                lead(trainer, self.saved, folder.path)
                folder.write_config(trainer.config)  # a run whose resume cannot begin stays as it was
                if trainer.frames < trainer.train.total_frames:
                    (folder.path / SUMMARY).unlink(missing_ok=True)  # of a finished training
                seconds = self._train_or_explain(stop)
            self.tracking.summary = summary = summarize(trainer, seconds, folder.path)
            if stop.received is not None:
                self._say(f"stopped by {stop.received.name} and saved; continue with: {self._resume_command()}")
                return Run(folder.path, summary, trainer.agent, stop.received)
            return self._finish(summary)

    def _train_or_explain(self, stop: StopSignals) -> float:
        """`_train`; after a failure, prints how to continue."""
        try:
            return self._train(stop)
        except (Exception, KeyboardInterrupt) as error:
            if isinstance(error, WorkerError) and self._is_saved():
                saved = f"saved at {self.trainer.frames:,} frames; once the cause is removed, continue"
                self._say(f"{saved} with: {self._resume_command()}")
            elif isinstance(error, NotFinite) and has_checkpoints(self.folder.path):
                self._say(
                    "a resume would diverge again, unless custom parts have changed; a new run with other settings can "
                    f"begin with this one's weights: --init-from {quoted(self.folder.path)}"
                )
            elif has_checkpoints(self.folder.path):
                self._say(
                    "once the cause is removed, continue from the newest checkpoint with: " + self._resume_command()
                )
            raise

    def _train(self, stop: StopSignals) -> float:
        """The training loop; returns the seconds it took, earlier parts of the run included."""
        trainer, path, save_every = self.trainer, self.folder.path, self.trainer.config.run.save_every
        earlier = saved_at = self.saved.seconds if self.saved else 0.0
        evaluator, wants_end = Evaluator(trainer, path), False
        with Reporter(path, trainer, earlier, self.observers.console, self.observers.clock, self.tracking) as reporter:
            while trainer.frames < trainer.train.total_frames and not wants_end and not stop.agreed():
                metrics = self._update(reporter)
                wants_end = self._report(metrics, evaluator, reporter)
                is_due = trainer.updates == 1 or reporter.seconds - saved_at >= save_every  # 1: resumable from now on
                if distributed.highest(END if wants_end else SAVE if is_due else CONTINUE) == SAVE:
                    trainer.save(path, reporter.seconds)
                    saved_at = reporter.seconds
            try:
                reporter.finish()
            finally:  # printing may fail: Ctrl-C also ends `| tee`
                trainer.save(path, reporter.seconds)
            return reporter.seconds

    def _update(self, reporter: Reporter) -> Metrics:
        """One update. If an environment or an actor fails, the agent of the last complete update is saved.

        A checkpoint of that update is kept: it has the environment's state too, so that its resume is exact.
        """
        try:
            return self.trainer.update()
        except WorkerError:
            if not self._is_saved():
                self.trainer.save(self.folder.path, reporter.seconds)
            elif isinstance(self.trainer, Learner):
                self.trainer.get_state()  # collective: the other learners take part in saving
            raise

    def _is_saved(self) -> bool:
        """Whether there is a checkpoint of the last complete update."""
        return is_saved(self.folder.path, self.trainer.updates)

    def _report(self, metrics: Metrics, evaluator: Evaluator, reporter: Reporter) -> bool:
        """Report an update, evaluate if that is due, and call back; returns whether the callback ends the training.

        If one of these raises, all learners end and the run is saved.
        """
        try:
            episodes = distributed.gather_episodes(self.trainer.lanes.take_episodes())
            reporter.update(metrics, episodes)
            evaluation = self._evaluate(evaluator, reporter) if evaluator.is_due else None
            return self._call_back(metrics, episodes, evaluation, reporter.seconds)
        except distributed.LearnerLost:
            raise
        except (Exception, SystemExit, KeyboardInterrupt):  # SystemExit: rich's, when its output is closed
            distributed.highest(END)
            self.trainer.save(self.folder.path, reporter.seconds)
            raise

    def _evaluate(self, evaluator: Evaluator, reporter: Reporter) -> Statistics:
        """An evaluation between two updates; its time is not training time."""
        with self.observers.clock.paused():
            reporter.evaluating()
            evaluation = evaluator.evaluate()
            reporter.evaluated(evaluation)
        return evaluation.statistics

    def _call_back(
        self, metrics: Metrics, episodes: list[Episode], evaluation: Statistics | None, seconds: float
    ) -> bool:
        """Whether the callback, if any, ends the training."""
        if self.observers.callback is None:
            return False
        scalars = {name: value.item() for name, value in metrics.items()}
        progress = Progress(
            self.trainer.frames, self.trainer.updates, seconds, scalars, episodes, evaluation, self.trainer.agent
        )
        return bool(self.observers.callback(progress))

    def _finish(self, summary: dict[str, Any]) -> Run:
        """Evaluation and video of a completed training."""
        path, agent = self.folder.path, self.trainer.agent
        try:
            with interrupted_by_stops(), torch_threads(1):  # see docs/decisions/threads.md
                if not (path / SUMMARY).exists():  # an earlier evaluation stays until this one is done
                    self.folder.write_summary(summary)
                finish(self.trainer, self.folder, summary, self.observers.console)
        except KeyboardInterrupt as interrupt:
            self._say(f"interrupted, but the training is complete and saved; {self._how_to_evaluate()}")
            return Run(path, summary, agent, signal_of(interrupt))
        except WorkerError:
            self._say(f"the training is complete and saved; {self._how_to_evaluate()}")
            raise
        return Run(path, summary, agent)

    def _how_to_evaluate(self) -> str:
        """The command for the evaluation that was interrupted."""
        if self.trainer.frames < self.trainer.train.total_frames:  # the callback ended it: resuming would train on
            return f"evaluate with: rmc.evaluate(rmc.load({str(self.folder.path)!r}))"
        return f"evaluate and record with: {self._resume_command()}"

    def _resume_command(self) -> str:
        if self.trainer.config.env.env.startswith(NAMESPACE):
            return f"rmc.resume({str(self.folder.path)!r}, env=...)"
        if only_python_opens(self.trainer.config, to_train=True):
            return f"rmc.resume({str(self.folder.path)!r}), after registering its parts"
        return resume_command(self.folder.path, self.trainer.config)

    def _print_header(self) -> None:
        trainer, folder, saved = self.trainer, self.folder, self.saved
        init_from = trainer.config.run.init_from
        lines = trainer.describe()
        lines.append(f"run folder: {folder.path}   watch it learn: tensorboard --logdir {quoted(folder.path)}")
        if saved is not None:
            lines += notes(trainer, saved, folder)
        else:
            if init_from is not None:
                lines.append(f"starts with the weights of {init_from}")
            if (preset := trainer.config.suggested_preset()) is not None:
                env = trainer.config.env.env
                lines.append(f"the settings for learning are Mini PacMan's; for {env}, add --config {preset}")
            elif trainer.config.leaves_learning():
                lines.append(
                    "the settings for learning are Mini PacMan's; for another task see docs/guides/hyperparameters.md"
                )
        lines += learners.notes(trainer.config, trainer.lanes.device)
        if trainer.frames >= (total := trainer.train.total_frames):
            lines.append(
                f"nothing to train: {trainer.frames:,} frames are trained, and total_frames is {total:,}; to train "
                "longer, resume with a larger total_frames"
            )
        for line in lines:
            self._say(line)

    def _say(self, text: str) -> None:
        say(self.observers.console, text)
