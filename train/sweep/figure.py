"""A plot of a search: every trial, the best so far, and the importance of the settings."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from rmc_agents.evaluate.plot import plain, plain_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from .results import Row


def draw_search(rows: Sequence["Row"], shares: Mapping[str, float], title: str) -> "Figure":
    """Scores in the order of the trials and, if given, the shares of `results.importances`.

    Args:
      rows: one trial each, at least one with a score.
      shares: the share of each setting.
      title: the figure's title.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12 if shares else 8, 4.8), layout="constrained")
    panels = figure.subplots(1, 2, width_ratios=[3, 2], squeeze=False)[0] if shares else [figure.subplots()]
    _draw_scores(panels[0], sorted((row for row in rows if row.score is not None), key=lambda row: row.trials))
    panels[0].set_title(plain(title), fontweight="bold", loc="left")
    if shares:
        _draw_shares(panels[1], shares)
    return figure


def _draw_scores(axes: "Axes", rows: Sequence["Row"]) -> None:
    from matplotlib.ticker import MaxNLocator

    trials, scores = np.array([row.trials[0] for row in rows]), np.array([row.score for row in rows], float)
    ends = np.array([row.interval or (row.score, row.score) for row in rows], float).T  # [2, trials]
    errors = np.abs(ends - scores)
    axes.errorbar(
        trials, scores, errors, fmt="o", color="C0", elinewidth=0.8, markersize=4, label="trial, 95 % interval"
    )
    axes.step(trials, np.maximum.accumulate(scores), where="post", color="C1", linewidth=2, label="best so far")
    axes.set(xlabel="trial", ylabel="score: accuracy if there is one, else mean return")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False, fontsize="small", loc="best")
    plain_axes(axes)


def _draw_shares(axes: "Axes", shares: Mapping[str, float]) -> None:
    names = sorted(shares, key=lambda name: shares[name])
    axes.barh(names, [shares[name] for name in names], color="C0")
    axes.set(xlabel="importance for being among the best tenth (PED-ANOVA)", xlim=(0, 1))
    plain_axes(axes)
