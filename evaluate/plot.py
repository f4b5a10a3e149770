"""rmc-plot: learning curves of runs, seeds together."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import tyro
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter
from rich.console import Console

from rmc_agents import cli
from rmc_agents.checkpoint import write_atomically
from rmc_agents.config import Config

TAG, SPEED_TAG = "charts/episodic_return", "charts/SPS"
GRID_POINTS = 400

BESIDE_THE_POINT = frozenset({"seed", "save_every", "keep_checkpoints", "log_every", "eval_episodes", "video"})
"""Settings that change neither what an agent is nor how fast it learns."""

DESCRIPTION = """Draw the mean episode return of runs against frames or minutes, from their TensorBoard events.

Runs that differ in the seed alone are taken for seeds of one agent: a thick line for their mean, thin ones for each.

  rmc-plot runs/lstm-* runs/rmc-* --out curves.png --smooth 5 --mark random=14.8"""


@dataclass(frozen=True)
class Arguments:
    """What to draw."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN [RUN ...]")]
    """Folders of runs."""
    out: Path | None = None
    """The file, .png; None: learning-curve.png in the run's folder, or here for several runs."""
    smooth: int = 1
    """Average over so many neighbouring points."""
    against: Literal["frames", "minutes", "both"] = "frames"
    """What to draw returns against; minutes: of training, without the time between a stop and a resume."""
    mark: Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="NAME=VALUE")] = ()
    """A dashed line at a return worth comparing with; may be given again."""


class Curve(NamedTuple):
    """One run's returns."""

    frames: np.ndarray  # [N] ascending
    returns: np.ndarray  # [N]
    seconds: np.ndarray  # [N] of training until then


class Quantity(NamedTuple):
    """What returns are drawn against."""

    label: str
    field: str  # of `Curve`
    unit: float  # what the field is divided by


QUANTITIES = {
    "frames": Quantity("frames", "frames", 1.0),
    "minutes": Quantity("minutes of training", "seconds", 60.0),
}


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    return cli.run("rmc-plot", lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> int:
    arguments = cli.parse(Arguments, argv, "rmc-plot", DESCRIPTION)
    if not arguments.runs:
        raise ValueError("expected at least one run's folder")
    if arguments.smooth < 1:
        raise ValueError(f"--smooth: expected at least 1, got {arguments.smooth}")
    single = arguments.runs[0] / "learning-curve.png"
    path = arguments.out or (single if len(arguments.runs) == 1 else Path("learning-curves.png"))
    if path.suffix.lower() != ".png":
        raise ValueError(f"{path}: expected a file name that ends in .png")
    marks = dict(parse_mark(mark) for mark in arguments.mark)

    curves = [smoothed(read_curve(run), arguments.smooth) for run in arguments.runs]
    configs = [Config().updated_from_yaml(run / "config.yaml") for run in arguments.runs]
    envs = sorted({config.env.env for config in configs})
    cores = [config.core.core if len(envs) == 1 else f"{config.env.env} · {config.core.core}" for config in configs]
    groups: dict[str, list[Curve]] = {}
    for label, curve in sorted(zip(labels(cores, configs), curves, strict=True), key=lambda pair: pair[0]):
        groups.setdefault(label, []).append(curve)
    against = tuple(QUANTITIES) if arguments.against == "both" else (arguments.against,)
    write_png(draw(groups, marks, f"Learning curves: {', '.join(envs)}", against), path)
    Console().print(str(path), highlight=False, markup=False, soft_wrap=True)
    return 0


def parse_mark(text: str) -> tuple[str, float]:
    """'NAME=VALUE' to its parts; raises ValueError for anything else."""
    name, _, value = text.rpartition("=")
    try:
        number = float(value)
    except ValueError:
        number = np.nan
    if not name or not np.isfinite(number):
        raise ValueError(f"--mark: expected NAME=VALUE, got {text!r}")
    return name, number


def essence(config: Config) -> dict[str, Any]:
    """The settings that seeds of one agent share."""
    return {name: value for name, value in config.to_mapping().items() if name not in BESIDE_THE_POINT}


def labels(names: Sequence[str], configs: Sequence[Config]) -> list[str]:
    """The runs' names, equal for runs of equal `essence` only: where it differs, what differs is added.

    Args:
      names: what the runs' agents are called, one for each run.
      configs: their settings.
    """
    settings = [essence(config) for config in configs]
    labelled = []
    for name, own in zip(names, settings, strict=True):
        rivals = [other for other_name, other in zip(names, settings, strict=True) if other_name == name]
        differing = [key for key in own if any(other[key] != own[key] for other in rivals)]
        labelled.append(", ".join([name, *(f"{key}={own[key]}" for key in differing)]))
    return labelled


def read_curve(run: Path) -> Curve:
    """The mean return of the episodes that ended between two points, against frames and seconds of training.

    Raises:
      ValueError: if the folder holds no such events.
    """
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = run / "tensorboard"
    if not any(folder.glob("*tfevents*")):
        raise ValueError(f"{run} holds no TensorBoard events (expected {folder}): is it the folder of a run?")
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})  # 0: all of them
    events.Reload()
    if not {TAG, SPEED_TAG} <= set(events.Tags()["scalars"]):
        raise ValueError(f"{run}: no episode has ended yet (its events lack {TAG} or {SPEED_TAG})")
    points, speeds = (_by_frames(events.Scalars(tag)) for tag in (TAG, SPEED_TAG))
    frames, timed_frames = np.array(list(points)), np.array(list(speeds))
    # Times of day would count the pauses of a run that was resumed; the speed is that since the point before.
    seconds = np.cumsum(np.diff(timed_frames, prepend=0) / np.array(list(speeds.values())))
    return Curve(frames, np.array(list(points.values())), np.interp(frames, timed_frames, seconds))


