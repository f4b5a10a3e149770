"""Learning curves: read from TensorBoard events, smoothed, and aggregated over seeds."""

import logging
import warnings
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rmc_agents.runs.folder import TENSORBOARD, TIME_TAG

MAX_POINTS = 200  # of a curve in a figure or file
SMOOTH = 5  # points in the default moving average
GRID_POINTS = 400
RESAMPLES = 2_000
SEEDS_FOR_BAND = 5  # of fewer, a bootstrap's 95 % interval holds the mean far less often (3 seeds: three times in four)


class Curve(NamedTuple):
    """The scores of one run during training."""

    frames: np.ndarray  # [N] ascending
    values: np.ndarray  # [N], of one of `METRICS`
    seconds: np.ndarray  # [N] of training so far


class Quantity(NamedTuple):
    """A quantity on the x axis."""

    label: str
    field: str  # of `Curve`
    unit: float  # divides the field's values


QUANTITIES = {
    "frames": Quantity("frames", "frames", 1.0),
    "minutes": Quantity("minutes of training", "seconds", 60.0),
}


class Metric(NamedTuple):
    """A score on the y axis."""

    label: str
    tag: str  # in TensorBoard


METRICS = {
    "return": Metric("mean episode return", "charts/episodic_return"),
    "success": Metric("success rate", "charts/success_rate"),
    "accuracy": Metric("accuracy", "charts/accuracy"),
    "evaluation": Metric("mean return of evaluations", "evaluation/return"),
}


def read_curve(run: str | PathLike[str], metric: str = "return", is_optional: bool = False) -> Curve:
    """The mean over the episodes that ended between two points, against frames and seconds of training.

    The accuracy is that of single updates.

    Args:
      run: its folder.
      metric: one of `METRICS`.
      is_optional: a folder with events, but none of this metric, has a curve without points.

    Raises:
      ValueError: if the folder holds no such events.
    """
    run = Path(run)  # for messages: the result of `rmc.train` is a path too
    folder = run / TENSORBOARD
    files = list(folder.glob("*tfevents*"))
    if not files or not all(path.is_file() for path in files):  # reading a pipe would never end
        raise ValueError(f"{run} holds no TensorBoard events (expected files in {folder}): is it the folder of a run?")
    from google.protobuf.message import DecodeError
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})  # 0: all of them
    logger = logging.getLogger("tensorboard")
    level = logger.level
    logger.setLevel(logging.ERROR)  # a copy of a run from a checkpoint drops the points after that, as it should
    try:
        events.Reload()
    except (DecodeError, OverflowError) as error:
        raise ValueError(f"{run}: its TensorBoard events are damaged: {error}") from error
    finally:
        logger.setLevel(level)
    tags, known = (METRICS[metric].tag, TIME_TAG), set(events.Tags()["scalars"])
    missing = set(tags) - known
    if is_optional and missing == {METRICS[metric].tag}:
        return Curve(*(np.empty(0) for _ in Curve._fields))
    if missing:
        has = ", ".join(name for name, each in METRICS.items() if each.tag in known) or "none"
        absent = " and no ".join(sorted(missing))
        how = "; rmc-train --eval-every N makes evaluations" if metric == "evaluation" else ""
        raise ValueError(f"{run}: its TensorBoard events have no {absent}; metrics that it has: {has}{how}")
    points, times = (_by_frames(events.Scalars(tag)) for tag in tags)
    points = {step: value for step, value in points.items() if np.isfinite(value) and step in times}  # NaN: not asked
    if not points:
        raise ValueError(f"{run}: its TensorBoard events have only NaN as {METRICS[metric].tag}")
    frames = np.array(list(points))
    seconds = np.array([times[step] for step in points])  # not wall time, which includes a resumed run's pauses
    return Curve(frames, np.array(list(points.values())), seconds)


def at_frames(curve: Curve, frames: np.ndarray) -> np.ndarray:
    """The curve's values at these frames, interpolated; 0 before its first: some environments report only successes."""
    return np.interp(frames, curve.frames, curve.values, left=0.0) if len(curve.frames) else np.zeros(len(frames))


def _by_frames(events: Sequence[Any]) -> dict[int, float]:
    """Values by frames, ascending; the latest one for equal frames."""
    values = {event.step: event.value for event in events}
    return {frames: values[frames] for frames in sorted(values)}


def thinned(curve: Curve) -> Curve:
    """The curve with at most MAX_POINTS points: neighbours are averaged, at the position of the last one."""
    bins = np.array_split(np.arange(len(curve.frames)), min(len(curve.frames), MAX_POINTS))
    last = [group[-1] for group in bins]
    return Curve(curve.frames[last], np.array([curve.values[group].mean() for group in bins]), curve.seconds[last])


def smoothed(curve: Curve, points: int = SMOOTH) -> Curve:
    """A centred moving average over `points` points, but at most a quarter of the curve's; fewer at both ends."""
    points = min(points, len(curve.values) // 4)
    if points <= 1:
        return curve
    before, after = points // 2, (points - 1) // 2
    sums = np.concatenate([[0.0], np.cumsum(curve.values)])
    index = np.arange(len(curve.values))
    first, last = np.maximum(index - before, 0), np.minimum(index + after + 1, len(index))
    return curve._replace(values=(sums[last] - sums[first]) / (last - first))


def smoothing(points: int) -> str:
    """A description of `smoothed`."""
    return "not smoothed" if points == 1 else f"averaged over up to {points} neighbouring points"


def on_common_grid(lines: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Interpolate lines (x, y) at points `[N]` that all of them cover, to `[S, N]`; N is 0 if there are none."""
    first, last = max(x[0] for x, _ in lines), min(x[-1] for x, _ in lines)
    if first > last:
        return np.empty(0), np.empty((len(lines), 0))
    grid = np.linspace(first, last, GRID_POINTS)
    return grid, np.stack([np.interp(grid, x, y) for x, y in lines])


def interquartile_mean(samples: Any, axis: int = 0) -> Any:
    """The interquartile mean (Agarwal et al., 2021); the mean for fewer than four samples."""
    from scipy.stats import trim_mean  # takes a second to import

    return trim_mean(samples, 0.25, axis=axis)


def bootstrap_band(samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The 95 % percentile bootstrap interval of the interquartile mean over axis 0, of `SEEDS_FOR_BAND` or more."""
    from scipy.stats import bootstrap

    rng = np.random.default_rng(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scipy warns about samples that are not finite: the interval is then NaN
        result = bootstrap(
            (samples,), interquartile_mean, axis=0, n_resamples=RESAMPLES, batch=100, method="percentile", rng=rng
        )
    return result.confidence_interval.low, result.confidence_interval.high
