"""Experiment trackers besides TensorBoard: nothing is imported or sent without --track.

The choice is never saved: a resumed run is tracked only if its command says so again.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from rich.console import Console

from rmc_agents import plugins
from rmc_agents.command_line import say
from rmc_agents.config import Config
from rmc_agents.files import write_atomically
from rmc_agents.runs.folder import WANDB_ID


class Tracker(Protocol):
    """Created from a run's folder and its settings by name; receives metrics and the final scores."""

    def log(self, scalars: Mapping[str, float], frames: int) -> None:
        """Log scalars by their TensorBoard names; in a resumed run, frames may repeat."""

    def finish(self, scores: Mapping[str, float] | None, video: Path | None) -> None:
        """End the run, with its final scores (None: it failed) and its video, if any."""


MakeTracker = Callable[[Path, dict[str, Any]], Tracker]


class Wandb:
    """Weights & Biases, configured by its environment variables, such as WANDB_MODE=offline and WANDB_PROJECT."""

    def __init__(self, run_dir: Path, settings: dict[str, Any]) -> None:
        import wandb

        self._video = wandb.Video
        kept = run_dir / WANDB_ID  # a resumed run continues there
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "rmc-agents"),
            name=run_dir.name,
            id=kept.read_text() if kept.is_file() else None,
            resume="allow",
            dir=str(run_dir),
            config=settings,
        )
        write_atomically(kept, self._run.id.encode())
        self._run.define_metric("frames")
        self._run.define_metric("*", step_metric="frames")

    def log(self, scalars: Mapping[str, float], frames: int) -> None:
        """As `Tracker.log`."""
        self._run.log({**scalars, "frames": frames})

    def finish(self, scores: Mapping[str, float] | None, video: Path | None) -> None:
        """As `Tracker.finish`."""
        if video is not None:
            self._run.log({"video": self._video(str(video), format=video.suffix[1:])})
        self._run.summary.update(dict(scores or {}))
        self._run.finish(exit_code=int(scores is None))


TRACKERS: dict[str, MakeTracker] = {"wandb": Wandb}
"""By name, which is that of the pip package too."""


def find_tracker(name: str) -> MakeTracker:
    """The tracker that --track or `rmc.train(track=...)` names: one of `TRACKERS`, or 'module:Class', whose module is
    imported.

    Raises:
      ValueError: if there is none, or its package is not installed.
    """
    if name in TRACKERS:
        if not plugins.is_installed(name):
            raise ValueError(f"--track {name} needs a package that is not installed: pip install {name}")
        return TRACKERS[name]
    if ":" in name:
        plugins.add([], name)
    found = plugins.find(name)
    if found is None:
        known = ", ".join(TRACKERS)
        raise ValueError(f"--track: expected {known}, or module:Class for a custom tracker, got {name!r}")
    return found


def final_scores(summary: Mapping[str, Any]) -> dict[str, float]:
    """The scores of a run's summary by which runs are compared."""
    evaluation, best = summary.get("evaluation") or {}, summary.get("best") or {}
    scores = {
        "final/return": evaluation.get("mean_return"),
        "final/success_rate": evaluation.get("success_rate"),
        "final/accuracy": evaluation.get("accuracy"),
        "final/best_return": best.get("mean_return"),
        "final/SPS": summary.get("frames_per_second"),
    }
    return {name: float(score) for name, score in scores.items() if score is not None}


class Tracking:
    """A run's tracker, or none, from start to end. Its failures do not end the run.

    Args:
      track: a name for `find_tracker`, a class or function that creates a tracker, or None.
      run_dir: the run's folder.
      config: its settings.
      console: for the message that the tracker failed.

    Attributes:
      summary: the run's, as in `summary.json`; set by the caller.

    Raises:
      ValueError: if the tracker cannot be created.
    """

    def __init__(self, track: str | MakeTracker | None, run_dir: Path, config: Config, console: Console) -> None:
        self.summary: dict[str, Any] = {}
        self._run_dir, self._console = run_dir, console
        self._name = track if isinstance(track, str) else getattr(track, "__name__", "tracker")
        self._tracker: Tracker | None = None
        if track is None:
            return
        make = find_tracker(track) if isinstance(track, str) else track
        try:
            self._tracker = make(run_dir, config.to_mapping())
        except Exception as error:
            raise ValueError(f"--track {self._name}: {type(error).__name__}: {error}") from error

    def log(self, scalars: Mapping[str, float], frames: int) -> None:
        """As `Tracker.log`."""
        self._attempt(lambda tracker: tracker.log(scalars, frames))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        scores = None if error is not None else final_scores(self.summary)
        video = self.summary.get("video")
        self._attempt(lambda tracker: tracker.finish(scores, self._run_dir / video if video else None))

    def _attempt(self, act: Callable[[Tracker], None]) -> None:
        if self._tracker is None:
            return
        try:
            act(self._tracker)
        except Exception as error:
            self._tracker = None
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            say(self._console, f"--track {self._name} failed, and the run continues without it: {reason}")
