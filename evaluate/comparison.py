"""Finished runs in rmc-compare: raw numbers as JSON, and the table and figure made from them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from rmc_agents.command_line import quoted
from rmc_agents.config import Config
from rmc_agents.envs.names import NAMESPACE
from rmc_agents.files import read_regular, write_atomically
from rmc_agents.formatting import decimals, with_interval
from rmc_agents.runs.folder import PACKAGES, SUMMARY, VERSIONS, read_config

from .curves import (
    METRICS,
    QUANTITIES,
    SMOOTH,
    Curve,
    at_frames,
    bootstrap_band,
    interquartile_mean,
    read_curve,
    smoothed,
    smoothing,
    thinned,
)
from .plot import draw, labels, write_png
from .statistics import Statistics, student_interval, welch_interval
from .summary import Count, Evaluation, Seconds, read_json, read_summary

COMMITS = "commits.txt"  # in a run's folder: the code versions it was trained with, one line each
MARKS = 4
MEAN, DIFFERENCE = "mean (95 % interval)", "difference from the first (95 % interval)"  # columns of the table


@dataclass(frozen=True)
class Points:
    """A learning curve: means over the training episodes that ended between two points."""

    frames: list[Count]
    seconds: list[float]
    returns: list[float] | None
    """The return; None if no episode has ended, as in a long text."""
    successes: list[float] | None = None
    """The success rate; None if the environment does not report it."""
    accuracies: list[float] | None = None
    """In supervised learning, the accuracy of single updates."""

    def __post_init__(self) -> None:
        scores = self.returns, self.successes, self.accuracies
        lengths = {len(values) for values in (self.frames, self.seconds, *scores) if values is not None}
        if len(lengths) > 1 or 0 in lengths or all(values is None for values in scores):
            raise ValueError("expected as many frames as seconds and scores, at least one of each")


@dataclass(frozen=True)
class ComparedRun:
    """A row of the JSON file: one seed of one agent. Fields with a default are missing in older files."""

    agent: str
    """The agent's name: its preset or core."""
    seed: int
    commits: list[str]
    """Commits of the code that trained it; several if it was resumed with another."""
    versions: dict[str, str]
    """Versions of the libraries."""
    parameters: Count
    frames: Count
    seconds: Seconds
    """Training time."""
    evaluation: Statistics
    random_mean_return: float
    """The mean return of uniform random play in the episodes of the evaluation."""
    settings: dict[str, Any]
    """All settings."""
    curve: Points
    random_success_rate: float | None = None
    chance: float | None = None
    """The accuracy of guessing."""

    @property
    def config(self) -> Config:
        """The settings; those added to the project since are at their defaults."""
        return Config().updated(self.settings, f"settings of {self.agent}, seed {self.seed}")

    def score(self, metric: str) -> float | None:
        """The evaluation's mean return, or its success rate or accuracy if it has one."""
        of = self.evaluation
        return {"return": of.mean_return, "success": of.success_rate, "accuracy": of.accuracy}[metric]

    def random_score(self, metric: str) -> float | None:
        """The score of uniform random play."""
        scores = {"return": self.random_mean_return, "success": self.random_success_rate, "accuracy": self.chance}
        return scores[metric]

    def values_of(self, metric: str) -> list[float] | None:
        """The values of the learning curve; None if it does not have this metric."""
        of = self.curve
        return {"return": of.returns, "success": of.successes, "accuracy": of.accuracies}[metric]

    def curve_of(self, metric: str) -> Curve:
        """The learning curve, smoothed."""
        values = self.values_of(metric)
        return smoothed(Curve(np.array(self.curve.frames), np.array(values), np.array(self.curve.seconds)))


def _resume_command(folder: Path, flags: str = "", settings: str = "") -> str:
    """How a run is resumed, with flags on the command line or settings in Python."""
    if read_config(folder).env.env.startswith(NAMESPACE):
        which = "where env is a class or a function: a VectorEnv object is not evaluated"
        return f"rmc.resume({str(folder)!r}{settings}, env=...), {which}"
    return f"rmc-train --resume {quoted(folder)}{flags}"


