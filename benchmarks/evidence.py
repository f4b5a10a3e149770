"""What benchmarks/learning.py knows of finished runs: raw numbers as JSON, and the table and figure made from them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.ticker import MaxNLocator
from pydantic import TypeAdapter, ValidationError
from scipy.stats import t as student

from rmc_agents.checkpoint import write_atomically
from rmc_agents.config import Config
from rmc_agents.evaluate.plot import QUANTITIES, Curve, draw, labels, read_curve, smoothed, write_png
from rmc_agents.evaluation import Statistics
from rmc_agents.saved import load_agent
from rmc_agents.train.run_folder import PACKAGES

COMMITS = "commits.txt"  # in a run's folder: what it was trained with, a line for each part
MOST_POINTS = 200
SMOOTH = 5  # points of a curve that figure and table average over
MARKS = 4


@dataclass(frozen=True)
class Points:
    """A learning curve: the mean return of the training episodes that ended between two points."""

    frames: list[int]
    seconds: list[float]
    returns: list[float]

    def to_curve(self) -> Curve:
        """The curve, smoothed."""
        curve = Curve(np.array(self.frames), np.array(self.returns), np.array(self.seconds))
        return smoothed(curve, SMOOTH)


@dataclass(frozen=True)
class Run:
    """A row of the JSON file: one seed of one agent."""

    agent: str
    """Its preset's name, or that of its YAML file."""
    seed: int
    commits: list[str]
    """Of the code that trained it, several if it was resumed with another."""
    versions: dict[str, str]
    """Of the libraries."""
    parameters: int
    frames: int
    seconds: float
    """Of training."""
    evaluation: Statistics
    random_mean_return: float
    """Of uniform random play, in the episodes of the evaluation."""
    settings: dict[str, Any]
    """All of them."""
    curve: Points

    @property
    def config(self) -> Config:
        """The settings; those that the project did not have then are at their defaults."""
        return Config().updated(self.settings, f"settings of {self.agent}, seed {self.seed}")


def collect(agent: str, folder: Path) -> Run:
    """What is to be known of the finished run in `folder`.

    Raises:
      ValueError: if its checkpoint or its TensorBoard events are missing or damaged.
      OSError: if one of its other files is.
    """
    summary, versions = (json.loads((folder / f"{name}.json").read_text()) for name in ("summary", "versions"))
    saved = load_agent(folder, torch.device("cpu"))
    row = {
        "agent": agent,
        "seed": saved.config.run.seed,
        "commits": read_commits(folder) or ["unknown"],
        "versions": {name: versions[name] for name in PACKAGES},
        "parameters": sum(p.numel() for p in saved.agent.parameters()),
        "frames": summary["frames"],
        "seconds": round(summary["seconds"], 1),
        "evaluation": summary["evaluation"],
        "random_mean_return": summary["evaluation"]["random_mean_return"],
        "settings": saved.config.to_mapping(),
        "curve": asdict(thinned(read_curve(folder))),
    }
    return TypeAdapter(Run).validate_python(row)


def read_commits(folder: Path) -> list[str]:
    """Of the code that trained the run; none where nothing was noted."""
    path = folder / COMMITS
    return path.read_text().split() if path.exists() else []


def thinned(curve: Curve) -> Points:
    """The curve with at most MOST_POINTS points: neighbours become their mean, at the place of the last of them."""
    bins = np.array_split(np.arange(len(curve.frames)), min(len(curve.frames), MOST_POINTS))
    last = [group[-1] for group in bins]
    returns = [round(float(curve.returns[group].mean()), 2) for group in bins]
    return Points(curve.frames[last].tolist(), curve.seconds[last].round(1).tolist(), returns)


def read(path: Path) -> list[Run]:
    """The rows of a result file. Raises ValueError if it is missing, damaged or of another format."""
    try:
        return TypeAdapter(list[Run]).validate_json(path.read_bytes())
    except OSError as error:
        raise ValueError(f"cannot read the result {path}: {error.strerror}") from error
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(map(str, problem["loc"]))
        raise ValueError(f"{path} is no result of benchmarks/learning.py: {place}: {problem['msg']}") from error


def write(runs: Sequence[Run], path: Path) -> None:
    """The rows as JSON, a line for each."""
    lines = ",\n".join(json.dumps(asdict(run)) for run in runs)
    write_atomically(path, f"[\n{lines}\n]\n".encode())


