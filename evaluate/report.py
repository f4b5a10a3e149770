"""The report of a comparison: its table, its figure and its files."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Real
from os import PathLike
from pathlib import Path

import numpy as np
from rich.markup import escape
from rich.table import Table

from rmc_agents.files import check_writable, write_atomically
from rmc_agents.formatting import decimals, with_interval

from .comparison import ComparedRun, grouped, runs_of, write
from .curves import METRICS, QUANTITIES, SEEDS_FOR_BAND, SMOOTH, bootstrap_band, interquartile_mean, smoothing
from .plot import draw, write_png
from .statistics import student_interval, welch_interval

SUFFIXES = (".json", ".md", ".png")
MARKS = 4
BAR = r"\|"  # in a cell of Markdown
FRAMES = "frames"
MEAN, DIFFERENCE = "mean (95 % interval)", "difference from the first (95 % interval)"  # columns of the table


def with_suffix(path: Path, suffix: str) -> Path:
    """The path with the suffix appended, even if the name contains dots.

    Raises:
      ValueError: without a name, or if it ends in one of `SUFFIXES`.
    """
    if path.name in ("", "..") or path.suffix in SUFFIXES:
        raise ValueError(f"out: expected the name of a file, without a suffix, got {str(path)!r}")
    return path.with_name(path.name + suffix)


def check_report(out: Path, column_marks: Sequence[float]) -> None:
    """Create the folder of the results. Raises ValueError if one cannot be written, or a mark is not above 0."""
    for mark in column_marks:
        if not (isinstance(mark, Real) and 0 < mark < math.inf):
            raise ValueError(f"marks of columns: expected numbers above 0, got {mark!r}")
    out.parent.mkdir(parents=True, exist_ok=True)
    for suffix in SUFFIXES:
        check_writable(with_suffix(out, suffix))


def write_report(
    runs: Sequence[ComparedRun],
    out: Path,
    frame_marks: Sequence[float],
    minute_marks: Sequence[float],
    marks: Mapping[str, float],
) -> str:
    """Write JSON, table and figure, OUT with each of `SUFFIXES`; returns the table."""
    groups = grouped(with_failures(runs))
    write(runs_of(groups), with_suffix(out, ".json"))
    text = table(groups, frame_marks, minute_marks)
    write_atomically(with_suffix(out, ".md"), text.encode())
    figure(groups, marks, with_suffix(out, ".png"))
    return text


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


def with_failures(runs: Sequence[ComparedRun]) -> list[ComparedRun]:
    """The runs; some environments report only successes, so a run without any has a rate of 0 if another has one."""
    reporting = {evaluated_in(run) for run in runs if run.evaluation.success_rate is not None}
    is_failure = [run.evaluation.success_rate is None and evaluated_in(run) in reporting for run in runs]
    return [_failed(run) if fails else run for run, fails in zip(runs, is_failure, strict=True)]


def _failed(run: ComparedRun) -> ComparedRun:
    """The run with success rates of 0, those of its curve unless it has some."""
    return replace(
        run,
        evaluation=replace(run.evaluation, success_rate=0.0),
        random_success_rate=0.0,
        curve=replace(run.curve, successes=run.curve.successes or [0.0] * len(run.curve.frames)),
    )


def mean_at(runs: Sequence[ComparedRun], metric: str, name: str, mark: float) -> float | None:
    """The mean over seeds in training at a mark of one of `QUANTITIES`; None outside of a run's curve."""
    field, at = QUANTITIES[name].field, mark * QUANTITIES[name].unit
    curves = [run.curve_of(metric) for run in runs]
    if any(getattr(curve, field)[0] > at for curve in curves) or any(getattr(run, field) < at for run in runs):
        return None
    return float(np.mean([np.interp(at, getattr(curve, field), curve.values) for curve in curves]))