def collect(agent: str, folder: str | PathLike[str]) -> ComparedRun:
    """The finished run in `folder`.

    Raises:
      ValueError: if it is not finished, or one of its files is missing or damaged.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"there is no run {folder}")
    if not (folder / SUMMARY).exists():
        raise ValueError(f"{folder} is not finished: continue it with {_resume_command(folder)}")
    summary = read_summary(folder)
    if summary.evaluation is None:
        command = _resume_command(folder, " --eval-episodes 200", ", {'eval_episodes': 200}")
        raise ValueError(f"{folder} was not evaluated at its end: evaluate it with {command}")
    versions = read_json(dict[str, str], folder / VERSIONS, "list of versions")
    from rmc_agents.runs.saved import settings_and_size  # imports torch

    config, parameters = settings_and_size(folder)
    row = {
        "agent": agent,
        "seed": config.run.seed,
        "commits": read_commits(folder) or ["unknown"],
        "versions": {name: versions.get(name, "unknown") for name in PACKAGES},
        "parameters": parameters,
        "frames": summary.frames,
        "seconds": round(summary.seconds, 3),
        "evaluation": asdict(summary.evaluation),  # those of random play are not read
        "random_mean_return": summary.evaluation.random_mean_return,
        "random_success_rate": summary.evaluation.random_success_rate,
        "chance": summary.evaluation.chance,
        "settings": config.to_mapping(),
        "curve": _points(folder, summary.evaluation, is_supervised=config.train.algo == "supervised"),
    }
    return TypeAdapter(ComparedRun).validate_python(row)


def read_commits(folder: Path) -> list[str]:
    """The commits of the code that trained the run; empty if not recorded."""
    path = folder / COMMITS
    return read_regular(path).decode().split() if path.exists() else []


def _points(folder: Path, evaluation: Evaluation, is_supervised: bool) -> dict[str, list[float] | None]:
    """The fields of `Points`: of the answers in supervised learning, else of the episodes."""
    found = read_curve(folder, "accuracy" if is_supervised else "return")
    returns: np.ndarray | None = found.values
    if is_supervised:
        curve = read_curve(folder, "return", is_optional=True)
        returns = np.interp(found.frames, curve.frames, curve.values) if len(curve.frames) else None
    rates = None
    if evaluation.success_rate is not None:
        rates = at_frames(read_curve(folder, "success", is_optional=True), found.frames)
    thin = thinned(found)
    scores = {"returns": returns, "successes": rates, "accuracies": found.values if is_supervised else None}
    return {"frames": thin.frames.tolist(), "seconds": thin.seconds.round(1).tolist()} | {
        name: None if values is None else thinned(found._replace(values=values)).values.round(4).tolist()
        for name, values in scores.items()
    }


def read(path: str | PathLike[str]) -> list[ComparedRun]:
    """The rows of a result file. Raises ValueError if it is missing, damaged or of another format."""
    return read_json(list[ComparedRun], path, "result of rmc-compare")


def write(runs: Sequence[ComparedRun], path: str | PathLike[str]) -> None:
    """Write the rows as JSON, one line each."""
    lines = ",\n".join(json.dumps(asdict(run)) for run in runs)
    write_atomically(Path(path), f"[\n{lines}\n]\n".encode())


def grouped(runs: Sequence[ComparedRun]) -> dict[str, list[ComparedRun]]:
    """Runs by agent label, sorted by seed; duplicates of label and seed are dropped."""
    groups: dict[str, dict[int, ComparedRun]] = {}
    names, configs = [run.agent for run in runs], [run.config for run in runs]
    for label, run in zip(labels(names, configs, "eval_max_steps"), runs, strict=True):
        groups.setdefault(label, {}).setdefault(run.seed, run)
    return {label: [seeds[seed] for seed in sorted(seeds)] for label, seeds in groups.items()}


def default_marks(longest: float) -> list[float]:
    """A few round numbers up to `longest`."""
    from matplotlib.ticker import MaxNLocator

    return [
        float(mark)
        for mark in MaxNLocator(MARKS, steps=[1, 2, 2.5, 5, 10]).tick_values(0, longest)[1:]
        if mark <= longest
    ]


def metric_of(runs: Sequence[ComparedRun]) -> str:
    """The first of accuracy and success that all runs report, else 'return'."""
    for metric in ("accuracy", "success"):
        if all(run.score(metric) is not None and run.values_of(metric) is not None for run in runs):
            return metric
    if any(run.values_of("return") is None for run in runs):
        raise ValueError("expected runs with a common score: in some no episode has ended, others have no accuracy")
    return "return"


def mean_at(runs: Sequence[ComparedRun], metric: str, name: str, mark: float) -> float | None:
    """The mean over seeds in training at a mark of one of `QUANTITIES`; None beyond a run's end."""
    field, unit = QUANTITIES[name].field, QUANTITIES[name].unit
    if any(getattr(run, field) < mark * unit for run in runs):
        return None
    curves = [run.curve_of(metric) for run in runs]
    return float(np.mean([np.interp(mark * unit, getattr(curve, field), curve.values) for curve in curves]))


