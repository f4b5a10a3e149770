"""Where a run's numbers go besides TensorBoard, if the user asks for it: nothing is imported or sent otherwise.

What a user asks for is never in a file: a run that goes on is tracked if its command says so again.
"""

import os
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from rich.console import Console

from rmc_agents import plugins
from rmc_agents.config import Config
from rmc_agents.runs.checkpoint import write_atomically


class Tracker(Protocol):
    """Made from a run's folder and its settings by name, then told what happens."""

    def log(self, scalars: Mapping[str, float], frames: int) -> None:
        """Scalars by their names in TensorBoard, after so many frames; in a run that goes on, frames may come again."""

    def finish(self, scores: Mapping[str, float] | None, video: Path | None) -> None:
        """The end of the run: its final scores (None: it failed) and its video, if it has one."""


MakeTracker = Callable[[Path, dict[str, Any]], Tracker]


class Wandb:
    """Weights & Biases, of which WANDB_MODE=offline, WANDB_PROJECT and its other variables decide where things go."""

    def __init__(self, run_dir: Path, settings: dict[str, Any]) -> None:
        import wandb

        self._video = wandb.Video
        kept = run_dir / "wandb-run-id"  # a run that goes on is the same one there
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
PACKAGES = {"wandb": "wandb"}
"""What those need, as pip calls it."""


def find_tracker(name: str) -> MakeTracker:
    """What --track names: one of `TRACKERS`, or a class 'module:Class' of a module that the user named.

    Raises:
      ValueError: if there is none, or its package is not installed.
    """
    if name in TRACKERS:
        if find_spec(name) is None:
            raise ValueError(f"--track {name} needs a package that is not installed: pip install {PACKAGES[name]}")
        return TRACKERS[name]
    found = plugins.find(name)
    if found is None:
        known = ", ".join(TRACKERS)
        raise ValueError(f"--track: expected {known}, or module:Class for a tracker of your own, got {name!r}")
    return found


class Tracking:
    """A run's tracker, or none, from the run's beginning to its end. What fails in it does not end the run.

    Args:
      track: a name as `find_tracker` takes it, a class or function that makes a tracker, or None.
      run_dir: the run's folder.
      config: its settings.
      console: where it is said that the tracker failed.

    Attributes:
      summary: of the run, as in `summary.json`; to be set when there is one.

    Raises:
      ValueError: if the tracker cannot be made.
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
        from .reporting import final_scores  # with torch, which a refusal of --track does not wait for

        scores = None if error is not None else final_scores(self.summary)
        video = self.summary.get("video")
        self._attempt(lambda tracker: tracker.finish(scores, self._run_dir / video if video else None))

    def _attempt(self, act: Callable[[Tracker], None]) -> None:
        if self._tracker is None:
            return
        try:
            act(self._tracker)
        except Exception as error:
            from .reporting import say

            self._tracker = None
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            say(self._console, f"--track {self._name} failed, and the run goes on without it: {reason}")
