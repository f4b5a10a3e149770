"""rmc-plot: plots learning curves, aggregated over seeds."""

import io
import logging
import math
import textwrap
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Real
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import tyro

from rmc_agents import command_line, plugins
from rmc_agents.command_line import parsing
from rmc_agents.config import Config
from rmc_agents.config.stages import stages_of
from rmc_agents.envs.checks import checked_choice, checked_int
from rmc_agents.files import check_writable, write_atomically
from rmc_agents.runs.folder import check_links, read_config

from .curves import (
    METRICS,
    QUANTITIES,
    SEEDS_FOR_BAND,
    SMOOTH,
    Curve,
    Quantity,
    bootstrap_band,
    interquartile_mean,
    on_common_grid,
    read_curve,
    smoothed,
    smoothing,
    thinned,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HEIGHT = 4.8  # inches of a figure with a short legend
COLOURS, DASHES = 10, ("-", "--", ":", "-.")  # agents after the tenth have the colours again, with other lines
NOT_COMPARED = frozenset(
    {"seed", "save_every", "keep_checkpoints", "log_every", "eval_episodes", "eval_every", "eval_max_steps", "video"}
    | {"diagnostics", "env_workers", "env_backend"}
)
"""The seed, and settings that affect neither the agent nor its learning: runs that differ only here are one agent."""
ROUNDING = frozenset({"device", "backend", "learners"})
"""Settings with an 'auto' that change results by rounding alone."""

logger = logging.getLogger(__name__)
DESCRIPTION = """Draw the mean episode return, or accuracy, of runs against frames or minutes, from TensorBoard events.

Runs that differ only in the seed count as one agent: a thick line for their interquartile mean, with its 95 % bootstrap
interval if there are five seeds or more, and a thin line for each run.

  rmc-plot runs/lstm-* runs/rmc-* --out curves.png --smooth 5 --mark random=14.8"""

Metric = Literal["return", "success", "accuracy", "evaluation"]


@dataclass(frozen=True)
class Arguments:
    """The options of a plot."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN [RUN ...]")]
    """Folders of runs."""
    out: Path | None = None
    """The .png file; None: learning-curve.png in the run's folder, or learning-curves.png in this
    folder for several runs."""
    smooth: int = SMOOTH
    """Points of the moving average, of at most 200 points in total; at most a quarter of them; 1: no smoothing."""
    against: Literal["frames", "minutes", "both"] = "frames"
    """The x axis; minutes: of training, without pauses between a stop and a resume."""
    metric: Metric | None = None
    """success: the success rate, if the environment reports it; evaluation: the mean return of the evaluations during
    the training (rmc-train --eval-every); None: the accuracy of supervised runs, else the return."""
    mark: Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="NAME=VALUE")] = ()
    """A dashed line at a reference value; may be repeated."""
    imports: parsing.Imports = ()


@command_line.command("rmc-plot")
def main(argv: Sequence[str]) -> int:
    """The command; returns its exit status."""
    arguments = parsing.parse(Arguments, argv, "rmc-plot", DESCRIPTION)
    plugins.load(arguments.imports)
    is_single = len(arguments.runs) == 1
    path = arguments.out or (arguments.runs[0] / "learning-curve.png" if is_single else Path("learning-curves.png"))
    if is_single and arguments.out is None:
        check_links(arguments.runs[0])
    marks = dict(parse_mark(mark) for mark in arguments.mark)
    plot(arguments.runs, path, arguments.metric, arguments.against, arguments.smooth, marks)
    text = f"{path} (curves {smoothing(arguments.smooth)})"
    command_line.say(command_line.console(), text)
    return 0


def plot(
    runs: Iterable[str | PathLike[str]] | str | PathLike[str],
    path: str | PathLike[str],
    metric: Metric | None = None,
    against: Literal["frames", "minutes", "both"] = "frames",
    smooth: int = SMOOTH,
    marks: Mapping[str, float] | None = None,
) -> None:
    """Draw the learning curves of runs, like rmc-plot: runs that differ only in the seed count as one agent.

    Args:
      runs: their folders, at least one; or one folder.
      path: a file name that ends in .png.
      metric: 'return', 'success', 'accuracy' or, of the evaluations during the training, 'evaluation'; None: 'accuracy'
        if all runs are supervised, else 'return'.
      against: the x axis: frames, minutes of training, or both in two plots.
      smooth: points of the moving average, of at most 200 points in total; at most a quarter of them; 1: no smoothing.
      marks: reference values by name, as dashed lines.

    Raises:
      ValueError: for another suffix, a file that cannot be written, a number below 1, or a run without such a curve.
    """
    if Path(path).suffix.lower() != ".png":
        raise ValueError(f"{path}: expected a file name that ends in .png")
    if metric is not None:
        checked_choice("metric", metric, METRICS)
    checked_choice("against", against, (*QUANTITIES, "both"))
    checked_int("smooth", smooth, 1)
    check_marks(marks or {})
    runs = [runs] if isinstance(runs, str | PathLike) else list(runs)
    if not runs:
        raise ValueError("expected at least one run's folder")
    configs = [read_config(Path(run)) for run in runs]
    check_writable(Path(path))  # by default in a run's folder
    metric = metric or ("accuracy" if all(config.train.is_supervised for config in configs) else "return")
    curves = [smoothed(thinned(read_curve(run, metric)), smooth) for run in runs]
    envs = sorted({config.env.env for config in configs})
    named = sorted(zip(labels(names_of_runs(configs), configs), configs, curves, strict=True), key=lambda each: each[0])
    groups: dict[str, dict[int, Curve]] = {}
    for label, config, curve in named:
        seeds = groups.setdefault(label, {})
        if config.run.seed in seeds:
            logger.warning("left out: %s, seed %d, which was given before", label, config.run.seed)
        seeds.setdefault(config.run.seed, curve)
    agents = {label: list(seeds.values()) for label, seeds in groups.items()}
    axes = tuple(QUANTITIES) if against == "both" else (against,)
    write_png(draw(agents, marks or {}, f"Learning curves: {', '.join(envs)}", axes, metric, smooth), path)


def parse_mark(text: str) -> tuple[str, float]:
    """Parse 'NAME=VALUE'. Raises ValueError for anything else."""
    name, _, value = text.rpartition("=")
    try:
        number = float(value)
    except ValueError:
        number = np.nan
    if not name or not np.isfinite(number):
        raise ValueError(f"--mark: expected NAME=VALUE, got {text!r}")
    return name, number


def check_marks(marks: Mapping[str, float]) -> None:
    """Raises ValueError for marks that are not finite numbers by name."""
    if not isinstance(marks, Mapping):
        raise ValueError(f"marks: expected scores by name, such as {{'random': 9.2}}, got {marks!r}")
    for mark, value in marks.items():
        if not isinstance(value, Real) or not math.isfinite(value):
            raise ValueError(f"marks: {mark}: expected a number, got {value!r}")


def names_of_runs(configs: Sequence[Config]) -> list[str]:
    """Names for runs: their cores, and their environments if these differ."""
    several = len({config.env.env for config in configs}) > 1
    return [f"{config.env.env} · {config.core.core}" if several else config.core.core for config in configs]


def learning_settings(config: Config, *of_run: str) -> dict[str, Any]:
    """The settings that seeds of one agent share, and those `of_run`, which do not affect its learning."""
    return {name: value for name, value in config.to_mapping().items() if name not in NOT_COMPARED or name in of_run}


def is_other(name: str, value: Any, other: Any) -> bool:
    """Whether two values of a setting differ; 'auto' of `ROUNDING` may stand for the other one."""
    return value != other and not (name in ROUNDING and "auto" in (value, other))


def labels(names: Sequence[str], configs: Sequence[Config], *of_run: str) -> list[str]:
    """Labels for runs: settings that differ between runs of one name and have an effect are added to the name.

    Args:
      names: the agents' names, one for each run.
      configs: their settings.
      of_run: as in `learning_settings`.
    """
    settings = [learning_settings(config, *of_run) for config in configs]
    labelled = []
    for name, own in zip(names, settings, strict=True):
        rivals = [i for i, other_name in enumerate(names) if other_name == name]
        differing = [key for key in own if any(is_other(key, settings[i][key], own[key]) for i in rivals)]
        differing = with_effect(differing, [configs[i] for i in rivals])
        labelled.append(", ".join([name, *(_shown(key, own[key]) for key in differing)]))
    return labelled


def _shown(name: str, value: Any) -> str:
    """A setting in a label: 'num_envs=8', 'env_kwargs (length=4)'."""
    if name == "curriculum":
        return f"{name} ({', then '.join(map(str, stages_of(value))) or 'none'})"
    if isinstance(value, Mapping):
        return f"{name} ({' '.join(f'{key}={each}' for key, each in value.items()) or 'none'})"
    return f"{name}={value}"


def with_effect(names: Sequence[str], configs: Sequence[Config]) -> list[str]:
    """Those of the settings that have an effect in at least one of the configs."""
    if not names:
        return []
    from rmc_agents.cores import settings_unused  # imports torch

    unused = set.intersection(*(settings_unused(config) for config in configs))
    return [name for name in names if name not in unused]


def draw(
    groups: Mapping[str, Sequence[Curve]],
    marks: Mapping[str, float],
    title: str,
    against: Sequence[str] = ("frames",),
    metric: str = "return",
    smooth: int = 1,
) -> "Figure":
    """Draw the figure: one colour per agent, the interquartile mean of its seeds, and its interval with enough seeds.

    Args:
      groups: the curves of each agent's seeds, by label.
      marks: names and heights of dashed lines.
      title: the figure's title.
      against: names of `QUANTITIES`, one panel each.
      metric: the curves' metric, one of `METRICS`.
      smooth: points of the moving average, for the legend.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8 if len(against) == 1 else 12, HEIGHT), layout="constrained")
    panels = figure.subplots(1, len(against), sharey=True, squeeze=False)[0]
    for axes, name in zip(panels, against, strict=True):
        for i, (label, curves) in enumerate(groups.items()):
            _draw_agent(axes, curves, QUANTITIES[name], label, f"C{i % COLOURS}", DASHES[i // COLOURS % len(DASHES)])
        for i, (mark, value) in enumerate(marks.items()):
            grey = str(0.35 + 0.12 * (i % 4))
            axes.axhline(value, color=grey, linestyle="--", linewidth=1.2, label=plain(f"{mark} ({value:g})"))
        _format_axes(axes, QUANTITIES[name].label)
    lines = textwrap.fill(title, int(7.5 * figure.get_figwidth() / len(panels)), break_on_hyphens=False)  # bold letters
    panels[0].set_title(plain(lines), fontweight="bold", loc="left")
    panels[0].set_ylabel(METRICS[metric].label)
    explained = f"curves {smoothing(smooth)}"
    if any(len(curves) > 1 for curves in groups.values()):
        explained += "; interquartile mean over seeds"
    if any(len(curves) >= SEEDS_FOR_BAND for curves in groups.values()):
        explained += f", 95 % bootstrap interval with {SEEDS_FOR_BAND} seeds or more"
    handles, labels = panels[0].get_legend_handles_labels()
    letters = int(13 * figure.get_figwidth())  # of this font, side by side
    labels = [textwrap.fill(label, letters - 8, break_on_hyphens=False) for label in labels]
    longest = max(len(line) for label in labels for line in label.splitlines())
    legend = figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=min(3, letters // (longest + 8)),  # a line before each label
        frameon=False,
        fontsize="small",
        title=explained,
    )
    with _without_warnings():
        figure.set_figheight(max(HEIGHT, 4.0 + legend.get_window_extent().height / figure.dpi))
    return figure


def plain(text: str) -> str:
    """Text that matplotlib shows as it is: without formulas between $, and in legends also after a leading _."""
    return ("\u200b" if text.startswith("_") else "") + text.replace("$", r"\$")


def write_png(figure: "Figure", path: str | PathLike[str]) -> None:
    """Write the figure atomically. Raises OSError if it cannot be written."""
    content = io.BytesIO()
    with _without_warnings():
        figure.savefig(content, format="png", dpi=150)
    write_atomically(Path(path), content.getvalue())


@contextmanager
def _without_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about letters that the font does not have
        yield


def _format_axes(axes: "Axes", label: str) -> None:
    from matplotlib.ticker import EngFormatter

    axes.set_xlabel(label)
    if label == QUANTITIES["frames"].label:
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))  # 4M
    axes.set_xlim(left=0)
    plain_axes(axes)