def scores_of(runs: Sequence[ComparedRun], metric: str) -> list[float]:
    """The scores of an agent's seeds."""
    return [score for run in runs if (score := run.score(metric)) is not None]


def mean_with_interval(scores: Sequence[float], digits: int) -> str:
    """The mean over seeds with Student's 95 % interval, if there are several seeds."""
    return with_interval(float(np.mean(scores)), student_interval(scores) if len(scores) > 1 else None, digits)


def difference_with_interval(scores: Sequence[float], others: Sequence[float], digits: int) -> str:
    """The difference of the means over seeds with Welch's 95 % interval, if both have several seeds."""
    interval = welch_interval(scores, others) if min(len(scores), len(others)) > 1 else None
    return with_interval(float(np.mean(scores) - np.mean(others)), interval, digits)


def interquartile_with_interval(scores: Sequence[float], digits: int) -> str:
    """The interquartile mean over seeds with its 95 % bootstrap interval, if there are several seeds."""
    interval = [float(end) for end in bootstrap_band(np.array(scores))] if len(scores) > 1 else None
    return with_interval(float(interquartile_mean(scores)), interval, digits)


def score_text(run: ComparedRun) -> str:
    """A run's score with its name."""
    metric = metric_of([run])
    score = run.score(metric)
    assert score is not None
    return f"{METRICS[metric].label} {with_interval(score, None)}"


def table(
    groups: Mapping[str, Sequence[ComparedRun]], frame_marks: Sequence[float] = (), minute_marks: Sequence[float] = ()
) -> str:
    """The comparison as Markdown, with an explanation of its columns; marks default to a few round numbers."""
    runs = [run for group in groups.values() for run in group]
    metric = metric_of(runs)
    digits = 3 if metric != "return" else decimals(*(run.evaluation.mean_return for run in runs))
    marks = [("frames", mark) for mark in frame_marks or default_marks(max(run.frames for run in runs))]
    marks += [("minutes", mark) for mark in minute_marks or default_marks(max(run.seconds for run in runs) / 60)]
    rows = [_agent_row(label, group, metric, marks, digits) for label, group in groups.items()]
    first, *others = groups.values()
    for row, group in zip(rows[1:], others, strict=True):
        if _evaluated_in(group[0]) == _evaluated_in(first[0]):
            row[DIFFERENCE] = difference_with_interval(scores_of(group, metric), scores_of(first, metric), digits)
    columns = [column for column in rows[0] if column != DIFFERENCE or any(row[DIFFERENCE] for row in rows)]
    rows += [{"agent": name, MEAN: f"{score:.{digits}f}"} for name, score in random_play(groups, metric).items()]
    lines = [_line(columns), "|---" * len(columns) + "|"]
    lines += [_line([row.get(column, "") for column in columns]) for row in rows]
    return "\n".join([*lines, "", _notes(groups, metric), ""])


