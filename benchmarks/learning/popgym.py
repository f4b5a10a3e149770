"""POPGym's tasks (Morad et al., 2023): the presets popgym-* on each, by POPGym's measure, beside the published scores.

    python -m benchmarks.learning.popgym [--tasks RepeatFirstEasy ...] [--cores rmc lstm] [--seeds 0 1 2] [--jobs 2]

It takes `pip install 'rmc-agents[popgym]'`. Only what the result file (`--out`) lacks is trained, by rmc-compare, which
resumes runs: so this can be stopped and started again, and trained in parts. For other settings, take another `--out`.
The measure is the highest mean return of an epoch of 65,536 frames. It comes from the training curve, so the final
score, of 500 episodes with other seeds, is given beside it.
"""

import argparse
import json
from itertools import product
from pathlib import Path

import numpy as np

from benchmarks.reports import RESULTS, table, write
from rmc_agents.evaluate import compare
from rmc_agents.evaluate.comparison import ComparedRun, read
from rmc_agents.evaluate.curves import Curve, read_curve
from rmc_agents.evaluate.report import mean_with_interval

EPOCH = 65_536
CORES = ("rmc", "lstm", "gru", "mingru", "transformer", "none")
PUBLISHED: dict[str, tuple[float | None, float | None]] = {
    "RepeatFirstEasy": (1.0, 1.0),
    "RepeatFirstMedium": (1.0, 1.0),
    "RepeatPreviousEasy": (1.0, 1.0),
    "RepeatPreviousMedium": (-0.315, 0.789),
    "CountRecallEasy": (0.177, 0.509),
    "AutoencodeEasy": (-0.283, None),
    "HigherLowerEasy": (0.529, None),
    "NoisyPositionOnlyCartPoleEasy": (0.995, None),
    "NoisyPositionOnlyCartPoleMedium": (0.642, 0.659),
    "PositionOnlyPendulumEasy": (None, None),
    "ConcentrationEasy": (None, None),
}
"""Mean over three seeds after 15 million frames: the GRU's, and the best of thirteen models; None: not known here."""


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=list(PUBLISHED))
    parser.add_argument("--cores", nargs="+", default=CORES)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--jobs", default="2")
    parser.add_argument("--total-frames", default="3000000")
    parser.add_argument("--folder", type=Path, default=Path("runs/popgym"))
    parser.add_argument("--out", type=Path, default=RESULTS / "popgym")
    arguments = parser.parse_args()
    results = arguments.out.with_suffix(".json")
    found = json.loads(results.read_text())["evaluations"] if results.exists() else []
    for task, core in product(arguments.tasks, arguments.cores):
        done = {one["seed"] for one in found if (one["task"], one["core"]) == (task, core)}
        if missing := [seed for seed in arguments.seeds if seed not in done]:
            runs = trained(task, core, missing, arguments)
            for run in runs:
                curve = read_curve(arguments.folder / task / f"popgym-{core}-seed{run.seed}")
                found.append({"task": task, "core": core, "seed": run.seed, **scores(run, curve)})
            write(arguments.out, {"evaluations": found}, report(found))


def trained(task: str, core: str, seeds: list[int], arguments: argparse.Namespace) -> list[ComparedRun]:
    """The runs of a core on a task."""
    out = arguments.folder / task
    grid = ["--agents", f"popgym-{core}", "--seeds", *map(str, seeds)]
    size = ["--total-frames", arguments.total_frames, "--episodes", "500", "--jobs", arguments.jobs]
    where = ["--folder", str(out), "--out", str(out / core), "--", "--env", f"popgym:popgym-{task}-v0"]
    if compare.main([*grid, *size, *where]):
        raise SystemExit(1)
    return read((out / core).with_suffix(".json"))


def scores(run: ComparedRun, curve: Curve) -> dict[str, float]:
    """POPGym's measure of a run, and its final score."""
    epochs = (curve.frames - 1) // EPOCH  # a point is the mean of the episodes up to it
    complete = [epoch for epoch in np.unique(epochs) if (epoch + 1) * EPOCH <= run.frames] or [0]
    highest = max(curve.values[epochs == epoch].mean() for epoch in complete)
    return {"frames": run.frames, "best_epoch": float(highest), "final": run.evaluation.mean_return}


def report(found: list[dict]) -> str:
    """The table."""
    rows = []
    for task in dict.fromkeys(one["task"] for one in found):
        gru, best = ("" if score is None else f"{score:.3f}" for score in PUBLISHED.get(task, (None, None)))
        for core in dict.fromkeys(one["core"] for one in found):
            of_all = [one for one in found if (one["task"], one["core"]) == (task, core)]
            if of_all:
                highest, final = ([one[name] for one in of_all] for name in ("best_epoch", "final"))
                scored = [mean_with_interval(each, 3) for each in (highest, final)]
                rows.append([task, core, str(len(of_all)), *scored, gru, best])
    columns = ["task", "core", "seeds", "best epoch", "final score", "published: GRU", "published: best"]
    frames = ", ".join(sorted({f"{one['frames']:,}" for one in found}))
    return (
        f"{table(columns, rows)}\n\nAfter {frames} frames; means over the seeds with Student's 95 % interval. "
        "Published after 15,000,000 frames (Morad et al., 2023, three seeds), by best epoch.\n"
    )


if __name__ == "__main__":
    main()
