"""Progress of a run: a live line on terminals, plain lines elsewhere, and TensorBoard."""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from rmc_agents.command_line import say
from rmc_agents.config import Config
from rmc_agents.config.stages import stages_of
from rmc_agents.episodes import Episode
from rmc_agents.formatting import decimals, with_interval
from rmc_agents.losses import Metrics
from rmc_agents.losses.supervised import OF_ANSWERS
from rmc_agents.runs.folder import TENSORBOARD, TIME_TAG
from rmc_agents.train.evaluating import EvaluationPoint
from rmc_agents.train.trainer import Trainer

from .tracking import Tracking, final_scores

CENTURY = 100 * 365 * 24 * 3600  # seconds; an ETA beyond is not shown
RECENT = 200  # episodes in the displayed mean return
SHOWN = {
    "curriculum/stage": "stage {:.0f}",
    "charts/accuracy": "accuracy {:.1%}",
    "losses/cross_entropy": "loss {:.3f}",
    "losses/loss": "own loss {:.3f}",
    "losses/entropy": "entropy {:.2f}",
}
"""Metrics in a progress line, and their format."""
WARNINGS = logging.getLogger("rmc_agents")  # problems that were handled, such as a replaced actor


class Reporter:
    """Shows and records a run's progress.

    Args:
      run_dir: TensorBoard events go to `run_dir/tensorboard`; points from earlier parts of the run that are beyond
        `trainer.frames` are dropped.
      trainer: the trainer to report on.
      seconds: training time of the run's earlier parts.
      console: where to print.
      clock: returns the time in seconds.
      tracking: also receives every point.
    """

    def __init__(
        self,
        run_dir: Path,
        trainer: Trainer,
        seconds: float,
        console: Console,
        clock: Callable[[], float],
        tracking: Tracking,
    ) -> None:
        self.trainer, self.console, self._clock, self._tracking = trainer, console, clock, tracking
        self.total_frames = trainer.train.total_frames
        folder = str(run_dir / TENSORBOARD)
        with _writing(folder):
            self._writer = SummaryWriter(folder, purge_step=trainer.frames + 1)
        self._diagnostics = trainer.diagnostics(self._writer)
        self._warnings = _ConsoleHandler(console)
        self._recent: deque[Episode] = deque(maxlen=RECENT)
        self._since_point: list[Episode] = []
        self._reports_success = False
        self._stage = trainer.stage
        self._metrics: Metrics = {}
        self._earlier, self._began = seconds, clock()
        self._point = (self._began, trainer.frames)
        self._progress = Progress(
            TextColumn("{task.completed:,.0f}/{task.total:,.0f} frames"),
            BarColumn(bar_width=8),
            TextColumn("{task.fields[speed]}/s  ETA", table_column=Column(min_width=12, no_wrap=True)),
            TimeRemainingColumn(table_column=Column(min_width=7, no_wrap=True)),
            TextColumn("{task.fields[headline]}{task.fields[evaluation]}"),  # last: a narrow terminal cuts it
            console=console,
            disable=not console.is_interactive,
            get_time=clock,
        )
        self._task = self._progress.add_task(
            "", total=self.total_frames, completed=trainer.frames, speed="-", headline="return -", evaluation=""
        )

    def __enter__(self) -> "Reporter":
        WARNINGS.addHandler(self._warnings)
        self._excepthook, threading.excepthook = threading.excepthook, self._on_thread_error
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()
        WARNINGS.removeHandler(self._warnings)
        try:
            with _writing(self._writer.log_dir):
                self._writer.close()
        finally:
            threading.excepthook = self._excepthook

    def _on_thread_error(self, error: threading.ExceptHookArgs) -> None:
        """No traceback if TensorBoard's thread cannot write: its next call raises the same error here."""
        if type(error.thread).__name__ != "_AsyncWriterThread" or not isinstance(error.exc_value, OSError):
            self._excepthook(error)

    @property
    def seconds(self) -> float:
        """Training time so far, earlier parts of the run included."""
        return self._earlier + self._clock() - self._began

    def update(self, metrics: Metrics, episodes: list[Episode]) -> None:
        """Call this after every update, with the episodes that ended in it."""
        self._recent.extend(episodes)
        self._since_point.extend(episodes)
        now = self._clock()
        self._progress.update(self._task, completed=self.trainer.frames)
        self._report_stage()
        # After an update that asked for nothing, the answers of the newest one that did remain.
        self._metrics = metrics | {
            name: torch.where(metrics[name].isnan(), self._metrics[name], metrics[name])
            for name in OF_ANSWERS
            if name in metrics and name in self._metrics
        }
        finished = self.trainer.frames >= self.total_frames
        if is_due := now - self._point[0] >= self.trainer.config.run.log_every or finished:
            self._write_point(now)
        if self._diagnostics is not None:
            if is_due:
                with _writing(self._writer.log_dir):
                    self._diagnostics.write(self.trainer.frames)
                    self._writer.flush()
            self._diagnostics.remember_parameters()

    def finish(self) -> None:
        """Call this after the last update: the curve ends there, whatever ended the training."""
        if self.trainer.frames > self._point[1]:
            self._write_point(self._clock())

    def _report_stage(self) -> None:
        """A line where a stage of a curriculum begins."""
        stage, stages = self.trainer.stage, stages_of(self.trainer.config.env.curriculum)
        if stage != self._stage:
            what = str(stages[stage - 1]) if stage <= len(stages) else "the environment itself"
            say(self.console, f"stage {stage} of {len(stages) + 1} begins at {self.trainer.frames:,} frames: {what}")
        self._stage = stage

    def evaluating(self) -> None:
        """Call this before an evaluation."""
        self._progress.update(self._task, evaluation="  evaluating")

    def evaluated(self, evaluation: EvaluationPoint) -> None:
        """Call this after an evaluation."""
        statistics = evaluation.statistics
        scalars = {TIME_TAG: self.seconds, "evaluation/return": statistics.mean_return}
        if statistics.ci95 is not None:
            scalars |= {"evaluation/low": statistics.ci95[0], "evaluation/high": statistics.ci95[1]}
        for name in ("success_rate", "accuracy", "bits"):
            if (value := getattr(statistics, name)) is not None:
                scalars[f"evaluation/{name}"] = value
        self._add(scalars, evaluation.frames)
        score = (
            f"{statistics.mean_return:.{decimals(statistics.mean_return)}f}"
            if statistics.accuracy is None
            else f"{statistics.accuracy:.1%}"
        )
        self._progress.update(self._task, evaluation=f"  evaluation {score}")
        if not self.console.is_interactive:
            say(self.console, str(evaluation))

    def _write_point(self, now: float) -> None:
        frames, metrics = self.trainer.frames, self._metrics
        began, frames_then = self._point
        speed = (frames - frames_then) / (now - began)
        self._point = (now, frames)
        scalars = {"charts/SPS": speed, TIME_TAG: self._earlier + now - self._began}
        if self._since_point:
            scalars["charts/episodic_return"] = float(np.mean([e.episode_return for e in self._since_point]))
            scalars["charts/episodic_length"] = float(np.mean([e.length for e in self._since_point]))
            self._reports_success |= any(e.success is not None for e in self._since_point)
            if self._reports_success:  # some environments report only successes: the others are failures
                scalars["charts/success_rate"] = float(np.mean([bool(e.success) for e in self._since_point]))
            self._since_point = []
        self._add(scalars | {name: value.item() for name, value in metrics.items()}, frames)
        shown = with_interval(float(np.mean([e.episode_return for e in self._recent])), None) if self._recent else "-"
        extra = "  ".join(text.format(metrics[name].item()) for name, text in SHOWN.items() if name in metrics)
        headline = extra if "charts/accuracy" in metrics else f"return {shown}"
        self._progress.update(self._task, speed=f"{speed:,.0f}", headline=headline)
        if not self.console.is_interactive:
            left = (self.total_frames - frames) / speed
            eta = timedelta(seconds=round(left)) if 0 < left < CENTURY else "-"
            done = f"frames {frames:,} of {self.total_frames:,}  {speed:,.0f} frames/s"
            say(self.console, "  ".join(filter(None, [done, f"return {shown}", extra, f"ETA {eta}"])))

    def _add(self, scalars: dict[str, float], frames: int) -> None:
        with _writing(self._writer.log_dir):
            for name, value in scalars.items():
                self._writer.add_scalar(name, value, frames)
            self._writer.flush()
        self._tracking.log(scalars, frames)


@contextmanager
def _writing(folder: str) -> Iterator[None]:
    """Context that names the folder in errors of TensorBoard's thread, which may name no file."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise OSError(f"{folder}: {error}") from error
        raise OSError(error.errno, error.strerror, folder) from error


def write_hparams(run_dir: Path, config: Config, summary: Mapping[str, Any]) -> None:
    """Write settings and final scores to the run's events, for TensorBoard's HPARAMS tab.

    `SummaryWriter.add_hparams` would add a subfolder, which TensorBoard shows as another run.
    """
    settings = {
        name: value if isinstance(value, bool | int | float) else str(value).encode(errors="replace").decode()
        for name, value in config.to_mapping().items()
    }
    scores = final_scores(summary)
    folder = str(run_dir / TENSORBOARD)
    with _writing(folder), SummaryWriter(folder) as writer:
        for part in hparams(settings, scores):
            writer.file_writer.add_summary(part)
        for name, score in scores.items():
            writer.add_scalar(name, score, summary["frames"])


class _ConsoleHandler(logging.Handler):
    """Prints log records above the live line, one line each, whatever the width of the console."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        say(self._console, self.format(record))