def _agent_row(
    label: str, group: Sequence[ComparedRun], metric: str, marks: Sequence[tuple[str, float]], digits: int
) -> dict[str, str]:
    """An agent's cells, by column."""
    row = {"agent": label, "parameters": f"{group[0].parameters:,}"}
    for name, mark in marks:
        mean = mean_at(group, metric, name, mark)
        row[f"{_short(mark)} {'min' if name == 'minutes' else name}"] = "" if mean is None else f"{mean:.{digits}f}"
    scores = scores_of(group, metric)
    return row | {
        "evaluation, by seed": ", ".join(f"{score:.{digits}f}" for score in scores),
        MEAN: mean_with_interval(scores, digits),
        DIFFERENCE: "",
        "interquartile mean (95 % bootstrap)": interquartile_with_interval(scores, digits),
        "frames/s": f"{np.mean([run.frames / run.seconds for run in group]):,.0f}",
        "seconds": _span([run.seconds for run in group]),
    }


def random_play(groups: Mapping[str, Sequence[ComparedRun]], metric: str) -> dict[str, float]:
    """Labels and scores of uniform random play; one entry if all runs agree."""
    name = "uniform random play"
    runs = [run for group in groups.values() for run in group]
    scores = {_env_of(run): score for run in runs if (score := run.random_score(metric)) is not None}
    if len(set(scores.values())) == 1:
        return {name: next(iter(scores.values()))}
    return {f"{name}, {env}": score for env, score in scores.items()}


def _env_of(run: ComparedRun) -> str:
    env = run.config.env
    return " ".join([env.env, *(f"{name}={value}" for name, value in env.env_kwargs.items())])


def _evaluated_in(run: ComparedRun) -> tuple[str, int]:
    """What scores must share to be subtracted: the environment, and the step limit of its episodes."""
    return _env_of(run), run.config.run.eval_max_steps


def figure(groups: Mapping[str, Sequence[ComparedRun]], marks: Mapping[str, float], path: str | PathLike[str]) -> None:
    """Curves against frames and against minutes, with dashed lines at uniform random play and at `marks`."""
    metric = metric_of([run for group in groups.values() for run in group])
    curves = {label: [run.curve_of(metric) for run in group] for label, group in groups.items()}
    random = {name: round(score, 2) for name, score in random_play(groups, metric).items()}
    write_png(draw(curves, random | dict(marks), "Learning curves", tuple(QUANTITIES), metric, SMOOTH), path)


def _notes(groups: Mapping[str, Sequence[ComparedRun]], metric: str) -> str:
    runs = [run for group in groups.values() for run in group]
    commits = sorted({commit for run in runs for commit in run.commits})
    seeds = "; ".join(f"{label}: {', '.join(str(run.seed) for run in group)}" for label, group in groups.items())
    label, episodes = METRICS[metric].label, _span([run.evaluation.episodes for run in runs])
    return (
        f"Columns of frames and minutes (of training alone): {label} in training around there, mean over\n"
        f"seeds; curves are {smoothing(SMOOTH)}. The evaluation's {label} is of {episodes} episodes\n"
        "per seed; intervals are over seeds: Student's of the mean, Welch's of the difference from the first\n"
        "agent's mean, in one environment with one step limit, percentile bootstrap of the interquartile mean\n"
        "(Agarwal et al., 2021).\n"
        f"Seeds: {seeds}. Trained at commit {', '.join(commits)}."
    )


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _span(numbers: Sequence[float]) -> str:
    low, high = f"{min(numbers):,.0f}", f"{max(numbers):,.0f}"
    return low if low == high else f"{low} to {high}"


def _short(number: float) -> str:
    return f"{number / 1e6:g}M" if number >= 1e6 else f"{number:g}"