def plain_axes(axes: "Axes") -> None:
    """A light grid behind the data, and no frame at the top and on the right."""
    axes.grid(color="0.9")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_agent(axes: "Axes", curves: Sequence[Curve], quantity: Quantity, name: str, colour: str, dashes: str) -> None:
    lines = [(getattr(curve, quantity.field) / quantity.unit, curve.values) for curve in curves]
    if len(lines) == 1:
        label = plain(f"{name} (1 seed)")
        _draw_line(axes, *lines[0], color=colour, linestyle=dashes, linewidth=2, label=label)
        return
    for line in lines:
        _draw_line(axes, *line, color=colour, linewidth=0.7, alpha=0.45)
    grid, values = on_common_grid(lines)
    if len(grid) and len(lines) >= SEEDS_FOR_BAND:
        axes.fill_between(grid, *bootstrap_band(values), color=colour, alpha=0.15, linewidth=0)
    label = plain(f"{name} ({len(lines)} seeds)")
    _draw_line(axes, grid, interquartile_mean(values), color=colour, linestyle=dashes, linewidth=2.2, label=label)


def _draw_line(axes: "Axes", x: np.ndarray, y: np.ndarray, **style: Any) -> None:
    """Draw a line, or a dot if it has a single point."""
    axes.plot(x, y, marker="o" if len(np.unique(x)) == 1 else None, **style)
