"""rmc-plot: learning curves of runs, seeds together."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import tyro
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter
from rich.console import Console

from rmc_agents import cli
from rmc_agents.checkpoint import write_atomically
from rmc_agents.config import Config

TAG = "charts/episodic_return"
GRID_POINTS = 400

DESCRIPTION = """Draw the mean episode return of runs against frames, from their TensorBoard events.

Runs of the same environment and core are taken for seeds of one agent: a thick line for their mean, thin ones for each.

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
    mark: Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="NAME=VALUE")] = ()
    """A dashed line at a return worth comparing with; may be given again."""


class Curve(NamedTuple):
    """One run's returns."""

    frames: np.ndarray  # [N] ascending
    returns: np.ndarray  # [N]


class Agent(NamedTuple):
    """What seeds share."""

    env: str
    core: str


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

    groups: dict[Agent, list[Curve]] = {}
    for run in arguments.runs:
        curve = read_curve(run)
        groups.setdefault(read_agent(run), []).append(smoothed(curve, arguments.smooth))
    content = io.BytesIO()
    draw(groups, marks).savefig(content, format="png", dpi=150)
    write_atomically(path, content.getvalue())
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


def read_agent(run: Path) -> Agent:
    """Environment and core from the run's config.yaml; raises ValueError if it cannot be read."""
    config = Config().updated_from_yaml(run / "config.yaml")
    return Agent(config.env.env, config.core.core)


def read_curve(run: Path) -> Curve:
    """The mean return of the episodes that ended between two points, against frames.

    Raises:
      ValueError: if the folder holds no such events.
    """
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = run / "tensorboard"
    if not any(folder.glob("*tfevents*")):
        raise ValueError(f"{run} holds no TensorBoard events (expected {folder}): is it the folder of a run?")
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})  # 0: all of them
    events.Reload()
    if TAG not in events.Tags()["scalars"]:
        raise ValueError(f"{run}: no episode has ended yet (there is no {TAG} in its events)")
    points = {event.step: event.value for event in events.Scalars(TAG)}  # of equal steps the latest
    frames = np.array(sorted(points))
    return Curve(frames, np.array([points[frame] for frame in frames]))


def smoothed(curve: Curve, points: int) -> Curve:
    """A centred moving average over so many points, fewer at both ends."""
    if points == 1:
        return curve
    before, after = points // 2, (points - 1) // 2
    sums = np.concatenate([[0.0], np.cumsum(curve.returns)])
    index = np.arange(len(curve.returns))
    first, last = np.maximum(index - before, 0), np.minimum(index + after + 1, len(index))
    return Curve(curve.frames, (sums[last] - sums[first]) / (last - first))


def on_common_grid(curves: Sequence[Curve]) -> tuple[np.ndarray, np.ndarray]:
    """Frames `[N]` that all curves cover and the curves there `[S, N]`; N is 0 if there are none."""
    first, last = max(curve.frames[0] for curve in curves), min(curve.frames[-1] for curve in curves)
    if first > last:
        return np.empty(0), np.empty((len(curves), 0))
    frames = np.linspace(first, last, GRID_POINTS)
    return frames, np.stack([np.interp(frames, curve.frames, curve.returns) for curve in curves])


def draw(groups: Mapping[Agent, Sequence[Curve]], marks: Mapping[str, float]) -> Figure:
    """The figure: one colour per agent, its band from the lowest to the highest seed."""
    figure = Figure(figsize=(8, 4.8), layout="constrained")
    axes = figure.add_subplot()
    envs = sorted({agent.env for agent in groups})
    for i, (agent, curves) in enumerate(sorted(groups.items())):
        name = agent.core if len(envs) == 1 else f"{agent.env} · {agent.core}"
        _draw_agent(axes, curves, name, f"C{i}")
    for i, (name, value) in enumerate(marks.items()):
        axes.axhline(
            value, color=str(0.35 + 0.12 * (i % 4)), linestyle="--", linewidth=1.2, label=f"{name} ({value:g})"
        )
    axes.set_title(f"Learning curves: {', '.join(envs)}", fontweight="bold", loc="left")
    axes.set_xlabel("frames")
    axes.set_ylabel("mean episode return")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlim(left=0)
    axes.grid(color="0.9")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="best")
    return figure


def _draw_agent(axes: Axes, curves: Sequence[Curve], name: str, colour: str) -> None:
    if len(curves) == 1:
        axes.plot(curves[0].frames, curves[0].returns, color=colour, linewidth=2, label=f"{name} (1 seed)")
        return
    for curve in curves:
        axes.plot(curve.frames, curve.returns, color=colour, linewidth=0.7, alpha=0.45)
    frames, returns = on_common_grid(curves)
    label = f"{name} (mean of {len(curves)} seeds; band: lowest to highest)"
    axes.fill_between(frames, returns.min(axis=0), returns.max(axis=0), color=colour, alpha=0.15, linewidth=0)
    axes.plot(frames, returns.mean(axis=0), color=colour, linewidth=2.2, label=label)
