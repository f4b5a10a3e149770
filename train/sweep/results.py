"""The results of a sweep as a table, best settings first, on the terminal, in Markdown and in JSON."""

import json
import math
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rmc_agents import plugins
from rmc_agents.command_line import quoted, say, show
from rmc_agents.envs.processes import describe_death
from rmc_agents.evaluate import trainings
from rmc_agents.evaluate.plot import write_png
from rmc_agents.evaluate.statistics import student_interval
from rmc_agents.evaluate.summary import read_evaluated
from rmc_agents.evaluate.trainings import LOG
from rmc_agents.files import write_atomically, write_json
from rmc_agents.formatting import decimals, with_interval
from rmc_agents.runs.folder import flags_to_open

from .figure import draw_search
from .plan import Params, Plan, unlabel

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial

    from rmc_agents.evaluate.scheduler import Training

FIGURE = "results.png"
ENOUGH_FOR_IMPORTANCES = 10  # trials; Optuna's first ten are random


@dataclass(frozen=True)
class Row:
    """One set of settings, with its trials: one in a search, else one per seed.

    Attributes:
      trials: their numbers.
      settings: the searched ones; in one-at-a-time mode those that differ from the base.
      scores: of the evaluation of each trial that is complete: accuracy if it has one, else mean return.
      score: their mean.
      interval: its 95 % interval: over the episodes of a single trial; Student's t over several trials.
      frames_per_second: the mean.
      seconds: the sum.
      unfinished: by trial, why it has no score.
    """

    trials: list[int]
    settings: Params
    scores: list[float]
    score: float | None
    interval: tuple[float, float] | None
    frames_per_second: float | None
    seconds: float | None
    unfinished: dict[int, str]


def trial_folder(out: Path, number: int) -> Path:
    """The folder of a trial's run."""
    return out / f"trial-{number:04d}"


def score_of(training: "Training") -> float | None:
    """The evaluation's score of an ended trial; None if there is none, and the trial's log then says why."""
    folder, status = training.job.folder, training.status
    found = read_evaluated(folder) if status == 0 else None
    score = found[1].score if found is not None else None
    why = ""
    if score is not None and not math.isfinite(score):
        why, score = f"the score is {score}", None
    elif status < 0:
        why = f"\n{describe_death(status)}"
    elif score is None and not training.stopped and not trainings.last_line(folder):
        why = f"ended with status {status} and no result"
    if why and folder.is_dir():  # it may have been deleted since
        with (folder / LOG).open("a") as log:
            log.write(f"{why}\n")
    return score


def make_rows(plan: Plan, trials: Sequence["FrozenTrial"], out: Path) -> list[Row]:
    """The table's rows by descending score; those without a score come last."""
    groups: dict[str, list[FrozenTrial]] = {}
    for trial in trials:
        varied = {name: trial.params[name] for name in plan.search}
        groups.setdefault(json.dumps(varied) if plan.one_at_a_time else str(trial.number), []).append(trial)
    rows = [_make_row(plan, group, out) for group in groups.values()]
    return sorted(rows, key=lambda row: -np.inf if row.score is None else row.score, reverse=True)


def _make_row(plan: Plan, trials: Sequence["FrozenTrial"], out: Path) -> Row:
    params = trials[0].params
    complete = [trial for trial in trials if trial.value is not None]
    summaries = [read_evaluated(trial_folder(out, trial.number)) for trial in complete]
    known = [  # a folder may have been deleted since, or its run trained further
        summary
        for trial, summary in zip(complete, summaries, strict=True)
        if summary is not None and summary[1].score == trial.value
    ]
    scores = [float(trial.value) for trial in complete if trial.value is not None]
    unfinished = {
        trial.number: f"failed: {trainings.last_line(trial_folder(out, trial.number))}"
        if trial.state.is_finished()
        else "unfinished"
        for trial in trials
        if trial.value is None
    }
    one = known[0][1].score_ci95 if known else None  # over its episodes
    are_shares = bool(known) and known[0][1].accuracy is not None
    varied = plan.changed(params) if plan.one_at_a_time else {name: params[name] for name in plan.search}
    return Row(
        trials=[trial.number for trial in trials],
        settings={name: unlabel(value) for name, value in varied.items()},
        scores=scores,
        score=float(np.mean(scores)) if scores else None,
        interval=student_interval(scores, are_shares) if plan.one_at_a_time and len(plan.seeds) > 1 else one,
        frames_per_second=float(np.mean([s.frames_per_second for s, _ in known])) if known else None,
        seconds=sum(s.seconds for s, _ in known) if known else None,
        unfinished=unfinished,
    )


def make_cells(plan: Plan, rows: Sequence[Row]) -> list[list[str]]:
    """The table as text, with its header first."""
    names = ["change"] if plan.one_at_a_time else list(plan.search)
    heading = ["trial", *names, "score", "95 % interval", "frames/s", "seconds", "notes"]
    digits = _digits(rows)
    cells = [_row_cells(plan, row, digits) for row in rows]
    if not any(row[-1] for row in cells):
        heading, cells = heading[:-1], [row[:-1] for row in cells]
    return [heading, *cells]