def grouped(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Label of an agent to its runs, by seed; of runs with equal label and seed the first."""
    groups: dict[str, dict[int, Run]] = {}
    for label, run in zip(labels([run.agent for run in runs], [run.config for run in runs]), runs, strict=True):
        groups.setdefault(label, {}).setdefault(run.seed, run)
    return {label: [seeds[seed] for seed in sorted(seeds)] for label, seeds in groups.items()}


def default_marks(longest: float) -> list[float]:
    """A few round numbers up to `longest`."""
    return [
        float(mark)
        for mark in MaxNLocator(MARKS, steps=[1, 2, 2.5, 5, 10]).tick_values(0, longest)[1:]
        if mark <= longest
    ]


def mean_at(runs: Sequence[Run], name: str, mark: float) -> float | None:
    """The mean over seeds of training episodes' return at a mark of one of `QUANTITIES`; None beyond a run's end."""
    field, unit = QUANTITIES[name].field, QUANTITIES[name].unit
    if any(getattr(run, field) < mark * unit for run in runs):
        return None
    curves = [run.curve.to_curve() for run in runs]
    return float(np.mean([np.interp(mark * unit, getattr(curve, field), curve.returns) for curve in curves]))


def mean_with_interval(scores: Sequence[float]) -> str:
    """The mean over seeds with Student's 95 % interval, which one seed does not have."""
    mean = float(np.mean(scores))
    if len(scores) < 2:
        return f"{mean:.1f}"
    half = student.ppf(0.975, len(scores) - 1) * float(np.std(scores, ddof=1)) / len(scores) ** 0.5
    return f"{mean:.1f} ({mean - half:.1f} to {mean + half:.1f})"


def table(
    groups: Mapping[str, Sequence[Run]], frame_marks: Sequence[float] = (), minute_marks: Sequence[float] = ()
) -> str:
    """The comparison as Markdown, and what its columns are; marks default to a few round ones."""
    runs = [run for group in groups.values() for run in group]
    frame_marks = frame_marks or default_marks(max(run.frames for run in runs))
    minute_marks = minute_marks or default_marks(max(run.seconds for run in runs) / 60)
    marks = [*(("frames", mark) for mark in frame_marks), *(("minutes", mark) for mark in minute_marks)]
    heads = ["agent", "parameters", *(f"{_short(mark)} {'min' if name == 'minutes' else name}" for name, mark in marks)]
    heads += ["evaluation, by seed", "mean (95 % interval)", "frames/s", "seconds"]
    lines = [_line(heads), "|---" * len(heads) + "|"]
    for label, group in groups.items():
        scores = [run.evaluation.mean_return for run in group]
        reached = [mean_at(group, name, mark) for name, mark in marks]
        cells = [label, f"{group[0].parameters:,}", *("" if mean is None else f"{mean:.1f}" for mean in reached)]
        cells += [", ".join(f"{score:.1f}" for score in scores), mean_with_interval(scores)]
        cells += [f"{np.mean([run.frames / run.seconds for run in group]):,.0f}", _span([run.seconds for run in group])]
        lines.append(_line(cells))
    for name, random in random_play(groups).items():
        lines.append(_line([name, *[""] * (len(heads) - 4), f"{random:.1f}", "", ""]))
    return "\n".join([*lines, "", _notes(groups), ""])


def random_play(groups: Mapping[str, Sequence[Run]]) -> dict[str, float]:
    """What is written beside a score of uniform random play, and the score; one where the runs agree on it."""
    name = "uniform random play"
    scores = {run.config.env.env: run.random_mean_return for group in groups.values() for run in group}
    if len(set(scores.values())) == 1:
        return {name: next(iter(scores.values()))}
    return {f"{name}, {env}": score for env, score in scores.items()}


def figure(groups: Mapping[str, Sequence[Run]], marks: Mapping[str, float], path: Path) -> None:
    """Curves against frames and against minutes, with dashed lines at uniform random play and at `marks`."""
    curves = {label: [run.curve.to_curve() for run in group] for label, group in groups.items()}
    random = {name: round(score, 1) for name, score in random_play(groups).items()}
    write_png(draw(curves, random | dict(marks), "Learning curves", tuple(QUANTITIES)), path)


def _notes(groups: Mapping[str, Sequence[Run]]) -> str:
    runs = [run for group in groups.values() for run in group]
    commits = sorted({commit for run in runs for commit in run.commits})
    seeds = "; ".join(f"{label}: {', '.join(str(run.seed) for run in group)}" for label, group in groups.items())
    episodes = _span([run.evaluation.episodes for run in runs])
    return (
        "Columns of frames and minutes (of training alone): mean return of training episodes around there, over the\n"
        f"seeds. The evaluation plays {episodes} episodes a seed; the interval is Student's over seeds.\n"
        f"Seeds: {seeds}. Trained at commit {', '.join(commits)}."
    )


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _span(numbers: Sequence[float]) -> str:
    low, high = f"{min(numbers):,.0f}", f"{max(numbers):,.0f}"
    return low if low == high else f"{low} to {high}"


def _short(number: float) -> str:
    return f"{number / 1e6:g}M" if number >= 1e6 else f"{number:g}"