def _by_frames(events: Sequence[Any]) -> dict[int, float]:
    """Values by frames, ascending; of equal frames the latest."""
    values = {event.step: event.value for event in events}
    return {frames: values[frames] for frames in sorted(values)}


def smoothed(curve: Curve, points: int) -> Curve:
    """A centred moving average over so many points, fewer at both ends."""
    if points == 1:
        return curve
    before, after = points // 2, (points - 1) // 2
    sums = np.concatenate([[0.0], np.cumsum(curve.returns)])
    index = np.arange(len(curve.returns))
    first, last = np.maximum(index - before, 0), np.minimum(index + after + 1, len(index))
    return curve._replace(returns=(sums[last] - sums[first]) / (last - first))


def on_common_grid(lines: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Of lines (x, y): places `[N]` that all of them cover, and the lines there `[S, N]`; N is 0 if there are none."""
    first, last = max(x[0] for x, _ in lines), min(x[-1] for x, _ in lines)
    if first > last:
        return np.empty(0), np.empty((len(lines), 0))
    grid = np.linspace(first, last, GRID_POINTS)
    return grid, np.stack([np.interp(grid, x, y) for x, y in lines])


def draw(
    groups: Mapping[str, Sequence[Curve]], marks: Mapping[str, float], title: str, against: Sequence[str] = ("frames",)
) -> Figure:
    """The figure: one colour per agent, its band from the lowest to the highest seed.

    Args:
      groups: label of an agent to the curves of its seeds.
      marks: names and heights of dashed lines.
      title: over the figure.
      against: names of `QUANTITIES`, a panel for each.
    """
    figure = Figure(figsize=(8 if len(against) == 1 else 12, 4.8), layout="constrained")
    panels = figure.subplots(1, len(against), sharey=True, squeeze=False)[0]
    for axes, name in zip(panels, against, strict=True):
        for i, (label, curves) in enumerate(groups.items()):
            _draw_agent(axes, curves, QUANTITIES[name], label, f"C{i}")
        for i, (mark, value) in enumerate(marks.items()):
            grey = str(0.35 + 0.12 * (i % 4))
            axes.axhline(value, color=grey, linestyle="--", linewidth=1.2, label=f"{mark} ({value:g})")
        _furnish(axes, QUANTITIES[name].label)
    panels[0].set_title(title, fontweight="bold", loc="left")
    panels[0].set_ylabel("mean episode return")
    panels[0].legend(frameon=False, loc="best")
    return figure


def write_png(figure: Figure, path: Path) -> None:
    """The figure as a file, atomically. Raises OSError if it cannot be written."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=150)
    write_atomically(path, content.getvalue())


def _furnish(axes: Axes, label: str) -> None:
    axes.set_xlabel(label)
    if label == QUANTITIES["frames"].label:
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))  # 4M
    axes.set_xlim(left=0)
    axes.grid(color="0.9")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_agent(axes: Axes, curves: Sequence[Curve], quantity: Quantity, name: str, colour: str) -> None:
    lines = [(getattr(curve, quantity.field) / quantity.unit, curve.returns) for curve in curves]
    if len(lines) == 1:
        axes.plot(*lines[0], color=colour, linewidth=2, label=f"{name} (1 seed)")
        return
    for line in lines:
        axes.plot(*line, color=colour, linewidth=0.7, alpha=0.45)
    grid, returns = on_common_grid(lines)
    label = f"{name} (mean of {len(lines)} seeds; band: lowest to highest)"
    axes.fill_between(grid, returns.min(axis=0), returns.max(axis=0), color=colour, alpha=0.15, linewidth=0)
    axes.plot(grid, returns.mean(axis=0), color=colour, linewidth=2.2, label=label)