def scores_of(runs: Sequence[ComparedRun], metric: str) -> list[float]:
    """The scores of an agent's seeds."""
    return [score for run in runs if (score := run.score(metric)) is not None]


def mean_with_interval(scores: Sequence[float], digits: int, are_shares: bool = False) -> str:
    """The mean over seeds with Student's 95 % interval, if the scores differ; that of shares is cut to 0..1."""
    return with_interval(float(np.mean(scores)), student_interval(scores, are_shares), digits)


def difference_with_interval(
    scores: Sequence[float], others: Sequence[float], digits: int, are_shares: bool = False
) -> str:
    """The difference of the means over seeds with Welch's 95 % interval, if both have several seeds and scores differ;
    that of shares is cut to -1..1."""
    interval = welch_interval(scores, others)
    if interval and are_shares:
        interval = max(interval[0], -1.0), min(interval[1], 1.0)
    return with_interval(float(np.mean(scores) - np.mean(others)), interval, digits)


def interquartile_with_interval(scores: Sequence[float], digits: int) -> str:
    """The interquartile mean over seeds with its 95 % bootstrap interval, if there are enough seeds that differ."""
    enough = len(scores) >= SEEDS_FOR_BAND and np.ptp(scores) > 0
    interval = [float(end) for end in bootstrap_band(np.array(scores))] if enough else None
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
    rows = _rows(groups, frame_marks, minute_marks)
    columns = [column for column in rows[0] if column != DIFFERENCE or any(row.get(DIFFERENCE) for row in rows)]
    lines = [_line(columns), "|---" * len(columns) + "|"]
    lines += [_line([row.get(column, "") for column in columns]) for row in rows]
    return "\n".join([*lines, "", _notes(groups, metric_of(runs_of(groups))), ""])


def overview(runs: Sequence[ComparedRun]) -> Table:
    """The columns of `table` that fit into a terminal."""
    groups = grouped(with_failures(runs))
    metric, rows = metric_of(runs_of(groups)), _rows(groups)
    shown = Table(title=f"{METRICS[metric].label}, evaluated after training")
    names = ["agent", MEAN, DIFFERENCE, "frames/s"]
    if len({run.frames for run in runs}) > 1:
        names.insert(1, FRAMES)
    columns = [name for name in names if any(row.get(name) for row in rows)]
    shown.add_column(columns[0])
    shown.add_column("seeds", justify="right")
    for name in columns[1:]:
        shown.add_column(name, justify="right")
    for row in rows:
        seeds = str(len(groups[row["agent"]])) if row["agent"] in groups else ""
        shown.add_row(escape(row["agent"]), seeds, *(row.get(name, "") for name in columns[1:]))
    return shown


def _rows(
    groups: Mapping[str, Sequence[ComparedRun]], frame_marks: Sequence[float] = (), minute_marks: Sequence[float] = ()
) -> list[dict[str, str]]:
    """The cells of `table`, by column: a row for each agent, then random play."""
    runs = runs_of(groups)
    metric = metric_of(runs)
    are_shares = metric != "return"
    digits = 3 if are_shares else decimals(*(run.evaluation.mean_return for run in runs))
    marks = [("frames", mark) for mark in frame_marks or default_marks(max(run.frames for run in runs))]
    marks += [("minutes", mark) for mark in minute_marks or default_marks(max(run.seconds for run in runs) / 60)]
    rows = [_agent_row(label, group, metric, marks, digits) for label, group in groups.items()]
    first, *others = groups.values()
    for row, group in zip(rows[1:], others, strict=True):
        if evaluated_in(group[0]) == evaluated_in(first[0]):
            both = scores_of(group, metric), scores_of(first, metric)
            row[DIFFERENCE] = difference_with_interval(*both, digits, are_shares)
    return rows + [{"agent": name, MEAN: f"{score:.{digits}f}"} for name, score in random_play(groups, metric).items()]


