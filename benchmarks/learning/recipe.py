"""The curves of benchmarks/results/recipe.json, described in docs/decisions/recipe.md, as a table and a figure.

  python -m benchmarks.learning.recipe

The file holds the runs by which the defaults for Mini PacMan were found, one seed each: leads, not results. A run's
`settings` are flags of rmc-train, except for those of trials that were not kept: core_detach (no gradient from the core
into the encoder), normalised pixels, head_layer (units of a hidden layer before the heads), core_learning_rate (a
factor) and forget_steps (the forget biases of a slot's units begin at ln 1 to ln(forget_steps - 1), as in Tallec &
Ollivier 2018).
"""

import argparse
import json
from itertools import groupby
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from benchmarks.reports import RESULTS, table

MARKS = (2, 4, 6, 10, 16, 20, 40)  # million frames; points are ten seconds apart, too coarse for what lies before


def main() -> None:
    """Prints the table and draws the figure."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    runs = json.loads((RESULTS / "recipe.json").read_text())
    print(curves(runs))
    figure(runs).savefig(RESULTS / "recipe.png", dpi=130)


def curves(runs: list[dict[str, Any]]) -> str:
    """Markdown: mean return of training episodes around each mark, and the evaluation at the end."""
    rows = []
    for run in runs:
        cells = [f"{at(run, mark):.0f}" if mark <= run["trained_frames"] / 1e6 + 0.1 else "" for mark in MARKS]
        score = run["evaluation"]
        scored = f"{score['mean_return']:.0f}" if score else f"stopped at {run['trained_frames'] / 1e6:.1f}M"
        rows.append([str(run["stage"]), run["name"], *cells, scored])
    return table(["stage", "agent", *(f"{mark:g}M" for mark in MARKS), "evaluation"], rows)


def at(run: dict[str, Any], mark: float) -> float:
    """The curve at this number of million frames."""
    return float(np.interp(mark * 1e6, run["frames"], run["returns"]))


def figure(runs: list[dict[str, Any]]) -> Figure:
    """One panel a stage."""
    stages = [(stage, list(group)) for stage, group in groupby(runs, key=lambda run: str(run["stage"]))]
    drawn = Figure(figsize=(4.6 * len(stages), 6.4), layout="constrained")
    for axes, (stage, group) in zip(drawn.subplots(1, len(stages), sharey=True), stages, strict=True):
        for run in group:
            axes.plot(run["frames"], run["returns"], label=run["name"], linewidth=1.3)
        axes.set(title=stage, xlabel="frames", ylim=(0, 550))
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.grid(color="0.9")
        axes.legend(fontsize=7, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.12))
    drawn.axes[0].set_ylabel("mean return of training episodes")
    return drawn


if __name__ == "__main__":
    main()
