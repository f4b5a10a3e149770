"""What came of a sweep: one table, the best settings first, for the terminal, as Markdown and as JSON."""

import json
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from scipy.stats import sem
from scipy.stats import t as student

from rmc_agents.runs.checkpoint import write_atomically
from rmc_agents.runs.folder import SUMMARY

from .plan import Params, Plan

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial

LOG = "output.log"
ENOUGH_FOR_IMPORTANCES = 10  # trials; Optuna's first ten are drawn blindly


@dataclass(frozen=True)
class Row:
    """One set of settings, with the trials that had it: one of a search, or one for each seed."""

    trials: list[int]
    settings: Params  # that vary; in one-at-a-time mode what differs from the base
    scores: list[float]  # the mean evaluation return of each trial that is complete
    score: float | None  # their mean
    interval: list[float] | None  # 95 %: of one trial its evaluation's, over episodes; of several Student's, over them
    frames_per_second: float | None  # the mean
    seconds: float | None  # the sum
    unfinished: dict[int, str]  # by trial, why


def trial_folder(out: Path, number: int) -> Path:
    """The folder of a trial's run."""
    return out / f"trial-{number:04d}"


def last_line(folder: Path) -> str:
    """The last line that the trial printed."""
    try:
        with (folder / LOG).open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - 4096))
            lines = file.read().decode(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1].strip() if lines else ""


def read_summary(folder: Path) -> dict[str, Any] | None:
    """The summary of a run that was trained and evaluated; None if it is not there yet."""
    try:
        summary = json.loads((folder / SUMMARY).read_text())
    except (OSError, ValueError):
        return None
    return summary if summary.get("evaluation") else None


def make_rows(plan: Plan, trials: Sequence["FrozenTrial"], out: Path) -> list[Row]:
    """The table's rows by falling score; those without one come last."""
    groups: dict[str, list[FrozenTrial]] = {}
    for trial in trials:
        varied = {name: trial.params[name] for name in plan.search}
        groups.setdefault(json.dumps(varied) if plan.one_at_a_time else str(trial.number), []).append(trial)
    rows = [_make_row(plan, group, out) for group in groups.values()]
    return sorted(rows, key=lambda row: -np.inf if row.score is None else row.score, reverse=True)


def _make_row(plan: Plan, trials: Sequence["FrozenTrial"], out: Path) -> Row:
    params = trials[0].params
    complete = [trial for trial in trials if trial.value is not None]
    summaries = [read_summary(trial_folder(out, trial.number)) for trial in complete]
    known = [summary for summary in summaries if summary is not None]  # a folder may have been deleted since
    scores = [float(trial.value) for trial in complete if trial.value is not None]
    unfinished = {
        trial.number: f"failed: {last_line(trial_folder(out, trial.number))}"
        if trial.state.is_finished()
        else "unfinished"
        for trial in trials
        if trial.value is None
    }
    interval: list[float] | None
    if len(scores) > 1:
        interval = [float(end) for end in student.interval(0.95, len(scores) - 1, np.mean(scores), sem(scores))]
    else:
        interval = known[0]["evaluation"]["ci95"] if known else None
    return Row(
        trials=[trial.number for trial in trials],
        settings=plan.changed(params) if plan.one_at_a_time else {name: params[name] for name in plan.search},
        scores=scores,
        score=float(np.mean(scores)) if scores else None,
        interval=interval,
        frames_per_second=float(np.mean([s["frames_per_second"] for s in known])) if known else None,
        seconds=sum(s["seconds"] for s in known) if known else None,
        unfinished=unfinished,
    )


def make_cells(plan: Plan, rows: Sequence[Row]) -> list[list[str]]:
    """The table as text, its heading first."""
    names = ["change"] if plan.one_at_a_time else list(plan.search)
    heading = ["trial", *names, "return", "95 % interval", "frames/s", "seconds", "notes"]
    cells = [_row_cells(plan, row) for row in rows]
    if not any(row[-1] for row in cells):
        heading, cells = heading[:-1], [row[:-1] for row in cells]
    return [heading, *cells]


def _row_cells(plan: Plan, row: Row) -> list[str]:
    settings = [describe(row.settings) or "base"] if plan.one_at_a_time else map(_plain, row.settings.values())
    notes = [f"trial {number} {why}" for number, why in row.unfinished.items()]
    if len(row.scores) > 1:
        notes.insert(0, "by seed " + ", ".join(f"{score:.2f}" for score in row.scores))
    return [
        ", ".join(map(str, row.trials)),
        *settings,
        "" if row.score is None else f"{row.score:.2f}",
        "" if row.interval is None else f"{row.interval[0]:.2f} to {row.interval[1]:.2f}",
        "" if row.frames_per_second is None else f"{row.frames_per_second:,.0f}",
        "" if row.seconds is None else f"{row.seconds:,.0f}",
        "; ".join(notes),
    ]


def describe(settings: Params) -> str:
    """'name=value, name=value'."""
    return ", ".join(f"{name}={_plain(value)}" for name, value in settings.items())


def _plain(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def importances(plan: Plan, study: "Study") -> dict[str, float]:
    """Each setting's share in being among the best tenth (PED-ANOVA, Watanabe et al., 2023), if enough trials tell."""
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    complete = [trial for trial in study.trials if trial.value is not None]
    if plan.one_at_a_time or len(plan.search) < 2 or len(complete) < ENOUGH_FOR_IMPORTANCES:
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it calls itself experimental
        return get_param_importances(study, evaluator=PedAnovaImportanceEvaluator())


def write_results(plan: Plan, rows: Sequence[Row], shares: dict[str, float], out: Path) -> None:
    """`results.json` and `results.md` in the sweep's folder."""
    content = plan.description() | {"rows": [asdict(row) for row in rows], "importances": shares}
    write_atomically(out / "results.json", (json.dumps(content, indent=2) + "\n").encode())
    heading, *body = ([cell.replace("|", "\\|") for cell in cells] for cells in make_cells(plan, rows))
    lines = [heading, ["---"] * len(heading), *body]
    text = "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"
    if shares:
        text += f"\nShares in being among the best tenth (PED-ANOVA): {describe(shares)}\n"
    write_atomically(out / "results.md", text.encode())


def print_results(plan: Plan, rows: Sequence[Row], shares: dict[str, float], out: Path, console: Console) -> None:
    """The table, and what to type next."""
    heading, *body = make_cells(plan, rows)
    table = Table(title=f"{plan.base.env.env} · {out}")
    for name in heading:
        figure = name in ("return", "95 % interval", "frames/s", "seconds")
        table.add_column(name.replace("_", " "), justify="right" if figure else "left", no_wrap=figure, overflow="fold")
    for cells in body:
        table.add_row(*map(escape, cells))
    console.print(table)
    if shares:
        console.print(f"shares in being among the best tenth: {describe(shares)}", highlight=False, soft_wrap=True)
    if rows and rows[0].score is not None:
        best = trial_folder(out, rows[0].trials[0])
        console.print(f"best: {best}   rmc-watch {best}   rmc-plot {best}", highlight=False, soft_wrap=True)