def _agent_row(
    label: str, group: Sequence[ComparedRun], metric: str, marks: Sequence[tuple[str, float]], digits: int
) -> dict[str, str]:
    """An agent's cells, by column."""
    row = {"agent": label, "parameters": f"{group[0].parameters:,}", FRAMES: _span([run.frames for run in group])}
    for name, mark in marks:
        mean = mean_at(group, metric, name, mark)
        row[f"{_short(mark)} {'min' if name == 'minutes' else name}"] = "" if mean is None else f"{mean:.{digits}f}"
    scores = scores_of(group, metric)
    return row | {
        "evaluation, by seed": ", ".join(f"{score:.{digits}f}" for score in scores),
        MEAN: mean_with_interval(scores, digits, metric != "return"),
        DIFFERENCE: "",
        "interquartile mean (95 % bootstrap)": interquartile_with_interval(scores, digits),
        "frames/s": f"{np.mean([run.frames / run.seconds for run in group]):,.0f}",
        "seconds": _span([run.seconds for run in group]),
    }


def random_play(groups: Mapping[str, Sequence[ComparedRun]], metric: str) -> dict[str, float]:
    """Labels and scores of uniform random play; one entry if all runs agree."""
    name = "uniform random play"
    runs = runs_of(groups)
    scores = {evaluated_in(run): score for run in runs if (score := run.random_score(metric)) is not None}
    if len(set(scores.values())) == 1 and len(scores) == len({evaluated_in(run) for run in runs}):
        return {name: next(iter(scores.values()))}
    at_most = ", {:,} steps at most" if len({limit for _, limit in scores}) > 1 else ""
    return {f"{name}, {env}{at_most.format(limit)}": score for (env, limit), score in scores.items()}


def evaluated_in(run: ComparedRun) -> tuple[str, int]:
    """What scores must share to be subtracted: the environment, and the step limit of its episodes."""
    config = run.config
    arguments = (f"{name}={value}" for name, value in sorted(config.env.env_kwargs.items()))
    return " ".join([config.env.env, *arguments]), config.run.eval_max_steps


def figure(groups: Mapping[str, Sequence[ComparedRun]], marks: Mapping[str, float], path: str | PathLike[str]) -> None:
    """Curves against frames and against minutes, with dashed lines at uniform random play and at `marks`."""
    metric = metric_of(runs_of(groups))
    curves = {label: [run.curve_of(metric) for run in group] for label, group in groups.items()}
    every = random_play(groups, metric) | dict(marks)
    write_png(draw(curves, every, "Learning curves", tuple(QUANTITIES), metric, SMOOTH), path)


def _notes(groups: Mapping[str, Sequence[ComparedRun]], metric: str) -> str:
    runs = runs_of(groups)
    commits = sorted({commit for run in runs for commit in run.commits})
    seeds = "; ".join(f"{label}: {', '.join(str(run.seed) for run in group)}" for label, group in groups.items())
    label, episodes = METRICS[metric].label, _span([run.evaluation.episodes for run in runs])
    return (
        f"Columns of frames and minutes (of training alone): {label} in training around there, mean over\n"
        f"seeds; curves are {smoothing(SMOOTH)}. The evaluation's {label} is of {episodes} episodes\n"
        "per seed; intervals are over seeds: Student's of the mean, Welch's of the difference from the first\n"
        "agent's mean, in one environment with one step limit, percentile bootstrap of the interquartile mean\n"
        f"with {SEEDS_FOR_BAND} seeds or more (Agarwal et al., 2021).\n"
        f"Seeds: {seeds}. Trained at commit {', '.join(commits)}."
    )


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(' '.join(cell.split()).replace('|', BAR) for cell in cells)} |"


def _span(numbers: Sequence[float]) -> str:
    low, high = f"{min(numbers):,.0f}", f"{max(numbers):,.0f}"
    return low if low == high else f"{low} to {high}"


def _short(number: float) -> str:
    return f"{number / 1e6:g}M" if number >= 1e6 else f"{number:g}"