def _row_cells(plan: Plan, row: Row, digits: int) -> list[str]:
    settings = [describe(row.settings) or "base"] if plan.one_at_a_time else map(_plain, row.settings.values())
    return [
        ", ".join(map(str, row.trials)),
        *settings,
        "" if row.score is None else f"{row.score:.{digits}f}",
        "" if row.interval is None else " to ".join(f"{end:.{digits}f}" for end in row.interval),
        "" if row.frames_per_second is None else f"{row.frames_per_second:,.0f}",
        "" if row.seconds is None else f"{row.seconds:,.0f}",
        "; ".join(_notes(row, digits)),
    ]


def _about_intervals(plan: Plan) -> str:
    over_seeds = plan.one_at_a_time and len(plan.seeds) > 1
    return "intervals: " + ("Student's, over seeds" if over_seeds else "over the episodes of one training")


def _digits(rows: Sequence[Row]) -> int:
    return decimals(*(score for row in rows for score in row.scores))


def _notes(row: Row, digits: int) -> list[str]:
    """Notes on a row."""
    by_seed = [f"by seed {', '.join(f'{score:.{digits}f}' for score in row.scores)}"] if len(row.scores) > 1 else []
    return by_seed + [f"trial {number} {why}" for number, why in row.unfinished.items()]


def describe(settings: Params) -> str:
    """'name=value, name=value'."""
    return ", ".join(f"{name}={_plain(value)}" for name, value in settings.items())


def _plain(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def importances(plan: Plan, study: "Study") -> dict[str, float]:
    """Each setting's importance for reaching the best tenth (PED-ANOVA, Watanabe et al., 2023), given enough trials."""
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    complete = [trial for trial in study.trials if trial.value is not None]
    if plan.one_at_a_time or len(plan.search) < 2 or len(complete) < ENOUGH_FOR_IMPORTANCES:
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a warning that it is experimental
        found = get_param_importances(study, evaluator=PedAnovaImportanceEvaluator())
    return found if len(set(found.values())) > 1 else {}  # all equal: the scores say nothing


def write_results(plan: Plan, rows: Sequence[Row], shares: dict[str, float], out: Path) -> list[Path]:
    """Write `results.json`, `results.md` and, of a search with a score, `results.png` to the sweep's folder."""
    written = [out / "results.json", out / "results.md"]
    content = plan.description() | {"rows": [asdict(row) for row in rows], "importances": shares}
    write_json(written[0], content)
    heading, *body = ([cell.replace("|", "\\|") for cell in cells] for cells in make_cells(plan, rows))
    lines = [heading, ["---"] * len(heading), *body]
    text = "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + f"\n\n{_about_intervals(plan)}\n"
    if shares:
        text += f"\nImportance for being among the best tenth (PED-ANOVA): {describe(shares)}\n"
    if not plan.one_at_a_time and any(row.score is not None for row in rows):
        title = f"{plan.base.env.env}: search over {len(rows)} trials"
        written.append(out / FIGURE)
        write_png(draw_search(rows, shares, title), out / FIGURE)
        text += f"\n![Scores by trial, and the best so far]({FIGURE})\n"
    write_atomically(written[1], text.encode())
    return written


def print_results(plan: Plan, rows: Sequence[Row], shares: dict[str, float], out: Path, console: Console) -> None:
    """The table, narrower than that of `results.md`, and what to type next."""
    title, caption = f"{escape(plan.base.env.env)} · {escape(str(out))}", _about_intervals(plan)
    table = Table(title=title, caption=caption)
    table.add_column("trial")
    table.add_column("settings", overflow="fold")
    for name in ("score (95 % interval)", "seconds"):
        table.add_column(name, justify="right")
    digits = _digits(rows)
    for row in rows:
        settings = "\n".join([describe(row.settings) or "base", *_notes(row, digits)])
        score = "" if row.score is None else with_interval(row.score, row.interval, digits)
        seconds = "" if row.seconds is None else f"{row.seconds:,.0f}"
        table.add_row(", ".join(map(str, row.trials)), escape(settings), score, seconds)
    show(console, table)
    lines = []
    if shares:
        lines.append(f"importance for being among the best tenth: {describe(shares)}")
    if rows and rows[0].score is not None:
        best = trial_folder(out, next(trial for trial in rows[0].trials if trial not in rows[0].unfinished))
        config = plan.config(rows[0].settings, str(out))
        flags = flags_to_open(config)
        if not plugins.flags_text():  # --show does not import the parts' modules
            flags += plugins.flags_of(config.core.core, config.agent.encoder, config.env.env)
        lines.append(f"best: {best}   rmc-watch {quoted(best)}{flags}   rmc-plot {quoted(best)}")
        lines.append(f"evaluate on fresh episodes: rmc-evaluate {quoted(best)} --seed 2000000{flags}")
    if lines:
        say(console, "\n".join(lines))
